"""Tasks that a later engine goes on with, and which skill their messages are for."""

import asyncio
from pathlib import Path

import apsw
import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.engine import recovery
from dragoman.errors import Overloaded
from dragoman.model.events import ArtifactUpdate, AttemptStarted, StatusUpdate
from dragoman.model.message import Role
from dragoman.model.operations import SendMessage
from dragoman.model.task import Task, TaskState
from dragoman.service import Call
from tests.engine.engines import House, house_over, message, sentence, state

S = TaskState


class Sturdy:
    """An agent that remembers, over restarts of the engine, how often it was started."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()
        self.agent = Agent("Sturdy", "Comes back.")

        @self.agent.skill
        async def work(text: str, turn: Turn) -> str:
            self.attempts.append((text, turn.attempt))
            await turn.artifact("half", name="half", id=f"half {turn.attempt}")
            await self.go_on.wait()
            return f"{text} {turn.attempt}"


@pytest.mark.requirement("T-7")
async def test_unfinished_tasks_run_again_after_a_restart(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    tasks = [await house.send(f"{n}", wait=False) for n in range(5)]
    await eventually(lambda: len(sturdy.attempts) == 5)
    assert await house.restart() == 5
    sturdy.go_on.set()
    for n, task in enumerate(tasks):
        done = await house.reaches(task.id, S.COMPLETED)
        assert done.artifacts[-1].parts[0].text == f"{n} 2"
        assert [said.text for said in done.history] == [f"{n}"]
    assert sorted(sturdy.attempts) == sorted((f"{n}", k) for n in range(5) for k in (1, 2))
    assert await house.restart() == 0


@pytest.mark.requirement("T-7", "T-12")
async def test_a_stream_goes_on_over_a_restart(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    stream = house.stream("hi")
    await stream.until(lambda s: any(isinstance(e, ArtifactUpdate) for e in s.events))
    assert stream.opening is not None
    seen = stream.seqs[-1]
    await house.restart()
    sturdy.go_on.set()
    rest = await house.subscribe(stream.opening.id, seen).rest()
    assert rest.opened_at == seen
    assert all(not isinstance(event, AttemptStarted) for event in rest.events)
    last = rest.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert rest.seqs == sorted(set(rest.seqs)) and rest.seqs[0] > seen


@pytest.mark.requirement("T-7")
async def test_a_task_is_given_up_after_its_attempts(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent, max_attempts=3)
    task = await house.send("hi", wait=False)
    for attempt in (2, 3):
        await eventually(lambda attempt=attempt: len(sturdy.attempts) == attempt - 1)
        await eventually(lambda: _is_written(house))
        assert await house.restart() == 1
    await eventually(lambda: len(sturdy.attempts) == 3)
    await eventually(lambda: _is_written(house))
    assert await house.restart() == 1
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 3 attempts."
    assert [attempt for _, attempt in sturdy.attempts] == [1, 2, 3]
    await eventually(lambda: _is_written(house))
    assert await house.restart() == 0


async def _has_halves(house: House, task: Task, count: int) -> bool:
    """Tell whether what an attempt writes is in the log: the log is idle before that too."""
    return len((await house.get(task.id)).artifacts) == count


def _is_written(house: House) -> bool:
    return all(log.is_idle for log in house.engine._live._logs.values())


@pytest.mark.requirement("T-7")
async def test_the_worker_of_before_cannot_write_after_a_take_over(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", wait=False)
    await eventually(lambda: _has_halves(house, task, 1))
    await eventually(lambda: _is_written(house))
    # As a process that was only paused would: it lives on while another takes its task.
    before = await house.succeed()
    await eventually(lambda: _has_halves(house, task, 2))
    await eventually(lambda: _is_written(house))
    with pytest.raises(Overloaded):
        late = SendMessage(message=message("late", task=task.id))
        await within(before.answer(Call(operation=late)))
    sturdy.go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "hi 2"
    assert [said.text for said in done.history] == ["hi"]
    await before.stop()


@pytest.mark.requirement("T-7")
async def test_a_task_whose_skill_is_gone_fails_instead_of_staying(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", skill="work", wait=False)
    other = Agent("Sturdy", "Has other skills.")

    @other.skill
    async def rest(text: str) -> str:
        return text

    assert await house.restart(other) == 1
    assert state(await house.reaches(task.id, S.FAILED)) is S.FAILED


@pytest.mark.requirement("T-7", "T-62")
async def test_a_task_begun_by_a_message_in_the_agents_role_is_taken_over_too(
    house: House,
) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", role=Role.AGENT, wait=False)
    assert await house.restart() == 1
    sturdy.go_on.set()
    assert state(await house.reaches(task.id, S.COMPLETED)) is S.COMPLETED


@pytest.mark.requirement("T-7")
async def test_a_task_at_its_limit_does_not_keep_the_engine_from_starting(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent, max_events=100)
    task = await house.send("hi", wait=False)
    await eventually(lambda: len(sturdy.attempts) == 1)
    for n in range(8):
        await house.send(f"{n}", task=task.id, wait=False)
    assert await house.restart(sturdy.agent, max_events=10) == 1
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The task grew beyond its limit of 10 events."


@pytest.mark.requirement("T-7", "T-3")
async def test_a_task_that_was_answered_but_not_gone_on_with_is_taken_over(house: House) -> None:
    """An answer that was taken in is worked on, whenever the process ends."""
    agent, go_on = Agent("Asker", "Asks."), asyncio.Event()

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        if text != "this":
            await turn.ask("which?")
        await go_on.wait()
        return text

    await house.start(agent)
    task = await house.send("hi")
    await house.send("this", task=task.id, wait=False)
    assert await house.restart() == 1
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "hi"
    assert [m.parts[0].text for m in done.history] == ["hi", "which?", "this"]


@pytest.mark.requirement("T-7", "T-3")
async def test_messages_that_waited_are_worked_on_in_order_after_a_restart(house: House) -> None:
    agent, go_on = Agent("Queue", "Takes its time."), asyncio.Event()
    ran: list[str] = []

    @agent.skill
    async def held(text: str) -> str:
        ran.append(text)
        await go_on.wait()
        return text

    await house.start(agent)
    task = await house.send("first", wait=False)
    for text in ("second", "third"):
        await house.send(text, task=task.id, wait=False)
    await eventually(lambda: ran == ["first"])
    assert await house.restart() == 1
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert ran == ["first", "first", "second", "third"]
    assert [said.text for said in done.history] == ["first", "second", "third"]


async def test_waiting_callers_are_told_when_the_engine_stops(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    waiting = asyncio.ensure_future(house.send("hi"))
    await eventually(lambda: len(sturdy.attempts) == 1)
    await eventually(lambda: _is_written(house))
    await house.stop()
    with pytest.raises(Overloaded):
        await waiting
    await house.start(sturdy.agent)
    page = await house.list()
    assert page.total_size == 1
    sturdy.go_on.set()
    await house.reaches(page.tasks[0].reading.task.id, S.COMPLETED)


# Which skill a further message is for


def two_skills(agent: Agent) -> list[str]:
    """Give the agent a default skill that takes a number, and one that asks for a place."""
    seen: list[str] = []

    @agent.skill(default=True)
    async def double(number: int) -> int:
        seen.append(f"double {number}")
        return 2 * number

    @agent.skill
    async def travel(where: str, turn: Turn) -> str:
        seen.append(f"travel {where}")
        answer = await turn.ask("From where?")
        return f"{answer.text} to {where}"

    return seen


async def test_an_answer_goes_to_the_code_that_asked_whatever_the_default_skill_takes(
    house: House, agent: Agent
) -> None:
    seen = two_skills(agent)
    await house.start(agent)
    task = await house.send("Rome", skill="travel")
    done = await house.send("Oslo", task=task.id)
    assert [a.parts[0].text for a in done.artifacts] == ["Oslo to Rome"]
    assert seen == ["travel Rome"]


async def test_after_a_restart_an_answer_goes_to_the_skill_its_task_began_with(
    house: House, agent: Agent
) -> None:
    seen = two_skills(agent)
    await house.start(agent)
    task = await house.send("Rome", skill="travel")
    await house.restart()
    assert state(await house.send("Oslo", task=task.id)) is S.COMPLETED
    assert seen == ["travel Rome", "travel Rome"]


async def test_after_a_crash_every_message_without_an_answer_is_worked_on_in_order(
    house: House, agent: Agent
) -> None:
    gate, seen = asyncio.Event(), list[str]()

    @agent.skill
    async def note(text: str, turn: Turn) -> str:
        await gate.wait()
        seen.append(f"{text} {turn.attempt}")
        return text

    await house.start(agent)
    task = await house.send("one", wait=False)
    for text in ("two", "three"):
        await house.send(text, task=task.id, wait=False)
    gate.set()
    # Stopped before the code's next slice: nothing of it is done.
    assert await house.restart() == 1
    await house.reaches(task.id, S.COMPLETED)
    assert seen == ["one 2", "two 2", "three 2"]


async def test_after_a_crash_an_answer_that_fits_no_argument_reaches_the_code_that_asks(
    house: House, agent: Agent
) -> None:
    gate = asyncio.Event()

    @agent.skill
    async def add(number: int, turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        await gate.wait()
        return f"{number} {answer.text} {turn.metadata}"

    await house.start(agent)
    task = await house.send("7")
    await house.send("yes", task=task.id, wait=False)
    assert await house.restart() == 1
    gate.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[0].parts[0].text == "7 yes {}"


async def test_a_task_whose_disk_failed_for_a_moment_is_taken_up_again(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, go_on = house_over("sqlite", tmp_path), asyncio.Event()
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        await go_on.wait()
        return f"attempt {turn.attempt}"

    await house.start(agent)
    task = await house.send("hi", wait=False)

    def full(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
        raise apsw.FullError("no space left")

    monkeypatch.setattr(house.store._writer, "_apply", full)
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    # The disk's fault is not the code's.
    assert done.artifacts[0].parts[0].text == "attempt 1"
    await house.stop()
