"""Runs of workflows: in which order, what is handed on, what is tried again."""

from harness.waiting import eventually, within

from dragoman.errors import InvalidParams, Overloaded
from dragoman.model import operations as ops
from dragoman.model.identity import Caller
from dragoman.model.task import TaskState
from dragoman.service import Call
from tests.engine.engines import message
from tests.gateway.workflows.town import OWNER, Town, retrying, statuses, step


async def test_a_run_does_every_step_and_hands_on_what_came_of_it(town: Town) -> None:
    run = await town.run(
        step("a", input={"n": 1}),
        step("b", skill="flaky"),
        step("c", 0, 1, input={"n": 3, "step_0_output": "mine"}),
    )
    assert run.status == "completed" and run.error is None
    assert run.completed_at is not None and run.completed_at >= run.created_at
    assert statuses(run) == ["completed"] * 3
    assert [one.output for one in run.steps] == [
        {"result": "did 1"},
        {"result": {"answer": 42}},
        {"result": "did 3"},
    ]
    assert town.given[-1] == (
        "echo",
        {
            "n": 3,
            "step_0_output": {"result": "did 1"},
            "step_1_output": {"result": {"answer": 42}},
        },
    )


async def test_each_step_is_a_task_of_the_owners_with_the_workflows_name(town: Town) -> None:
    run = await town.run(step("a", timeout=77), step("b", 0))
    tasks = {task.id: task for task in await town.tasks()}
    assert set(tasks) == {one.task_id for one in run.steps}
    assert tasks[run.steps[0].task_id].metadata == {
        "agentId": "helper",
        "skillId": "echo",
        "title": "[Workflow] Trip",
        "description": "a",
        "timeoutSeconds": 77,
    }


async def test_a_step_without_a_result_hands_on_nothing(town: Town) -> None:
    run = await town.run(step("a", skill="silent"), step("b", 0))
    assert run.status == "completed"
    assert town.given[-1] == ("echo", {"step_0_output": None})


async def test_steps_that_are_ready_run_at_the_same_time(town: Town) -> None:
    run = await town.begin(*(step(f"s{i}", skill="hold") for i in range(20)))
    await eventually(lambda: len(town.given) == 20)
    town.gate.set()
    assert (await town.ended(run)).status == "completed"


async def test_a_step_does_not_wait_for_those_it_does_not_depend_on(town: Town) -> None:
    run = await town.begin(step("slow", skill="hold"), step("a"), step("b", 1), step("c", 0))
    await town.reaches(run, "running", "completed", "completed", "pending")
    town.gate.set()
    assert (await town.ended(run)).status == "completed"


async def test_a_failed_step_takes_along_all_that_depend_on_it_and_nothing_else(
    town: Town,
) -> None:
    run = await town.run(
        step("fails", skill="fail"), step("b", 0), step("c", 1), step("d"), step("e", 2, 3)
    )
    assert run.status == "failed" and run.error == "1 step(s) failed"
    assert statuses(run) == ["failed", "skipped", "skipped", "completed", "skipped"]
    assert run.steps[0].error == "it went wrong"
    assert {run.steps[i].error for i in (1, 2, 4)} == {"Skipped: dependency step 0 failed"}
    assert [skill for skill, _ in town.given] == ["fail", "echo"]


async def test_failures_are_counted_and_skipped_steps_are_not(town: Town) -> None:
    run = await town.run(step("a", skill="fail"), step("b", skill="fail"), step("c", 0, 1))
    assert run.error == "2 step(s) failed"
    assert run.steps[2].error == "Skipped: dependency step 0 failed"


async def test_a_step_is_tried_again_after_growing_pauses(town: Town) -> None:
    town.failures["flaky"] = 3
    run = await town.begin(step("a", skill="flaky", **retrying(5, 500)), step("b", 0))
    began = town.clock.now()
    pauses: list[int] = []
    for tries in (1, 2, 3):
        seen = await town.pauses(run, tries)
        assert tries == len(town.given)
        pauses.append(seen.steps[0].retry_at - town.clock.now())
        # Not a moment earlier.
        town.clock.move_to(seen.steps[0].retry_at - 1)
        assert (await town.at(run)).steps[0].attempts == tries
        town.clock.move_to(seen.steps[0].retry_at)
        await eventually(lambda tries=tries: len(town.given) > tries)
    assert pauses == [500, 1000, 2000]
    run = await town.ended(run)
    assert run.status == "completed" and run.steps[0].attempts == 4
    assert town.clock.now() - began == 3500
    assert len(await town.tasks()) == 5


async def test_a_step_is_tried_so_often_and_not_once_more(town: Town) -> None:
    run = await town.begin(step("a", skill="fail", **retrying(2, 100)), step("b", 0), step("c", 1))
    for tries in (1, 2):
        await town.pauses(run, tries)
        await town.clock.leap()
    run = await town.ended(run)
    assert run.status == "failed" and statuses(run) == ["failed", "skipped", "skipped"]
    assert run.steps[0].attempts == 3 == len(town.given)
    assert len(await town.tasks()) == 3


async def test_a_step_whose_task_was_canceled_is_not_tried_again(town: Town) -> None:
    run = await town.begin(step("a", skill="hold", **retrying(5)))
    await town.reaches(run, "running")
    (task,) = await town.tasks()
    operation = ops.CancelTask(task_id=task.id)
    await within(town.engine.answer(Call(operation=operation, caller=Caller(OWNER.owner))))
    run = await town.ended(run)
    assert statuses(run) == ["failed"] and "canceled" in run.steps[0].error
    assert len(town.given) == 1


async def test_a_step_that_takes_too_long_is_ended_and_has_failed(town: Town) -> None:
    run = await town.begin(step("a", skill="hold", timeout=10), step("b", 0))
    await town.reaches(run, "running", "pending")
    town.clock.move_to(town.clock.now() + 19_999)
    assert (await town.at(run)).steps[0].status == "running"
    town.clock.move_to(town.clock.now() + 1)
    run = await town.ended(run)
    assert run.steps[0].error == "Timed out after 10 s" and statuses(run) == ["failed", "skipped"]
    assert [task.status.state for task in await town.tasks()] == [TaskState.CANCELED]


async def test_a_question_of_a_steps_agent_is_answered_by_the_owner(town: Town) -> None:
    run = await town.begin(step("a", skill="ask"))
    await eventually(lambda: town.followed)
    town.gate.set()

    async def is_asked() -> bool:
        return [task.status.state for task in await town.tasks()] == [TaskState.INPUT_REQUIRED]

    await eventually(is_asked)
    assert (await town.at(run)).status == "running"
    (task,) = await town.tasks()
    said = ops.SendMessage(message=message("that one", task=task.id), wait=False)
    await within(town.engine.answer(Call(operation=said, caller=Caller(OWNER.owner))))
    assert (await town.ended(run)).steps[0].output == {"result": "told that one"}


async def test_a_refusal_of_the_gateway_fails_the_step_in_its_words(town: Town) -> None:
    async def refuse(call: Call) -> None:
        if isinstance(call.operation, ops.SendMessage):
            raise InvalidParams("nobody does that")

    town.before = refuse
    run = await town.run(step("a"), step("b", 0))
    assert statuses(run) == ["failed", "skipped"]
    assert run.steps[0].error == "nobody does that"


async def test_a_gateway_that_is_busy_is_asked_again_and_no_try_is_lost(town: Town) -> None:
    asked = 0

    async def refuse(call: Call) -> None:
        nonlocal asked
        if isinstance(call.operation, ops.SendMessage) and asked < 3:
            asked += 1
            raise Overloaded

    town.before = refuse
    run = await town.begin(step("a"))
    for tries in (1, 2, 3):
        # For its turn, and for the end of its time.
        await eventually(lambda tries=tries: asked == tries and town.clock.waiting == 2)
        await town.clock.leap()
    run = await town.ended(run)
    assert run.status == "completed" and run.steps[0].attempts == 1


async def test_a_workflow_shows_its_ten_latest_runs(town: Town) -> None:
    made = await town.define(step("a"))
    other = await town.define(step("a"))
    runs = [await town.workflows.execute(OWNER, made.id) for _ in range(12)]
    for run in runs:
        await town.ended(run)
    found = await town.workflows.get(OWNER, made.id)
    assert len(found.runs) == 10
    assert [run.id for run in found.runs] == sorted((run.id for run in found.runs), reverse=True)
    assert {run.status for run in found.runs} == {"completed"}
    assert found.runs[0].steps[0].output == {"result": "did "}
    assert (await town.workflows.get(OWNER, other.id)).runs == []


async def test_the_same_key_leads_to_the_same_run(town: Town) -> None:
    made = await town.define(step("a"))
    runs = [await town.workflows.execute(OWNER, made.id, key="k1") for _ in range(3)]
    assert len({run.id for run in runs}) == 1
    assert (await town.workflows.execute(OWNER, made.id, key="k2")).id != runs[0].id
