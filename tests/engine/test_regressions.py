"""Moments in which an engine once told a caller something before it was true, left him without an
answer, or did the author's work again and again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Message, Turn
from dragoman.config import Settings
from dragoman.engine import recovery
from dragoman.engine.engine import Engine
from dragoman.errors import Overloaded, TaskNotCancelable
from dragoman.model import operations as ops
from dragoman.model.push import PushConfig
from dragoman.model.task import Task, TaskState
from dragoman.service import Call
from dragoman.stores.interface import Push
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock
from tests.engine.engines import FullDisk, House, Street, house_over, message

S = TaskState


@pytest.fixture
async def filed(tmp_path: Path) -> AsyncIterator[House]:
    """An engine over a file."""
    house = house_over("sqlite", tmp_path)
    yield house
    await house.stop()


@pytest.fixture
def agent() -> Agent:
    return Agent("Plain", "Does as it is told.")


@pytest.fixture
def go_on() -> asyncio.Event:
    return asyncio.Event()


async def turns(count: int = 200) -> None:
    """Let everyone do what can be done without a disk or another process."""
    for _ in range(count):
        await asyncio.sleep(0)


def asking(agent: Agent) -> None:
    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        return (await turn.ask("which?")).text


# The same message again


async def test_a_repeated_answer_is_acknowledged_when_the_first_is_durable(
    gated: House, agent: Agent
) -> None:
    asking(agent)
    await gated.start(agent)
    task = await gated.send("go")
    said = message("this", task=task.id)
    gated.store.shut()  # type: ignore[attr-defined]
    sending = [asyncio.ensure_future(gated.send(said, wait=False)) for _ in range(2)]
    await turns()
    assert not any(one.done() for one in sending)
    gated.store.lift()  # type: ignore[attr-defined]
    for acknowledged in await within(asyncio.gather(*sending)):
        assert "this" in [known.text for known in acknowledged.history]


async def test_a_repeated_message_to_a_task_elsewhere_waits_until_it_is_taken_in(
    street: Street, agent: Agent
) -> None:
    asking(agent)
    a, b = await street.open(agent), await street.open(agent)
    task = await a.send("go")
    street.deafen(a)
    said = message("this", task=task.id)
    first = asyncio.ensure_future(b.send(said))

    async def is_left() -> bool:
        return await b.has_notes()

    await eventually(is_left)
    again = asyncio.ensure_future(b.send(said))
    await turns()
    assert not again.done()
    await within(a.engine.sweep())
    answers = await within(asyncio.gather(first, again))
    assert [answer.status.state for answer in answers] == [S.COMPLETED, S.COMPLETED]


async def test_messages_one_after_another_to_a_task_elsewhere_are_each_taken_in(
    street: Street, agent: Agent, go_on: asyncio.Event
) -> None:
    @agent.skill
    async def work(text: str) -> str:
        await go_on.wait()
        return text

    a, b = await street.open(agent), await street.open(agent)
    task = await a.send("hi", wait=False)
    for text in ("one", "two", "three"):
        await within(b.send(text, task=task.id, wait=False))
    go_on.set()
    done = await a.reaches(task.id, S.COMPLETED)
    assert [said.text for said in done.history] == ["hi", "one", "two", "three"]


@pytest.mark.parametrize("how", ["by a call", "by a stream"])
async def test_the_same_message_in_two_processes_that_may_reply_has_one_task(
    street: Street, agent: Agent, go_on: asyncio.Event, how: str
) -> None:
    runs: list[str] = []

    @agent.skill
    async def may_reply(text: str, turn: Turn) -> Message | str:
        runs.append(text)
        await go_on.wait()
        await turn.say("working")
        return text

    houses = await street.open(agent), await street.open(agent)
    said = message("hi")

    async def ask(house: House) -> Task:
        if how == "by a call":
            return await house.send(said)
        stream = await house.stream(said).rest()
        assert stream.opening is not None
        return await house.get(stream.opening.id)

    asked = [asyncio.ensure_future(ask(house)) for house in houses]
    await eventually(lambda: len(runs) == 2)
    go_on.set()
    first, second = await within(asyncio.gather(*asked))
    assert first == second and first.status.state is S.COMPLETED
    assert await houses[0].count() == 1


# A disk that fails or is full


async def test_a_task_that_could_not_be_read_twice_is_tried_a_third_time(
    filed: House, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    runs: list[str] = []

    @agent.skill
    async def work(text: str) -> str:
        runs.append(text)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return text

    await filed.start(agent)
    task = await filed.send("hi", wait=False)
    await eventually(lambda: runs)
    read, faults = SQLiteStore.read, 0

    async def faulty(store: SQLiteStore, *given: Any, **more: Any) -> Any:
        nonlocal faults
        faults += 1
        if faults <= 2:
            raise apsw.IOError("disk I/O error")
        return await read(store, *given, **more)

    monkeypatch.setattr(SQLiteStore, "read", faulty)
    await filed.restart()
    # Whoever asks for the task meanwhile would read it too.
    await eventually(lambda: len(runs) == 2)
    assert (await filed.reaches(task.id, S.COMPLETED)).artifacts[0].parts[0].text == "hi"


async def test_code_is_not_run_again_while_the_disk_is_full(
    filed: House, agent: Agent, go_on: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    runs: list[int] = []

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        runs.append(turn.attempt)
        await go_on.wait()
        return text

    await filed.start(agent)
    task = await filed.send("hi", wait=False)
    await eventually(lambda: runs)
    disk = FullDisk(monkeypatch, filed.store)
    go_on.set()
    await eventually(lambda: disk.refused >= 20)
    assert disk.refused >= 20 and runs == [1]
    disk.is_full = False
    await filed.reaches(task.id, S.COMPLETED)
    # The disk's fault is not the code's.
    assert runs == [1, 1]


async def test_a_reply_that_a_full_disk_did_not_keep_is_refused_as_such(
    filed: House, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    @agent.skill
    async def replies(text: str, turn: Turn) -> Message:
        return turn.reply(f"{text}!")

    await filed.start(agent)
    disk = FullDisk(monkeypatch, filed.store)
    said = message("hi")
    with pytest.raises(Overloaded) as refusal:
        await filed.send(said)
    assert refusal.value.facts["reason"] == "STORAGE_FULL"
    with pytest.raises(Overloaded) as refusal:
        await filed.stream(said).rest()
    assert refusal.value.facts["reason"] == "STORAGE_FULL"
    call = Call(operation=ops.SendMessage(message=said))

    async def insist() -> Any:
        with pytest.raises(Overloaded):
            await filed.engine.answer(call)
        disk.is_full = False
        # In the same turn of the loop.
        return await filed.engine.answer(call)

    assert (await within(insist())).text == "hi!"


# Those who leave


async def test_a_reader_gets_the_end_from_a_process_that_left_at_once(
    street: Street, agent: Agent, go_on: asyncio.Event
) -> None:
    @agent.skill
    async def work(text: str) -> str:
        await go_on.wait()
        return text

    a, b = await street.open(agent), await street.open(agent)
    task = await b.send("hi", wait=False)
    stream = a.subscribe(task.id)
    await stream.step()
    reading = asyncio.ensure_future(stream.rest())
    # Between two looks of the reader's process: the task ends, and the other one leaves.
    await street.stop_looking(a)
    go_on.set()
    await b.reaches(task.id, S.COMPLETED)
    street.houses.remove(b)
    await b.stop()
    await within(a.store.renew())
    if not a.store.knows_all:
        await within(a.engine.look())
    assert (await within(reading)).events[-1].status.state is S.COMPLETED  # type: ignore[union-attr]


# Receivers of replies


class Desk:
    """Delivers nothing."""

    def check(self, config: PushConfig) -> None: ...

    def add(self, push: Push) -> None: ...

    def drop(self, push: Push) -> None: ...


async def test_a_reply_with_a_receiver_leaves_nobody_waiting(house: House, agent: Agent) -> None:
    @agent.skill
    async def replies(text: str, turn: Turn) -> Message:
        return turn.reply(text)

    await house.start(agent)
    await house.engine.stop()
    house._engine = Engine(agent, house.store, Settings(), postings=Desk())
    for _ in range(3):
        push = PushConfig("https://example.com/")
        operation = ops.SendMessage(message=message("hi"), push=push)
        assert isinstance(await within(house.engine.answer(Call(operation=operation))), Message)
    await turns()
    assert not house.engine._live._background and not house.engine._live._workers


# Limits


async def test_a_task_whose_log_is_at_its_limit_can_be_canceled(house: House, agent: Agent) -> None:
    is_said = asyncio.Event()

    @agent.skill
    async def says(text: str, turn: Turn) -> None:
        for n in range(7):
            await turn.say(str(n))
        is_said.set()
        await asyncio.Event().wait()

    await house.start(agent, max_events=10)
    task = await house.send("hi", wait=False)
    await within(is_said.wait())
    assert (await house.cancel(task.id)).status.state is S.CANCELED


async def test_no_more_messages_wait_for_a_task_than_may_when_they_come_from_elsewhere(
    street: Street, agent: Agent
) -> None:
    passes = asyncio.Semaphore(0)

    @agent.skill
    async def work(text: str) -> str:
        await passes.acquire()
        return text

    a = await street.open(agent, max_queued_messages=2)
    b = await street.open(agent, max_queued_messages=2)
    task = await a.send("hi", wait=False)
    street.deafen(a)
    told: list[asyncio.Future[Any]] = []

    async def are_left() -> bool:
        return len(await b.store.notes(await b.first_number())) == len(told)

    for text in ("one", "two", "three"):
        told.append(asyncio.ensure_future(b.send(text, task=task.id, wait=False)))
        await eventually(are_left)
    await within(a.engine.sweep())
    await within(asyncio.gather(*told[:2]))
    worker, third = a.engine._live.running(a.scope, task.id), told[2]
    assert worker is not None and worker.queued == 2 and not third.done()
    passes.release()
    await eventually(lambda: worker.queued < 2)
    await within(a.engine.sweep())
    assert "three" in [said.text for said in (await within(third)).history]
    for _ in range(3):
        passes.release()
    await a.reaches(task.id, S.COMPLETED)


async def test_a_task_that_ends_overdue_while_it_is_canceled_is_said_to_be_over(
    gated: House, agent: Agent
) -> None:
    is_begun, go_on = asyncio.Event(), asyncio.Event()

    @agent.skill(deadline=1.0)
    async def works(text: str) -> str:
        is_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # Tidies up at length.
            await go_on.wait()
        return text

    clock = gated.clock = ManualClock()
    await gated.start(agent)
    task = await gated.send("hi", wait=False)
    await within(is_begun.wait())
    clock.move_to(clock.now() + 2_000)
    gated.store.shut()  # type: ignore[attr-defined]
    await gated.engine.sweep()
    canceling = asyncio.ensure_future(gated.cancel(task.id))
    await turns()
    gated.store.lift()  # type: ignore[attr-defined]
    with pytest.raises(TaskNotCancelable):
        await within(canceling)
    go_on.set()
    assert (await gated.get(task.id)).status.state is S.FAILED


async def test_code_that_never_decides_whether_it_replies_ends_at_its_deadline(
    house: House, agent: Agent
) -> None:
    @agent.skill(deadline=0.05)
    async def ponders(text: str, turn: Turn) -> Message | str:
        await asyncio.Event().wait()
        return text

    await house.start(agent)
    task = await house.send("hi")
    assert task.status.state is S.FAILED
    assert task.status.message is not None
    assert task.status.message.text == "The task did not end in time."
