"""Code that dies and runs again: what it finished is not done twice, what it waited for it still
waits for, and code that changed in between is refused."""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from engine.house import House, eventually, house_over, within

from dragoman import Agent, TaskFailed, Turn
from dragoman.errors import ConfigError, UnsupportedOperation
from dragoman.model.events import StepKind, StepRecorded
from dragoman.model.identity import Scope
from dragoman.model.task import Task, TaskState
from dragoman.server.results import MAX_RESULT_BYTES
from dragoman.testing.clock import ManualClock

S = TaskState
DAY = 86_400_000
# Those of the present test.
AGENTS: list[Agent] = []


@asynccontextmanager
async def kept(house: House) -> AsyncIterator[House]:
    """Stop a house at the end, and the threads of its agents."""
    AGENTS.clear()
    yield house
    await house.stop()
    # Code that lost its task in a thread ends before its loop does.
    for agent in AGENTS:
        if agent.threads is not None:
            await within(asyncio.to_thread(agent.threads.shutdown))


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with kept(house_over(request.param, tmp_path)) as house:
        yield house


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[House]:
    """For what has nothing to do with how the log is kept."""
    async with kept(house_over("memory", tmp_path)) as house:
        yield house


class World:
    """What lies outside the agent: deeds that were done, and gates that code waits at."""

    def __init__(self) -> None:
        self.deeds: list[str] = []
        self.reached = threading.Semaphore(0)
        self.gate = threading.Event()
        self.opened = asyncio.Event()

    def do(self, deed: str) -> str:
        self.deeds.append(deed)
        return f"{deed} done"

    async def do_async(self, deed: str) -> str:
        await asyncio.sleep(0)
        return self.do(deed)

    async def stop_here(self) -> None:
        self.reached.release()
        await self.opened.wait()

    def stop_here_in_thread(self) -> None:
        self.reached.release()
        assert self.gate.wait(20)

    async def is_reached(self) -> None:
        """Wait until code stands at the gate."""
        await eventually(lambda: self.reached.acquire(blocking=False))

    def open(self) -> None:
        self.opened.set()
        self.gate.set()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    # No thread is left behind at the gate.
    world.open()


def made(function: Callable[..., Any], **options: Any) -> Agent:
    agent = Agent("Tester", "Is tested.")
    agent.skill(id="work", **options)(function)
    AGENTS.append(agent)
    return agent


def sentence(task: Task) -> str:
    return task.status.message.text if task.status.message else ""


def results(task: Task) -> list[Any]:
    return [part.text for artifact in task.artifacts for part in artifact.parts]


async def recorded(house: House, task: Task) -> list[tuple[StepKind, int, str]]:
    """Return the steps in a task's log."""
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    events = [r.event for r in await house.store.read(head.number, after=0, limit=1000)]
    return [(e.kind, e.index, e.name) for e in events if isinstance(e, StepRecorded)]


async def leave(house: House, how: str, agent: Agent | None = None, **settings: Any) -> None:
    """End the process one way or the other, and begin the next."""
    if how == "killed":
        await house.restart(agent, **settings)
    else:
        before = agent or house._agent
        await house.stop()
        await house.start(before, **settings)


# Steps


def skills(world: World) -> dict[str, Callable[..., Any]]:
    """Three steps with a gate before the last, in each way to write them."""

    async def work(text: str, turn: Turn) -> str:
        first = await turn.step("reserve", world.do_async, "reserve")
        second = await turn.step("charge", world.do, deed="charge")
        await world.stop_here()
        third = await turn.step("ship", world.do, "ship")
        return f"{first}, {second}, {third} at {turn.attempt}"

    def plain(text: str, turn: Any) -> str:
        first = turn.step("reserve", world.do_async, "reserve")
        second = turn.step("charge", world.do, deed="charge")
        world.stop_here_in_thread()
        third = turn.step("ship", world.do, "ship")
        return f"{first}, {second}, {third} at {turn.attempt}"

    return {"async": work, "plain": plain}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(("how", "attempt"), [("killed", 2), ("ended", 1)])
async def test_a_step_that_is_done_is_not_done_again(
    house: House, world: World, kind: str, how: str, attempt: int
) -> None:
    await house.start(made(skills(world)[kind]))
    task = await house.send("go", wait=False)
    await world.is_reached()
    assert world.deeds == ["reserve", "charge"]
    await leave(house, how)
    await world.is_reached()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == [f"reserve done, charge done, ship done at {attempt}"]
    assert world.deeds == ["reserve", "charge", "ship"]


async def test_a_step_is_recorded_before_the_code_goes_on(house: House, world: World) -> None:
    await house.start(made(skills(world)["async"]))
    task = await house.send("go", wait=False)
    await world.is_reached()
    assert await recorded(house, task) == [
        (StepKind.STEP, 0, "reserve"),
        (StepKind.STEP, 1, "charge"),
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_that_was_under_way_is_done_again(
    house: House, world: World, kind: str
) -> None:
    def charge() -> str:
        world.do("charge")
        if len(world.deeds) == 1:
            world.stop_here_in_thread()
        return "charged"

    async def work(text: str, turn: Turn) -> str:
        return await turn.step("charge", charge)

    def plain(text: str, turn: Any) -> str:
        return turn.step("charge", charge)

    await house.start(made(work if kind == "async" else plain))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["charged"] and world.deeds == ["charge", "charge"]
    # What comes of the first one in the end is void.
    world.open()
    assert await recorded(house, task) == [(StepKind.STEP, 0, "charge")]


async def test_code_in_a_thread_that_lost_its_task_begins_no_further_step(
    house: House, world: World
) -> None:
    ended = threading.Semaphore(0)

    def work(text: str, turn: Any) -> str:
        try:
            world.stop_here_in_thread()
            return turn.step("charge", world.do, "charge")
        finally:
            ended.release()

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    await world.is_reached()
    world.open()
    await house.reaches(task.id, S.COMPLETED)
    for _ in range(2):
        await eventually(lambda: ended.acquire(blocking=False))
    assert world.deeds == ["charge"]


@dataclasses.dataclass
class Receipt:
    number: int
    at: datetime


async def test_a_result_has_its_type_the_first_time_and_every_time(
    house: House, world: World
) -> None:
    seen: list[Any] = []
    made_at = datetime(2026, 1, 2, tzinfo=UTC)

    async def pay() -> Receipt:
        return Receipt(7, made_at)

    async def work(text: str, turn: Turn) -> None:
        seen.append(await turn.step("pay", pay))
        seen.append(await turn.step("nothing", world.deeds.clear))
        await world.stop_here()

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    world.open()
    await house.reaches(task.id, S.COMPLETED)
    assert seen == [Receipt(7, made_at), None] * 2


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (object(), "TypeError: step charge: its result cannot be kept as JSON"),
        (float("nan"), "TypeError: step charge: its result cannot be kept as JSON"),
        ("x" * MAX_RESULT_BYTES, "ValueError: step charge: its result has"),
    ],
    ids=["object", "nan", "large"],
)
async def test_a_result_that_cannot_be_kept_is_an_incident(
    quick: House, kind: str, value: Any, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    house = quick

    async def work(text: str, turn: Turn) -> None:
        await turn.step("charge", lambda: value)

    def plain(text: str, turn: Any) -> None:
        turn.step("charge", lambda: value)

    await house.start(made(work if kind == "async" else plain))
    with caplog.at_level(logging.ERROR, "dragoman"):
        task = await house.send("go")
    assert task.status.state is S.FAILED
    assert sentence(task).startswith("The agent failed. Incident ")
    assert cause in caplog.text
    assert await recorded(house, task) == []


async def test_a_result_that_is_not_of_its_annotated_type_is_an_incident(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> int:
        return "many"  # type: ignore[return-value]  # the mistake under test

    async def work(text: str, turn: Turn) -> None:
        await turn.step("count", count)

    await house.start(made(work))
    task = await house.send("go")
    assert task.status.state is S.FAILED and "the result of step count" in caplog.text
    assert await recorded(house, task) == []


async def test_steps_beside_each_other_are_each_done_once(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> str:
        names = ("a", "b", "c")
        # They end in another order than they begin.
        done = await asyncio.gather(
            turn.step("a", world.do, "a"),
            turn.step("b", world.do_async, "b"),
            turn.step("c", world.do, "c"),
        )
        assert done == [f"{name} done" for name in names]
        await world.stop_here()
        return " ".join(done)

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    world.open()
    await house.reaches(task.id, S.COMPLETED)
    assert sorted(world.deeds) == ["a", "b", "c"]


async def test_of_steps_beside_each_other_only_those_under_way_are_done_again(
    house: House, world: World
) -> None:
    async def slow() -> str:
        world.do("slow")
        await world.stop_here()
        return "slow done"

    async def work(text: str, turn: Turn) -> str:
        both = await asyncio.gather(turn.step("slow", slow), turn.step("fast", world.do, "fast"))
        return " ".join(both)

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()

    async def is_recorded() -> bool:
        return await recorded(house, task) == [(StepKind.STEP, 1, "fast")]

    await eventually(is_recorded)
    await house.restart()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["slow done fast done"]
    assert sorted(world.deeds) == ["fast", "slow", "slow"]


async def test_an_exception_is_not_recorded_and_the_step_is_done_again(
    house: House, world: World
) -> None:
    def flaky() -> str:
        world.do("flaky")
        if len(world.deeds) == 1:
            raise OSError("not today")
        return "fine"

    async def work(text: str, turn: Turn) -> str:
        try:
            found = await turn.step("flaky", flaky)
        except OSError:
            await world.stop_here()
            found = "failed"
        return found

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["fine"] and world.deeds == ["flaky", "flaky"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_may_be_tried_until_it_succeeds(house: House, world: World, kind: str) -> None:
    def flaky() -> str:
        world.do("flaky")
        if len(world.deeds) < 3:
            raise OSError("not today")
        return "fine"

    async def work(text: str, turn: Turn) -> str:
        for _ in range(3):
            try:
                await turn.step("flaky", flaky)
                break
            except OSError:
                await turn.say("again")
        await turn.step("after", world.do, "after")
        await world.stop_here()
        return "done"

    def plain(text: str, turn: Any) -> str:
        for _ in range(3):
            try:
                turn.step("flaky", flaky)
                break
            except OSError:
                turn.say("again")
        turn.step("after", world.do, "after")
        world.stop_here_in_thread()
        return "done"

    await house.start(made(work if kind == "async" else plain))
    task = await house.send("go", wait=False)
    await world.is_reached()
    await house.restart()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["done"] and world.deeds == ["flaky"] * 3 + ["after"]


async def test_steps_of_plain_functions_need_no_thread_but_their_own(
    house: House, world: World
) -> None:
    both = threading.Barrier(2, timeout=10)

    def work(text: str, turn: Any) -> str:
        # Both threads there are hold a task by now.
        both.wait()
        turn.step("plain", world.do, text)
        return turn.step("async", world.do_async, text)

    agent = made(work)
    await house.start(agent)
    agent.threads = ThreadPoolExecutor(2)
    done = await within(asyncio.gather(house.send("a"), house.send("b")))
    assert sorted(results(task)[0] for task in done) == ["a done", "b done"]


async def test_a_plain_step_of_async_code_runs_in_a_thread_of_its_agent(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        return await turn.step("where", lambda: threading.current_thread().name)

    agent = made(work)
    await house.start(agent)
    agent.threads = ThreadPoolExecutor(1, "agent-tester")
    # By this name a process that ends knows whom it need not wait for.
    assert results(await house.send("go")) == ["agent-tester_0"]


async def test_what_was_said_before_a_step_is_not_said_again(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> None:
        await turn.say("begun")
        await turn.step("charge", world.do, "charge")
        await turn.say(f"charged at {turn.attempt}")
        await world.stop_here()

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()

    async def is_said() -> bool:
        return sentence(await house.get(task.id)) == "charged at 1"

    await eventually(is_said)
    await house.restart()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    said = [message.text for message in done.history]
    assert said == ["go", "begun", "charged at 1", "charged at 2"]


async def test_a_further_message_begins_with_no_steps_done(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> str:
        done = await turn.step("note", world.do, text)
        await world.stop_here()
        return done

    await house.start(made(work))
    task = await house.send("one", wait=False)
    await world.is_reached()
    await house.send("two", task=task.id, wait=False)
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["one done", "two done"] and world.deeds == ["one", "two"]


async def test_after_a_crash_in_a_later_turn_the_earlier_one_is_not_run_again(
    house: House, world: World
) -> None:
    begun: list[str] = []

    async def work(text: str, turn: Turn) -> str:
        begun.append(text)
        done = await turn.step("note", world.do, text)
        if text == "two":
            await world.stop_here()
        else:
            await eventually(lambda: turn._worker.queued)
        return done

    await house.start(made(work))
    task = await house.send("one", wait=False)
    await house.send("two", task=task.id, wait=False)
    await world.is_reached()
    await house.restart()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert begun == ["one", "two", "two"] and world.deeds == ["one", "two"]
    assert results(done) == ["one done", "two done"]


# Code that changes


async def before(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("charge", str, "c")
    await asyncio.Event().wait()
    return "never"


async def renamed(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("bill", str, "c")
    return "silent"


async def inserted(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("check", str, "x")
    await turn.step("charge", str, "c")
    return "silent"


async def removed(text: str, turn: Turn) -> str:
    await turn.step("charge", str, "c")
    return "silent"


async def cut(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    return "silent"


async def completes(text: str, turn: Turn) -> str:
    turn.complete("silent")


async def rejects(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    turn.reject("not any more")


async def sleeps(text: str, turn: Turn) -> str:
    await turn.sleep(0, name="reserve")
    return "silent"


async def asks(text: str, turn: Turn) -> str:
    await turn.ask("Well?")
    return "silent"


async def swallows(text: str, turn: Turn) -> str:
    for name in ("bill", "refund", "beyond what is recorded"):
        try:
            await turn.step(name, TOUCHED.append, name)
        except TaskFailed:
            await turn.say("never mind")
    return "silent"


async def hides(text: str, turn: Turn) -> str:
    try:
        await turn.step("bill", str, "c")
    except Exception as error:
        raise RuntimeError("something else") from error
    return "silent"


async def swallows_and_rejects(text: str, turn: Turn) -> str:
    try:
        await turn.step("bill", str, "c")
    except Exception:
        turn.reject("sorry")
    return "silent"


def in_thread(text: str, turn: Any) -> str:
    turn.step("reserve", str, "r")
    turn.step("bill", str, "c")
    return "silent"


async def yields(text: str, turn: Turn) -> AsyncIterator[str]:
    yield "chunk"
    await turn.step("bill", str, "c")


def yields_in_thread(text: str, turn: Any) -> Iterator[str]:
    yield "chunk"
    turn.step("bill", str, "c")


def a_number() -> int:
    return 1


async def retyped(text: str, turn: Turn) -> str:
    await turn.step("reserve", a_number)
    return "silent"


# What code that is refused did all the same.
TOUCHED: list[str] = []


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (renamed, 'step 2 was step "charge" and is step "bill"'),
        (inserted, 'step 2 was step "charge" and is step "check"'),
        (removed, 'step 1 was step "reserve" and is step "charge"'),
        (cut, 'step 2 was step "charge" and is not reached any more'),
        (completes, 'step 1 was step "reserve" and is not reached any more'),
        (rejects, 'step 2 was step "charge" and is not reached any more'),
        (sleeps, 'step 1 was step "reserve" and is sleep "reserve"'),
        (asks, 'step 1 was step "reserve" and is ask'),
        (swallows, 'step 1 was step "reserve" and is step "bill"'),
        (hides, 'step 1 was step "reserve" and is step "bill"'),
        (swallows_and_rejects, 'step 1 was step "reserve" and is step "bill"'),
        (in_thread, 'step 2 was step "charge" and is step "bill"'),
        (yields, 'step 1 was step "reserve" and is step "bill"'),
        (yields_in_thread, 'step 1 was step "reserve" and is step "bill"'),
        (retyped, "the result of step reserve does not fit"),
    ],
    ids=lambda value: getattr(value, "__name__", "difference"),
)
async def test_code_that_changed_fails_its_task_with_the_difference(
    quick: House, after: Callable[..., Any], difference: str
) -> None:
    house = quick
    await house.start(made(before))
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 2

    await eventually(is_recorded)
    await house.restart(made(after))
    failed = await house.reaches(task.id, S.FAILED)
    start = "The agent's code changed while the task was under way: "
    assert sentence(failed).startswith(start + difference), sentence(failed)
    assert len(await recorded(house, task)) == 2 and TOUCHED == []


async def test_code_may_change_after_what_is_recorded(house: House, world: World) -> None:
    async def longer(text: str, turn: Turn) -> str:
        await turn.say("an inserted word")
        await turn.step("reserve", str, "r")
        await turn.step("charge", str, "c")
        return await turn.step("ship", world.do, "ship")

    await house.start(made(before))
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 2

    await eventually(is_recorded)
    await house.restart(made(longer))
    assert results(await house.reaches(task.id, S.COMPLETED)) == ["ship done"]


async def test_a_question_that_became_a_step_fails_its_task(house: House) -> None:
    await house.start(made(asks))
    task = await house.send("go")
    assert task.status.state is S.INPUT_REQUIRED
    await house.restart(made(removed))
    # The code is refused before it can be given the answer.
    with pytest.raises(UnsupportedOperation, match="The task has ended"):
        await house.send("yes", task=task.id)
    failed = await house.reaches(task.id, S.FAILED)
    assert 'step 1 was ask and is step "charge"' in sentence(failed)


# Questions


def questions(world: World, kind: str) -> Callable[..., Any]:
    async def work(amount: int, turn: Turn) -> str:
        await turn.say("thinking")
        await turn.step("look up", world.do, "look up")
        sure = await turn.ask(f"Pay {amount}?")
        assert turn.message is sure
        token = await turn.authorize("A token, please.")
        done = await turn.step("pay", world.do, f"pay with {token.text}")
        return f"{sure.text}: {done} in attempt {turn.attempt}"

    def plain(amount: int, turn: Any) -> str:
        turn.say("thinking")
        turn.step("look up", world.do, "look up")
        sure = turn.ask(f"Pay {amount}?")
        token = turn.authorize("A token, please.")
        done = turn.step("pay", world.do, f"pay with {token.text}")
        return f"{sure.text}: {done} in attempt {turn.attempt}"

    return work if kind == "async" else plain


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("how", ["killed", "ended"])
async def test_questions_outlive_the_process_that_asked_them(
    house: House, world: World, kind: str, how: str
) -> None:
    await house.start(made(questions(world, kind)))
    task = await house.send("100")
    assert task.status.state is S.INPUT_REQUIRED and sentence(task) == "Pay 100?"
    for _ in range(3):
        await leave(house, how)
        waiting = await house.get(task.id)
        assert waiting.status == task.status
    # No amount: were it taken for the beginning of a turn, it would be refused.
    asked = await house.send("yes", task=task.id)
    assert asked.status.state is S.AUTH_REQUIRED and sentence(asked) == "A token, please."
    await leave(house, how)
    done = await house.send("t0ken", task=task.id)
    assert results(done) == ["yes: pay with t0ken done in attempt 1"]
    assert world.deeds == ["look up", "pay with t0ken"]
    said = [message.text for message in done.history]
    assert said == ["100", "thinking", "Pay 100?", "yes", "A token, please.", "t0ken"]


async def test_an_answer_given_before_the_crash_is_the_answer_after_it(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        await world.stop_here()
        return f"{answer.text} at {turn.attempt}"

    await house.start(made(work))
    task = await house.send("go")
    await house.send("yes", task=task.id, wait=False)
    await world.is_reached()
    await house.restart()
    await world.is_reached()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["yes at 2"]
    assert [message.text for message in done.history] == ["go", "Sure?", "yes"]


async def test_many_questions_are_answered_over_as_many_processes(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        answers = [(await turn.ask(f"{n}?")).text for n in range(5)]
        return " ".join(answers)

    await house.start(made(work))
    task = await house.send("go")
    for n in range(5):
        assert task.status.state is S.INPUT_REQUIRED and sentence(task) == f"{n}?"
        await house.restart()
        task = await house.send(f"a{n}", task=task.id)
    assert results(task) == ["a0 a1 a2 a3 a4"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_questions_beside_each_other_are_answered_in_their_order(
    house: House, restarts: bool
) -> None:
    async def work(number: int, turn: Turn) -> str:
        first, second = await asyncio.gather(turn.ask("First?"), turn.authorize("Second?"))
        return f"{first.text} {second.text}"

    await house.start(made(work))
    task = await house.send("1")
    assert task.status.state is S.AUTH_REQUIRED
    if restarts:
        await house.restart()
    task = await house.send("one", task=task.id)
    # The one that is left stands again.
    assert task.status.state is S.AUTH_REQUIRED and sentence(task) == "Second?"
    if restarts:
        await house.restart()
    task = await house.send("two", task=task.id)
    assert results(task) == ["one two"]


async def test_a_question_may_be_given_up(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        try:
            answer = await asyncio.wait_for(turn.ask("Quick?"), 0.01)
        except TimeoutError:
            answer = await turn.ask("Take your time?")
        return answer.text

    await house.start(made(work))
    task = await house.send("go")
    task = await house.reaches(task.id, S.INPUT_REQUIRED)

    async def is_asked_again() -> bool:
        return sentence(await house.get(task.id)) == "Take your time?"

    await eventually(is_asked_again)
    assert results(await house.send("fine", task=task.id)) == ["fine"]


async def test_a_question_that_is_given_up_leaves_one_beside_it_alone(house: House) -> None:
    given_up = asyncio.Event()

    async def quick(turn: Turn) -> None:
        try:
            await asyncio.wait_for(turn.ask("Quick?"), 0.01)
        except TimeoutError:
            given_up.set()

    async def work(text: str, turn: Turn) -> str:
        answer, _ = await asyncio.gather(turn.ask("Slow?"), quick(turn))
        return answer.text

    await house.start(made(work))
    task = await house.send("go")
    await within(given_up.wait())
    assert results(await house.send("fine", task=task.id)) == ["fine"]


async def test_what_is_said_beside_a_question_does_not_answer_it(house: House) -> None:
    tick = asyncio.Event()

    async def work(number: int, turn: Turn) -> str:
        async def remind() -> None:
            await tick.wait()
            await turn.say("still waiting")

        answer, _ = await asyncio.gather(turn.ask("Well?"), remind())
        await turn.say("going on")
        return answer.text

    await house.start(made(work))
    task = await house.send("1")
    tick.set()

    async def is_said() -> bool:
        return sentence(await house.get(task.id)) == "still waiting"

    await eventually(is_said)
    assert (await house.get(task.id)).status.state is S.INPUT_REQUIRED
    # No number: taken for anything but the answer, it would be refused.
    done = await house.send("yes", task=task.id)
    assert results(done) == ["yes"] and done.status.state is S.COMPLETED


# Sleep


def clocked(house: House) -> ManualClock:
    house.clock = clock = ManualClock(time.time_ns() // 1_000_000)
    return clock


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_sleep_of_days_ends_when_it_would_have_and_uses_up_no_attempts(
    house: House, world: World, kind: str
) -> None:
    clock = clocked(house)
    began = clock.now()

    async def work(text: str, turn: Turn) -> str:
        await turn.step("order", world.do, "order")
        await turn.sleep(timedelta(days=3))
        return f"{clock.now() - began} {turn.attempt}"

    def plain(text: str, turn: Any) -> str:
        turn.step("order", world.do, "order")
        turn.sleep(timedelta(days=3))
        return f"{clock.now() - began} {turn.attempt}"

    await house.start(made(work if kind == "async" else plain), max_attempts=2)
    task = await house.send("go", wait=False)
    await eventually(lambda: clock.waiting)
    for day in range(1, 6):
        clock.move_to(began + day * DAY // 2)
        assert clock.waiting
        await house.restart()
        await eventually(lambda: clock.waiting)
    assert (await house.get(task.id)).status.state is S.WORKING
    clock.move_to(began + 3 * DAY)
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == [f"{3 * DAY} 6"] and world.deeds == ["order"]


async def test_a_sleep_that_ended_while_nobody_was_there_is_over(house: House) -> None:
    clock = clocked(house)

    async def work(text: str, turn: Turn) -> str:
        await turn.sleep(60)
        return "woken"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await eventually(lambda: clock.waiting)
    await house.die()
    clock.move_to(clock.now() + DAY)
    await house.start(house._agent)
    await house.reaches(task.id, S.COMPLETED)
    assert clock.waiting == 0


async def test_code_that_dies_awake_is_given_up_after_its_attempts(house: House) -> None:
    async def work(text: str, turn: Turn) -> None:
        await turn.sleep(0)
        await asyncio.Event().wait()

    await house.start(made(work), max_attempts=2)
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 1

    await eventually(is_recorded)
    await house.restart()
    assert (await house.get(task.id)).status.state is S.WORKING
    await house.restart()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 2 attempts."


async def test_every_step_gives_the_code_its_attempts_anew(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> str:
        for n in range(4):
            await turn.step(f"step {n}", world.do, str(n))
            if turn.attempt == n + 1:
                await world.stop_here()
        return f"{turn.attempt} attempts"

    await house.start(made(work), max_attempts=2)
    task = await house.send("go", wait=False)
    for _ in range(4):
        await world.is_reached()
        await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["5 attempts"] and world.deeds == ["0", "1", "2", "3"]


# Deadlines


async def test_a_deadline_ends_code_that_runs(house: House, world: World) -> None:
    clock = clocked(house)
    stopped = asyncio.Event()

    async def work(text: str, turn: Turn) -> None:
        try:
            await world.stop_here()
        finally:
            stopped.set()

    await house.start(made(work, deadline=60))
    task = await house.send("go", wait=False)
    await world.is_reached()
    clock.move_to(clock.now() + 50_000)
    await house.engine.sweep()
    assert (await house.get(task.id)).status.state is S.WORKING
    clock.move_to(clock.now() + 20_000)
    await house.engine.sweep()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The task did not end in time."
    await within(stopped.wait())


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_deadline_ends_code_that_waits_even_over_a_restart(house: House, kind: str) -> None:
    clock = clocked(house)

    async def work(text: str, turn: Turn) -> None:
        await turn.ask("Well?")

    def plain(text: str, turn: Any) -> None:
        turn.ask("Well?")

    skill = work if kind == "async" else plain
    await house.start(made(skill, deadline=timedelta(days=2)))
    early, late = await house.send("go"), await house.send("go")
    await house.restart()
    clock.move_to(clock.now() + DAY)
    await house.engine.sweep()
    assert (await house.send("yes", task=early.id)).status.state is S.COMPLETED
    clock.move_to(clock.now() + 2 * DAY)
    await house.engine.sweep()
    failed = await house.reaches(late.id, S.FAILED)
    assert sentence(failed) == "The task did not end in time."
    assert (await house.get(early.id)).status.state is S.COMPLETED


async def test_code_knows_its_deadline_and_it_stays_the_same(house: House, world: World) -> None:
    clock = clocked(house)
    seen: list[datetime | None] = []

    async def work(text: str, turn: Turn) -> None:
        seen.append(turn.deadline)
        await world.stop_here()

    await house.start(made(work, deadline=3600))
    began = clock.now()
    task = await house.send("go", wait=False)
    await world.is_reached()
    clock.move_to(began + 600_000)
    await house.restart()
    await world.is_reached()
    world.open()
    await house.reaches(task.id, S.COMPLETED)
    first, second = seen
    assert first is not None and first == second
    # The store's day and the clock's begin within the same few seconds.
    assert abs(first.timestamp() * 1000 - began - 3_600_000) < 30_000


async def test_code_without_a_deadline_has_none(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        return str(turn.deadline)

    await house.start(made(work))
    assert results(await house.send("go")) == ["None"]


@pytest.mark.parametrize("deadline", [0, -1, timedelta(0)])
def test_a_deadline_lies_in_the_future(deadline: Any) -> None:
    with pytest.raises(ConfigError, match="a deadline lies in the future"):
        made(lambda text: text, deadline=deadline)


# Artifacts


async def test_what_a_dead_attempt_produced_is_replaced_and_not_doubled(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        await turn.artifact(f"whole {turn.attempt}", name="whole")
        async with turn.artifact(name="chunks") as chunks:
            for n in range(3):
                await chunks.write(f"{n} of {turn.attempt} ")
                if n == 1:
                    await turn.step("half", world.do, "half")
                    if turn.attempt == 1:
                        await world.stop_here()
        return "result"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    before = await house.get(task.id)
    assert results(before) == ["whole 1", "0 of 1 ", "1 of 1 "]
    await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["whole 2", "0 of 2 ", "1 of 2 ", "2 of 2 ", "result"]
    ids = [artifact.artifact_id for artifact in done.artifacts]
    assert ids[:2] == [artifact.artifact_id for artifact in before.artifacts]
    assert len(set(ids)) == 3


async def test_what_a_dead_generator_yielded_is_replaced(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> AsyncIterator[str]:
        for n in range(3):
            yield f"{n}"
            if n == 1 and turn.attempt == 1:
                # Chunks are written behind the code; a step waits for them.
                await turn.step("wait", world.do, "wait")
                await world.stop_here()
        await turn.step("wait", world.do, "wait")

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    assert "".join(results(await house.get(task.id))) == "01"
    await house.restart()
    assert "".join(results(await house.reaches(task.id, S.COMPLETED))) == "012"


async def test_two_tasks_and_two_turns_have_artifacts_of_their_own(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        await eventually(lambda: text != "one" or turn._worker.queued)
        return text

    await house.start(made(work))
    task = await house.send("one", wait=False)
    await house.send("two", task=task.id, wait=False)
    both = await house.reaches(task.id, S.COMPLETED)
    other = await house.send("three")
    ids = {a.artifact_id for t in (both, other) for a in t.artifacts}
    assert results(both) == ["one", "two"] and len(ids) == 3


# Cancelling


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("where", ["step", "sleep", "ask"])
async def test_a_cancel_reaches_code_that_waits(
    house: House, world: World, where: str, kind: str, restarts: bool
) -> None:
    async def forever() -> None:
        await world.stop_here()

    async def work(text: str, turn: Turn) -> None:
        await turn.step("first", world.do, "first")
        world.reached.release()
        deed: dict[str, Callable[[], Awaitable[Any]]] = {
            "step": lambda: turn.step("second", forever),
            "sleep": lambda: turn.sleep(timedelta(days=1)),
            "ask": lambda: turn.ask("Well?"),
        }
        await deed[where]()
        world.do("went on")

    def plain(text: str, turn: Any) -> None:
        turn.step("first", world.do, "first")
        world.reached.release()
        deed: dict[str, Callable[[], Any]] = {
            "step": lambda: turn.step("second", forever),
            "sleep": lambda: turn.sleep(timedelta(days=1)),
            "ask": lambda: turn.ask("Well?"),
        }
        deed[where]()
        world.do("went on")

    # Longer than any wait of the test: code that does not hear of the cancel is not saved by it.
    await house.start(made(work if kind == "async" else plain), cancel_grace=30)
    task = await house.send("go", wait=False)
    await world.is_reached()
    expected = S.INPUT_REQUIRED if where == "ask" else S.WORKING
    await house.reaches(task.id, expected)
    if restarts:
        await house.restart()
    assert (await house.cancel(task.id)).status.state is S.CANCELED
    assert world.deeds == ["first"]


# Steps that fail


class Flaky(Exception):
    """What an agent's own code may raise and catch."""


async def test_code_that_went_on_from_a_failure_goes_the_same_way_again(house: House) -> None:
    agent, world = Agent("Fallback", "Has another way."), World()
    AGENTS.append(agent)

    async def primary() -> str:
        world.do("primary")
        raise Flaky("not today")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        try:
            done = await turn.step("primary", primary)
        except Flaky as error:
            done = f"{error}, {await turn.step('fallback', world.do_async, 'fallback')}"
        await turn.step("wait", world.stop_here)
        return done

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await house.restart()
    world.gate.set()
    world.opened.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "not today, fallback done"
    assert world.deeds == ["primary", "fallback"]


async def test_a_step_that_ran_out_of_time_does_so_again(quick: House) -> None:
    agent, world = Agent("Patient", "Not for ever."), World()
    AGENTS.append(agent)

    async def endless() -> None:
        world.do("endless")
        await asyncio.Event().wait()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        try:
            await asyncio.wait_for(turn.step("endless", endless), 0.05)
        except TimeoutError:
            await turn.step("instead", world.do_async, "instead")
        await turn.step("wait", world.stop_here)
        return "done"

    await quick.start(agent)
    task = await quick.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await quick.restart()
    world.gate.set()
    world.opened.set()
    await quick.reaches(task.id, S.COMPLETED)
    assert world.deeds == ["endless", "instead"]


async def test_a_step_that_failed_is_tried_again_under_its_name(quick: House) -> None:
    agent, world = Agent("Stubborn", "Tries again."), World()
    AGENTS.append(agent)

    async def flaky() -> str:
        world.do("try")
        if len(world.deeds) < 3:
            raise Flaky
        return "at last"

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        while True:
            try:
                done = await turn.step("flaky", flaky)
                break
            except Flaky:
                await turn.sleep(0)
        await turn.step("wait", world.stop_here)
        return done

    await quick.start(agent)
    task = await quick.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await quick.restart()
    world.gate.set()
    world.opened.set()
    done = await quick.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "at last"
    assert world.deeds == ["try"] * 3
