"""Runs that are canceled, and those that a crash interrupts."""

import asyncio
from collections import Counter

import pytest
from harness.waiting import eventually, within

from dragoman.config import EngineSettings, Settings
from dragoman.errors import TaskNotCancelable
from dragoman.gateway.workflows.workflows import Workflows
from dragoman.model import operations as ops
from dragoman.model.task import TaskState
from dragoman.service import Call, Reply
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from tests.gateway.workflows.town import OWNER, Town, retrying, statuses, step

# Canceling


async def test_canceling_a_run_cancels_what_is_under_way_and_begins_nothing(town: Town) -> None:
    run = await town.begin(
        step("a"), step("b", skill="hold"), step("c", skill="hold"), step("d", 1)
    )
    await town.reaches(run, "completed", "running", "running", "pending")
    await eventually(lambda: len(town.given) == 3)
    canceled = await within(town.workflows.cancel(OWNER, run.id))
    assert canceled.status == "cancelled"
    assert statuses(canceled) == ["completed", "cancelled", "cancelled", "cancelled"]
    states = Counter(task.status.state for task in await town.tasks())
    assert states == {TaskState.COMPLETED: 1, TaskState.CANCELED: 2}
    assert len(town.given) == 3
    with pytest.raises(TaskNotCancelable):
        await town.workflows.cancel(OWNER, run.id)


async def test_a_task_that_is_being_made_when_its_run_is_canceled_is_canceled_too(
    town: Town,
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def delay(call: Call) -> None:
        if isinstance(call.operation, ops.SendMessage):
            reached.set()
            await go_on.wait()

    town.before = delay
    run = await town.begin(step("a", skill="hold"))
    await within(reached.wait())
    canceling = asyncio.create_task(town.workflows.cancel(OWNER, run.id))
    await asyncio.sleep(0)
    go_on.set()
    assert (await within(canceling)).status == "cancelled"
    assert [task.status.state for task in await town.tasks()] == [TaskState.CANCELED]


async def test_a_run_that_is_canceled_between_two_tries_is_not_tried_again(town: Town) -> None:
    run = await town.begin(step("a", skill="fail", **retrying(5)))
    await town.pauses(run, 1)
    await within(town.workflows.cancel(OWNER, run.id))
    town.clock.move_to(town.clock.now() + 100_000)
    assert len(town.given) == 1


async def test_canceling_a_run_that_no_process_has_cancels_its_tasks(town: Town) -> None:
    run = await town.begin(step("a", skill="hold"))
    await town.reaches(run, "running")
    await eventually(lambda: len(town.given) == 1)
    # As between a crash and the next look at what was left.
    await town.workflows.stop()
    town.workflows = Workflows(
        town.store, town.registry.get, town.service, town.settings, clock=town.clock
    )
    canceled = await within(town.workflows.cancel(OWNER, run.id))
    assert canceled.status == "cancelled"
    assert [task.status.state for task in await town.tasks()] == [TaskState.CANCELED]


# Crashes


async def test_a_run_goes_on_after_a_crash_and_repeats_no_step(town: Town) -> None:
    run = await town.begin(
        step("a", input={"n": 1}), step("b", 0, skill="hold"), step("c", 1, input={"n": 3})
    )
    await town.reaches(run, "completed", "running", "pending")
    await eventually(lambda: len(town.given) == 2)
    before = await town.at(run)
    assert await town.reborn() == 1
    town.gate.set()
    run = await town.ended(run)
    assert run.status == "completed"
    assert run.steps[0] == before.steps[0]
    assert run.steps[1].task_id == before.steps[1].task_id
    assert len(await town.tasks()) == 3
    # The agent of the step under way began again; that is between its engine and itself.
    assert [skill for skill, _ in town.given] == ["echo", "hold", "hold", "echo"]


async def test_many_crashes_on_the_way_are_not_held_against_a_run_that_gets_on(
    town: Town,
) -> None:
    town.settings = Settings(engine=EngineSettings(max_attempts=2))
    run = await town.begin(*(step(f"s{i}", *range(i), skill="hold") for i in range(5)))
    for i in range(5):
        await eventually(
            lambda i=i: any(not i or f"step_{i - 1}_output" in g for _, g in town.given)
        )
        begun = len(town.given)
        await town.reborn()
        await eventually(lambda begun=begun: len(town.given) > begun)
        # The next step finds a gate that is shut: each task is under way at one crash.
        gate, town.gate = town.gate, asyncio.Event()
        gate.set()
    run = await town.ended(run)
    assert run.status == "completed"
    assert len(await town.tasks()) == 5


async def test_a_crash_between_making_a_task_and_noting_it_makes_no_second_one(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()
    answer = town.engine.answer

    async def lose(call: Call) -> Reply:
        reply = await answer(call)
        if isinstance(call.operation, ops.SendMessage):
            made.set()
            await asyncio.get_running_loop().create_future()
        return reply

    monkeypatch.setattr(town.engine, "answer", lose)
    run = await town.begin(step("a", skill="hold"))
    await within(made.wait())
    assert (await town.at(run)).steps[0].task_id == ""
    await town.reborn()
    town.gate.set()
    run = await town.ended(run)
    assert run.status == "completed" and run.steps[0].attempts == 1
    assert len(await town.tasks()) == 1


async def test_a_crash_between_two_tries_neither_forgets_the_pause_nor_begins_it_anew(
    town: Town,
) -> None:
    town.failures["flaky"] = 1
    run = await town.begin(step("a", skill="flaky", **retrying(1, 60_000)))
    seen = await town.pauses(run, 1)
    town.clock.move_to(town.clock.now() + 59_000)
    await town.reborn()
    assert (await town.at(run)).steps[0] == seen.steps[0]
    assert await town.clock.leap() == seen.steps[0].retry_at
    run = await town.ended(run)
    assert run.status == "completed" and run.steps[0].attempts == 2
    assert len(await town.tasks()) == 2


async def test_time_that_passes_while_nobody_is_there_counts_for_a_steps_timeout(
    town: Town,
) -> None:
    run = await town.begin(step("a", skill="hold", timeout=10))
    await town.reaches(run, "running")
    await eventually(lambda: len(town.given) == 1)
    await town.die()
    town.clock.move_to(town.clock.now() + 60_000)
    town.store = SQLiteGatewayStore(town.path)
    await town.open()
    run = await town.ended(run)
    assert run.steps[0].error == "Timed out after 10 s"


async def test_a_process_that_stops_leaves_its_runs_and_their_tasks_for_the_next(
    town: Town,
) -> None:
    run = await town.begin(step("a", skill="hold"))
    await eventually(lambda: len(town.given) == 1)
    await town.close()
    town.store = SQLiteGatewayStore(town.path)
    assert await town.open() == 1
    town.gate.set()
    run = await town.ended(run)
    assert run.status == "completed" and len(await town.tasks()) == 1


async def test_results_too_large_to_be_at_hand_are_still_there_after_a_crash(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.engine.log.MAX_DRAFT_BYTES", 2000)
    run = await town.begin(
        step("a", input={"n": "x" * 3000}), step("b", 0, skill="hold"), step("c", 0, 1)
    )
    await town.reaches(run, "completed", "running", "pending")
    await eventually(lambda: len(town.given) == 2)
    await town.reborn()
    town.gate.set()
    run = await town.ended(run)
    assert run.status == "completed"
    assert town.given[-1][1]["step_0_output"] == {"result": "did " + "x" * 3000}
