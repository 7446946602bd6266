"""Steps of code that dies and runs again: what is done is not done twice."""

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Turn
from dragoman.authoring.steps import MAX_RESULT_BYTES
from dragoman.model.events import StepKind
from dragoman.model.task import TaskState
from tests.authoring.durable.world import World, leave, made, recorded, results
from tests.engine.engines import House, sentence

S = TaskState


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
    both = threading.Barrier(2, timeout=60)

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
