"""A database that is away for a while: callers are told, running tasks and streams wait, and all
goes on where it was."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from harness.databases import Databases
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.errors import Overloaded
from dragoman.model.events import AttemptStarted, StatusUpdate
from dragoman.model.task import TaskState
from dragoman.stores.postgres import Addresses, PostgresStore, connections, writer
from tests.engine.engines import House, result, state

S = TaskState


class Work:
    """Code that does one step after another, each when it may."""

    def __init__(self) -> None:
        self.agent = Agent("Worker", "Works.")
        self.runs: list[int] = []
        self.steps: list[int] = []
        self.may = asyncio.Semaphore(0)

        @self.agent.skill
        async def work(text: str, turn: Turn) -> str:
            self.runs.append(turn.attempt)
            for n in range(4):
                await self.may.acquire()
                await turn.say(f"step {n}")
                self.steps.append(n)
            return text

        @self.agent.skill
        async def asks(text: str, turn: Turn) -> str:
            self.runs.append(turn.attempt)
            return f"{text} {(await turn.ask('which?')).text}"


@pytest.fixture
def databases() -> Iterator[Databases]:
    """A server of the test's own, which it may stop."""
    with Databases.of_own() as databases:
        yield databases


@pytest.fixture
async def house(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    # Callers are not made to wait for long here.
    monkeypatch.setattr(connections, "READ_WITHIN", 0.2)
    monkeypatch.setattr(writer, "PATIENCE", 0.2)
    url = await asyncio.to_thread(databases.make)
    house = House(lambda: PostgresStore(Addresses(f"{url}?sslmode=disable")), keeps_object=False)
    yield house
    await house.stop()


async def stop(databases: Databases, how: str) -> None:
    await asyncio.to_thread(getattr(databases.server, how))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_running_task_waits_and_goes_on_without_another_attempt(
    house: House, databases: Databases, how: str
) -> None:
    work = Work()
    await house.start(work.agent)
    task = await house.send("hi", skill="work", wait=False)
    stream = house.subscribe(task.id)
    await stream.step()
    reading = asyncio.ensure_future(stream.rest())
    work.may.release()
    await eventually(lambda: work.steps == [0])
    await stop(databases, how)
    for _ in range(3):
        work.may.release()
    with pytest.raises(Overloaded, match="does not answer"):
        await house.send("new", skill="work", wait=False)
    with pytest.raises(Overloaded, match="does not answer"):
        await house.get(task.id)
    with pytest.raises(Overloaded, match="does not answer"):
        await house.list()
    with pytest.raises(Overloaded):
        await house.cancel(task.id)
    assert not reading.done()
    await asyncio.to_thread(databases.server.start)
    seen = await within(reading)
    last = seen.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert work.runs == [1]
    done = await house.get(task.id)
    assert result(done) == "hi"
    assert not any(isinstance(event, AttemptStarted) for event in await _log(house))
    assert house.store.lapses == 0


async def test_a_reader_of_the_store_stays_and_sees_the_rest(
    house: House, databases: Databases
) -> None:
    """One whose task another process writes has nothing but the store."""
    work = Work()
    await house.start(work.agent)
    task = await house.send("hi", skill="work", wait=False)
    other = House(house._make, keeps_object=False)
    await other.start(work.agent)
    stream = other.subscribe(task.id, 1)
    await stream.step()
    reading = asyncio.ensure_future(stream.rest())
    await stop(databases, "kill")
    for _ in range(4):
        work.may.release()
    other.engine._live.bell.ring_all()
    await eventually(lambda: not other.engine._live.bell.places())
    assert not reading.done()
    await asyncio.to_thread(databases.server.start)
    seen = await within(reading)
    assert seen.seqs == (await house.subscribe(task.id, 1).rest()).seqs
    await other.stop()


async def test_an_answer_after_a_restart_reaches_the_code_that_asked(
    house: House, databases: Databases
) -> None:
    work = Work()
    await house.start(work.agent)
    task = await house.send("hi", skill="asks")
    assert state(task) is S.INPUT_REQUIRED
    await stop(databases, "stop")
    await asyncio.to_thread(databases.server.start)
    done = await house.send("this", task=task.id)
    assert (result(done), work.runs) == ("hi this", [1])


async def test_code_that_needs_the_store_is_tried_again_when_it_was_away(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was refused is no fault of its own: the task does not fail, and does not hang."""
    from dragoman.engine import recovery
    from dragoman.errors import StoreUnavailable

    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    agent, runs = Agent("Worker", "Works."), list[int]()

    @agent.skill
    async def reads(text: str, turn: Turn) -> str:
        await turn.say("begun")
        runs.append(turn.attempt)
        if len(runs) < 3:
            raise StoreUnavailable("away")
        return text

    await house.start(agent)
    task = await house.send("hi", wait=False)
    done = await house.reaches(task.id, S.COMPLETED)
    assert (result(done), runs) == ("hi", [1, 1, 1])


async def _log(house: House) -> list[Any]:
    found = await house.store.read(await house.first_number(), after=0, limit=1000)
    return [recorded.event for recorded in found]
