"""What a process leaves behind when it ends, and what the next one makes of it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.model import operations as ops
from dragoman.model.events import AttemptStarted, CancelRequested, MessageAdded, ScopesGranted
from dragoman.model.identity import Caller
from dragoman.model.task import Task, TaskState
from dragoman.service import Call
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock
from tests.engine.engines import House, Street, house_over, message, sentence, state

S = TaskState
HOUR = 3_600_000


def is_written(house: House) -> bool:
    return all(log.is_idle for log in house.engine._live._logs.values())


async def stored(house: House, place: int = 1) -> list[Any]:
    """Return the log of a task, by its place among those of its store."""
    number = await house.first_number() + place - 1
    return [recorded.event for recorded in await house.store.read(number, after=0, limit=1000)]


# Reading


async def test_the_log_of_a_task_is_asked_for_twice_and_its_end_not_at_all(
    house: House, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row says where it ends: a takeover of a thousand tasks is not made of questions for
    events that are not there."""
    runs, asked = list[int](), list[int]()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        runs.append(turn.attempt)
        await turn.say("here")
        return await asyncio.get_running_loop().create_future()

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await eventually(lambda: runs and is_written(house))
    await house.stop()
    read = type(house.store).read

    async def counted(store: Any, number: int, **options: Any) -> Any:
        asked.append(options["after"])
        return await read(store, number, **options)

    monkeypatch.setattr(type(house.store), "read", counted)
    assert await house.start(agent) == 1
    await eventually(lambda: len(runs) == 2)
    assert asked == [0, 0], task.id


# Attempts


async def test_stopping_in_good_order_is_no_attempt(house: House, agent: Agent) -> None:
    runs, go_on = list[int](), asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        runs.append(turn.attempt)
        await turn.say("here")
        await go_on.wait()
        return text

    await house.start(agent, max_attempts=2)
    task = await house.send("hi", wait=False)
    for n in range(1, 6):
        await eventually(lambda n=n: len(runs) == n)
        await eventually(lambda: is_written(house))
        await house.stop()
        assert await house.start(agent, max_attempts=2) == 1
    go_on.set()
    await house.reaches(task.id, S.COMPLETED)
    assert runs == [1] * 6


async def test_what_is_being_written_when_a_process_stops_does_not_make_it_look_killed(
    tmp_path: Path, agent: Agent
) -> None:
    """A write after the farewell would hold the task in the name of one who is gone."""
    house, runs, go_on = house_over("sqlite", tmp_path), list[int](), asyncio.Event()
    house.clock = ManualClock()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        runs.append(turn.attempt)
        await go_on.wait()
        for n in range(20):
            await turn.say(f"{n}")
            await asyncio.sleep(0)
        await asyncio.Event().wait()
        return text

    await house.start(agent)
    await house.send("hi", wait=False)
    await eventually(lambda: runs == [1])
    store = house.store
    assert isinstance(store, SQLiteStore)
    log = next(iter(house.engine._live._logs.values()))
    go_on.set()
    # One write is under way, and more waits behind it.
    await eventually(lambda: log._is_writing and log._unwritten.events)
    await house.stop()
    await house.start(agent)
    await eventually(lambda: len(runs) == 2)
    assert runs == [1, 1]
    assert not any(isinstance(event, AttemptStarted) for event in await stored(house))
    await house.stop()


async def test_a_recorded_step_gives_the_code_its_attempts_back(house: House, agent: Agent) -> None:
    """It gets somewhere each time, so nothing speaks against it."""
    done = list[int]()

    async def advance(n: int) -> int:
        done.append(n)
        return n

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        for n in range(5):
            await turn.step(f"{n}", advance, n)
            if len(done) == n + 1 and turn.attempt == n + 1:
                await asyncio.Event().wait()
        return f"{turn.attempt}"

    await house.start(agent, max_attempts=2)
    task = await house.send("hi", wait=False)
    for n in range(1, 6):
        await eventually(lambda n=n: len(done) == n)
        await eventually(lambda: is_written(house))
        assert await house.restart() == 1
    finished = await house.reaches(task.id, S.COMPLETED)
    assert finished.artifacts[-1].parts[0].text == "6"
    assert done == [0, 1, 2, 3, 4]


async def test_dying_while_the_code_sleeps_does_not_count_against_it(
    house: House, agent: Agent
) -> None:
    clock, awake, go_on = ManualClock(), list[int](), asyncio.Event()
    house.clock = clock

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        await turn.sleep(3600.0)
        awake.append(turn.attempt)
        await go_on.wait()
        return f"{turn.attempt}"

    await house.start(agent, max_attempts=2)
    task = await house.send("hi", wait=False)
    for _ in range(5):
        await eventually(lambda: clock.waiting == 1)
        assert await house.restart() == 1
    await eventually(lambda: clock.waiting == 1)
    clock.move_to(clock.now() + HOUR)
    await eventually(lambda: awake == [6])
    # Dying while it works does, and this is the first time.
    assert await house.restart() == 1
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "7"


async def test_an_attempt_is_on_record_before_it_is_made(house: House, agent: Agent) -> None:
    """Else code that takes its process with it at once would be tried for ever."""
    seen, gate = list[list[int]](), asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        events = await stored(house) if turn.attempt > 1 else []
        seen.append([event.attempt for event in events if isinstance(event, AttemptStarted)])
        await gate.wait()
        return text

    await house.start(agent)
    await house.send("hi", wait=False)
    await eventually(lambda: len(seen) == 1)
    await eventually(lambda: is_written(house))
    await house.restart()
    await eventually(lambda: len(seen) == 2)
    assert seen == [[], [2]]
    gate.set()


async def test_code_that_kills_its_process_at_once_is_given_up(house: House, agent: Agent) -> None:
    """Each run ends before anything it does could be written."""
    runs = 0

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        nonlocal runs
        runs += 1
        if runs > 1:
            for worker in house.engine._live._workers.values():
                worker.abandon()
        await asyncio.Event().wait()
        return text

    await house.start(agent, max_attempts=3)
    task = await house.send("hi", wait=False)
    await eventually(lambda: is_written(house))
    for n in (2, 3):
        await house.restart()
        await eventually(lambda n=n: runs == n)
    await house.restart()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 3 attempts."
    assert runs == 3


async def test_a_cancel_that_was_asked_for_before_the_crash_is_done_after_it(
    house: House, agent: Agent
) -> None:
    runs = 0

    @agent.skill
    async def stubborn(text: str) -> str:
        nonlocal runs
        runs += 1
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if house._engine is None or house.engine._live.is_stopped:
                    raise

    await house.start(agent, cancel_grace=60.0)
    task = await house.send("hi", wait=False)
    await eventually(lambda: runs == 1)
    canceling = asyncio.ensure_future(house.cancel(task.id))
    await eventually(lambda: _is_asked(house))
    await house.restart()
    await asyncio.gather(canceling, return_exceptions=True)
    await eventually(lambda: _is(house, task, S.CANCELED))
    assert sentence(await house.get(task.id)) == "The task was canceled."
    assert runs == 1


async def _is_asked(house: House) -> bool:
    return any(isinstance(event, CancelRequested) for event in await stored(house))


async def _is(house: House, task: Task, wanted: TaskState) -> bool:
    return state(await house.get(task.id)) is wanted


# Deadlines


def now_of(house: House) -> ManualClock:
    """Give a house a clock that stands at the present."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    house.clock = clock
    return clock


async def test_a_running_task_fails_at_its_deadline(house: House, agent: Agent) -> None:
    clock, stopped = now_of(house), asyncio.Event()

    @agent.skill(deadline=3600.0)
    async def slow(text: str, turn: Turn) -> str:
        assert turn.deadline is not None
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return text

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await house.engine.sweep()
    assert state(await house.get(task.id)) in (S.SUBMITTED, S.WORKING)
    clock.move_to(clock.now() + 2 * HOUR)
    await house.engine.sweep()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The task did not end in time."
    await within(stopped.wait())
    await eventually(lambda: not house.engine._live._workers)


async def test_a_task_that_waits_fails_at_its_deadline_also_after_a_restart(
    house: House, agent: Agent
) -> None:
    clock = now_of(house)

    @agent.skill(deadline=3600.0)
    async def asks(text: str, turn: Turn) -> str:
        return (await turn.ask("which?")).text

    await house.start(agent)
    task = await house.send("hi")
    assert state(task) is S.INPUT_REQUIRED
    clock.move_to(clock.now() + 2 * HOUR)
    await house.restart()
    await eventually(lambda: _is(house, task, S.FAILED))
    assert sentence(await house.get(task.id)) == "The task did not end in time."
    await eventually(lambda: not house.engine._live._logs)


async def test_tasks_that_ended_in_time_cost_nothing_later(house: House, agent: Agent) -> None:
    clock = now_of(house)

    @agent.skill(deadline=3600.0)
    async def quick(text: str) -> str:
        return text

    await house.start(agent)
    done = [await house.send(f"{n}") for n in range(3)]
    clock.move_to(clock.now() + 2 * HOUR)
    for _ in range(2):
        await house.engine.sweep()
        assert await house.store.overdue("tester", clock.now()) == []
    assert [await house.get(task.id) for task in done] == done


async def test_the_overdue_task_of_a_living_process_is_left_to_it(street: Street) -> None:
    stopped = list[str]()

    def slow(place: str) -> Agent:
        agent = Agent("Slow", "Takes its time.")

        @agent.skill(deadline=3600.0)
        async def work(text: str) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(place)
            return text

        return agent

    a, b = await street.open(slow("a")), await street.open(slow("b"))
    for house in (a, b):
        now_of(house).move_to(1 << 50)
        house.engine._recovery._clock = house.clock
    task = await a.send("hi", wait=False)
    await b.engine.sweep()
    assert not b.engine._live._logs
    assert state(await b.get(task.id)) in (S.SUBMITTED, S.WORKING)
    await a.engine.sweep()
    await eventually(lambda: _is(b, task, S.FAILED))
    await eventually(lambda: stopped == ["a"])


# Letting go


async def test_a_cancel_that_comes_after_the_last_event_leaves_nothing_behind(
    gated: House, agent: Agent
) -> None:
    go_on = asyncio.Event()

    @agent.skill
    async def work(text: str) -> str:
        await go_on.wait()
        return text

    await gated.start(agent)
    task = await gated.send("hi", wait=False)
    await eventually(lambda: is_written(gated))
    gated.store.shut()  # type: ignore[attr-defined]
    go_on.set()
    await eventually(lambda: gated.engine._live.running(gated.scope, task.id) is None)
    canceling = asyncio.ensure_future(gated.cancel(task.id))
    for _ in range(20):
        await asyncio.sleep(0)
    gated.store.lift()  # type: ignore[attr-defined]
    await asyncio.gather(canceling, return_exceptions=True)
    assert state(await gated.get(task.id)) is S.COMPLETED
    kept = gated.engine._live
    await eventually(lambda: not (kept._workers or kept._logs or kept._arriving))


async def test_a_message_that_waited_is_not_lost_over_two_deaths(
    house: House, agent: Agent
) -> None:
    ran, go_on = list[str](), asyncio.Event()

    @agent.skill
    async def held(text: str) -> str:
        ran.append(text)
        await go_on.wait()
        return text

    await house.start(agent)
    task = await house.send("one", wait=False)
    said = message("two", task=task.id)
    await house.send(said, wait=False)
    for n in (2, 3):
        await house.restart()
        await eventually(lambda n=n: ran == ["one"] * n)
        await eventually(lambda: is_written(house))
    # Known by its key as well: the same one again is no third message.
    await house.send(said, wait=False)
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert [m.text for m in done.history] == ["one", "two"]
    assert ran == ["one", "one", "one", "two"]


# Who asks


async def send_as(house: House, said: str, *scopes: str, task: str = "") -> Task:
    operation = ops.SendMessage(message=message(said, task=task), wait=False)
    caller = Caller("ada", True, frozenset(scopes))
    reply: Any = await within(house.engine.answer(Call(operation=operation, caller=caller)))
    return reply.reading.task


async def test_what_a_credential_grants_is_known_to_code_that_runs_again(
    house: House, agent: Agent
) -> None:
    seen: list[list[str]] = []
    go_on = asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        seen.append(sorted(turn.caller.scopes))
        if text == "first":
            await turn.ask("well?")
            seen.append(sorted(turn.caller.scopes))
        await go_on.wait()
        return text

    await house.start(agent)
    task = await send_as(house, "first", "read", "pay")
    await eventually(lambda: len(seen) == 1)
    await send_as(house, "answer", "gold", task=task.id)
    await eventually(lambda: len(seen) == 2)
    await send_as(house, "later", "read", task=task.id)
    await eventually(lambda: is_written(house))
    await house.restart()
    await eventually(lambda: len(seen) == 4)
    go_on.set()
    await eventually(lambda: len(seen) == 5)
    assert seen == [["pay", "read"], ["gold"], ["pay", "read"], ["gold"], ["read"]]
    log = await stored(house)
    assert [event.scopes for event in log if isinstance(event, ScopesGranted)] == [["pay", "read"]]


async def test_a_caller_whose_credential_grants_nothing_leaves_nothing(
    house: House, agent: Agent
) -> None:
    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        return (await turn.ask("well?")).text

    await house.start(agent)
    task = await send_as(house, "first")
    await eventually(lambda: is_written(house))
    await send_as(house, "answer", task=task.id)
    await eventually(lambda: is_written(house))
    log = await stored(house)
    assert not any(isinstance(event, ScopesGranted) for event in log)
    assert [event.scopes for event in log if isinstance(event, MessageAdded)] == [[]]


async def test_no_reader_sees_what_a_credential_grants(house: House, agent: Agent) -> None:
    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        return (await turn.ask("well?")).text

    await house.start(agent)
    task = await send_as(house, "first", "canary")
    reader = house.subscribe(task.id, 1, owner="ada")
    await eventually(lambda: is_written(house))
    await send_as(house, "answer", "canary", task=task.id)
    await reader.rest()
    assert reader.recorded and not any(b"canary" in one.body for one in reader.recorded)
    assert any("canary" in repr(event) for event in await stored(house))
    assert reader.opening is not None and "canary" not in repr(reader.opening)
