"""Workflows: what may be defined, in which order steps run, and what becomes of a run whose steps
fail, wait, are tried again, or whose process dies."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine.house import eventually, message, within

from dragoman import Agent, TaskFailed, Turn
from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.errors import InvalidParams, Overloaded, TaskNotCancelable
from dragoman.gateway.agents import Registered
from dragoman.gateway.workflow_plan import checked
from dragoman.gateway.workflows import MOST, Run, Workflow, Workflows
from dragoman.model import operations as ops
from dragoman.model.identity import LOCAL, Caller, Principal
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Reply, TaskPage
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock

OWNER = Principal("", "ann")


def step(name: str, *depends_on: int, skill: str = "echo", **given: Any) -> dict[str, Any]:
    return {
        "name": name,
        "agentId": "helper",
        "skillId": skill,
        "dependsOn": list(depends_on),
        **given,
    }


def retrying(times: int, backoff: int = 1000) -> dict[str, Any]:
    return {"retryPolicy": {"maxRetries": times, "backoffMs": backoff}}


HELPER = Registered(id="helper", name="helper", title="Helper", url="http://127.0.0.1:9")
SECRET = Registered(
    id="secret",
    name="secret",
    title="S",
    url="http://127.0.0.1:9",
    owner=Principal.read("bob"),
    callers=["cid"],
)


class Town:
    """A gateway with one agent that does as it is told, and workflows over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        # Inputs that arrived at the agent, by its skill, and how many more of them fail.
        self.given: list[tuple[str, dict[str, Any]]] = []
        self.failures: Counter[str] = Counter()
        self.gate = asyncio.Event()
        # Batches of their tasks' streams that runs were given.
        self.followed = 0
        self.before: Callable[[Call], Awaitable[None]] | None = None
        self.registry = SimpleNamespace(get={"helper": HELPER, "secret": SECRET}.get)
        self.settings = Settings(cancel_grace=10)
        self.store = SQLiteStore(path)
        self.agent = self._agent()
        self.service: Any = None
        self.workflows: Any = None

    def _agent(self) -> Agent:
        agent = Agent("gateway", "Does as it is told.")

        @agent.skill
        async def echo(text: str) -> str:
            self.given.append(("echo", json.loads(text)))
            return f"did {json.loads(text).get('n', '')}"

        @agent.skill
        async def fail(text: str) -> str:
            self.given.append(("fail", json.loads(text)))
            raise TaskFailed("it went wrong")

        @agent.skill
        async def flaky(text: str) -> dict[str, int]:
            self.given.append(("flaky", json.loads(text)))
            self.failures["flaky"] -= 1
            if self.failures["flaky"] >= 0:
                raise TaskFailed(f"{self.failures['flaky']} to go")
            return {"answer": 42}

        @agent.skill
        async def hold(text: str) -> str:
            self.given.append(("hold", json.loads(text)))
            await self.gate.wait()
            return "held"

        @agent.skill
        async def ask(text: str, turn: Turn) -> str:
            self.given.append(("ask", json.loads(text)))
            await self.gate.wait()
            return f"told {(await turn.ask('Which?')).text}"

        @agent.skill
        async def silent(text: str) -> None:
            self.given.append(("silent", json.loads(text)))

        return agent

    async def open(self) -> int:
        await self.store.open()
        self.engine = Engine(self.agent, self.store, self.settings)
        self.service = SimpleNamespace(answer=self._answer, follow=self._follow)
        self.workflows = Workflows(self.store, self, clock=self.clock)
        await self.engine.sweep()
        return await self.workflows.sweep()

    async def _answer(self, call: Call) -> Reply:
        if self.before is not None:
            await self.before(call)
        return await self.engine.answer(call)

    async def _follow(self, call: Call) -> AsyncIterator[Batch]:
        async for batch in self.engine.follow(call):
            self.followed += 1
            yield batch

    async def close(self) -> None:
        await self.workflows.stop()
        await self.engine.stop()
        await within(self.store.close())

    async def die(self) -> None:
        """End as a killed process does: what runs is left where it is."""
        self.store._workers.leave = lambda connection: None  # type: ignore[method-assign]
        await self.close()

    async def reborn(self) -> int:
        await self.die()
        self.store = SQLiteStore(self.path)
        return await self.open()

    # What one does with workflows

    async def define(self, *steps: dict[str, Any], **given: Any) -> Workflow:
        definition = {"name": "Trip", "steps": list(steps), **given}
        return await within(self.workflows.create(OWNER, definition))

    async def begin(self, *steps: dict[str, Any], **given: Any) -> Run:
        made = await self.define(*steps, **given)
        return await within(self.workflows.execute(OWNER, made.id))

    async def run(self, *steps: dict[str, Any], **given: Any) -> Run:
        return await self.ended(await self.begin(*steps, **given))

    async def at(self, run: Run, owner: Principal = OWNER) -> Run:
        found = await within(self.workflows.run(owner, run.id))
        assert found is not None
        return found

    async def ended(self, run: Run) -> Run:
        async def is_over() -> bool:
            return (await self.at(run)).status in ("completed", "failed", "cancelled")

        await eventually(is_over)
        return await self.at(run)

    async def reaches(self, run: Run, *statuses: str, tries: int = 1) -> Run:
        """Wait until steps stand so, and all that run or wait have made so many tasks."""
        seen = run

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.at(run)
            return tuple(one.status for one in seen.steps) == statuses and all(
                bool(one.task_id) and one.attempts == tries
                for one in seen.steps
                if one.status == "running" or one.retry_at
            )

        await eventually(is_so)
        return seen

    async def pauses(self, run: Run, tries: int) -> Run:
        """Wait until the first step has failed so often and waits to be tried again."""
        seen = run

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.at(run)
            return seen.steps[0].retry_at > 0 and seen.steps[0].attempts == tries

        await eventually(is_so)
        return seen

    async def tasks(self) -> list[Task]:
        """The tasks that steps made."""
        operation = ops.ListTasks(page_size=100, history=1)
        reply = await self.engine.answer(Call(operation=operation, caller=Caller(OWNER.owner)))
        assert isinstance(reply, TaskPage)
        return [found.reading.task for found in reply.tasks]


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path / "tasks.db")
    await town.open()
    yield town
    town.gate.set()
    await town.close()
    if town.agent.threads is not None:
        town.agent.threads.shutdown(wait=False)


def statuses(run: Run) -> list[str]:
    return [one.status for one in run.steps]


# Definitions


async def test_a_workflow_is_kept_with_what_was_left_out_filled_in(town: Town) -> None:
    made = await town.define({"name": "a", "agentId": "helper"}, description="Around the world")
    assert made.steps[0].timeout == 300
    policy = made.steps[0].retry_policy
    assert (policy.max_retries, policy.backoff_ms) == (0, 1000)
    found = await town.workflows.get(OWNER, made.id)
    assert found == made and found.runs == []
    await town.reborn()
    assert await town.workflows.get(OWNER, made.id) == made


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": 1}, "name"),
        ({"description": "x" * 2001}, "description"),
        ({"steps": []}, "steps"),
        ({"steps": [step("a")] * 21}, "steps"),
        ({"steps": "a"}, "steps"),
        ({"steps": [step("")]}, r"steps\[.*\].name"),
        ({"steps": [step("x" * 101)]}, r"steps\[.*\].name"),
        ({"steps": [step("a", input=[])]}, r"steps\[.*\].input"),
        ({"steps": [step("a", timeout=9)]}, r"steps\[.*\].timeout"),
        ({"steps": [step("a", timeout=3601)]}, r"steps\[.*\].timeout"),
        ({"steps": [step("a", **retrying(6))]}, "maxRetries"),
        ({"steps": [step("a", **retrying(-1))]}, "maxRetries"),
        ({"steps": [step("a", **retrying(1, 99))]}, "backoffMs"),
        ({"steps": [step("a", **retrying(1, 60_001))]}, "backoffMs"),
        ({"steps": [step("a", 0)]}, r"steps\[0\].dependsOn"),
        ({"steps": [step("a"), step("b", 1)]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", 2), step("c")]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", -1)]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", "0")]}, "dependsOn"),
        ({"steps": [step("a"), step("b", agentId="nobody")]}, r"steps\[1\].agentId"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParams, match=field):
        checked({"name": "Trip", "steps": [step("a")], **change}, "helper".__eq__)


@pytest.mark.parametrize("definition", [None, [], "Trip", {}, {"name": "Trip"}])
def test_what_is_no_workflow_at_all_is_refused(definition: Any) -> None:
    with pytest.raises(InvalidParams):
        checked(definition, "helper".__eq__)


@pytest.mark.parametrize("agent", ["nobody", "secret"])
async def test_what_is_refused_is_not_kept(town: Town, agent: str) -> None:
    with pytest.raises(InvalidParams, match=r"steps\[1\].agentId"):
        await town.define(step("a"), step("b", agentId=agent))
    assert await town.workflows.list(OWNER) == []


async def test_the_largest_workflow_is_kept(town: Town) -> None:
    steps = [step("x" * 100, *range(i), timeout=3600, **retrying(5, 60_000)) for i in range(20)]
    made = await town.define(*steps, name="n" * 200, description="d" * 2000)
    assert len(made.steps) == 20


async def test_workflows_are_listed_newest_first_a_page_at_a_time(town: Town) -> None:
    made = [(await town.define(step("a"), name=f"w{i}")).id for i in range(5)]
    assert [found.id for found in await town.workflows.list(OWNER)] == made[::-1]
    found, total = await town.workflows.page(OWNER, limit=2, offset=1)
    assert [one.id for one in found] == made[::-1][1:3] and total == 5


async def test_another_owner_or_tenant_sees_runs_and_cancels_nothing(town: Town) -> None:
    made = await town.define(step("a", skill="hold"))
    run = await town.workflows.execute(OWNER, made.id)
    for other in (Principal("", "bob"), LOCAL, Principal("elsewhere", OWNER.owner)):
        assert await town.workflows.get(other, made.id) is None
        assert await town.workflows.list(other) == []
        assert await town.workflows.execute(other, made.id) is None
        assert await town.workflows.run(other, run.id) is None
        assert await town.workflows.cancel(other, run.id) is None
    assert (await town.at(run)).status == "running"


async def test_an_owner_has_so_many_workflows_and_no_more(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST == 1000
    monkeypatch.setattr("dragoman.gateway.workflows.MOST", 2)
    await town.define(step("a"))
    await town.define(step("a"))
    with pytest.raises(InvalidParams, match="2 workflows"):
        await town.define(step("a"))
    assert await town.workflows.create(Principal.read("bob"), {"name": "b", "steps": [step("a")]})


# Runs


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
    town.workflows = Workflows(town.store, town, clock=town.clock)
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
    town.settings = Settings(max_attempts=2)
    run = await town.begin(*(step(f"s{i}", *range(i), skill="hold") for i in range(5)))
    for i in range(5):
        await eventually(
            lambda i=i: any(f"step_{i - 1}_output" in g for _, g in town.given) or not i
        )
        await town.reborn()
        town.gate.set()

        async def is_on(i: int = i) -> bool:
            return (await town.at(run)).steps[i].status == "completed"

        await eventually(is_on)
        town.gate.clear()
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
    town.store = SQLiteStore(town.path)
    await town.open()
    run = await town.ended(run)
    assert run.steps[0].error == "Timed out after 10 s"


async def test_a_process_that_stops_leaves_its_runs_and_their_tasks_for_the_next(
    town: Town,
) -> None:
    run = await town.begin(step("a", skill="hold"))
    await eventually(lambda: len(town.given) == 1)
    await town.close()
    town.store = SQLiteStore(town.path)
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
