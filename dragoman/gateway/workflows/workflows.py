"""Workflows: graphs of steps, each of them a task of a registered agent.

A workflow belongs to the principal that defined it. A run of it is a task of an agent of the
gateway's own, so it is recorded before it begins, goes on after a crash, and can be canceled.

    workflows = Workflows(store, registry.get, service, settings)
    await workflows.sweep()                     # at the start and then with the gateway's own
    made = await workflows.create(owner, definition)
    run = await workflows.execute(owner, made.id)
    run = await workflows.run(owner, run.id)    # its steps so far
"""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

import msgspec

from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.engine.event_hooks import EventHooks
from dragoman.errors import A2AError, InvalidParams, TaskNotFound
from dragoman.gateway.registry.registered import Registered, serves
from dragoman.gateway.workflows.plan import (
    ENDED,
    Definition,
    StepOrder,
    StepState,
    WorkflowStep,
    checked,
    states_of,
)
from dragoman.gateway.workflows.runs import Runs
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock, stamp
from dragoman.model.identity import Caller, ContextId, MessageId, Principal, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Reply, Service, TaskPage, TaskReply
from dragoman.shares import Shares
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.workflows import WorkflowRow

# Workflows that one owner may have, and runs that are shown with one.
MOST = 1000
RUNS_SHOWN = 10

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
_STATUSES: dict[TaskState, RunStatus] = {
    TaskState.SUBMITTED: "pending",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "failed",
    TaskState.CANCELED: "cancelled",
}


class WorkflowRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of a workflow."""

    id: str
    workflow_id: str
    status: RunStatus
    steps: list[StepState]
    error: str | None = None
    created_at: str
    completed_at: str | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A workflow that was defined, and its latest runs where they are asked for."""

    id: str
    name: str
    description: str
    steps: list[WorkflowStep]
    created_at: str
    runs: list[WorkflowRun] = []


class Workflows:
    """All workflows of a gateway. What belongs to another owner is not there."""

    def __init__(
        self,
        store: GatewayStore,
        find_agent: Callable[[str], Registered | None],
        service: Service,
        settings: Settings,
        *,
        clock: Clock | None = None,
        shares: Shares | None = None,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        """`find_agent` returns an agent by its id or name; `service` makes the tasks of the
        steps."""
        self._rows = store.workflows
        self._find_agent = find_agent
        self._service = service
        self._clock = clock or SystemClock()
        # An engine like the gateway's own: it is swept and stopped with it.
        self.engine = Engine(
            Runs(service, store), store, settings, clock=clock, shares=shares, hooks=hooks
        )

    async def sweep(self) -> int:
        """Go on with runs whose process ended; return how many."""
        return await self.engine.sweep()

    async def stop(self) -> None:
        """Release runs that are under way; the next process goes on with them."""
        await self.engine.stop()

    # Workflows

    async def create(self, owner: Principal, definition: Any) -> Workflow:
        """Store a workflow: a `Definition`, or the JSON of one. Raises `InvalidParams`."""

        def is_known(ref: str) -> bool:
            agent = self._find_agent(ref)
            return agent is not None and serves(agent, owner)

        found = checked(definition, is_known)
        row = WorkflowRow(new_id(), self._clock.now(), encode(found))
        if not await self._rows.put(owner, row, most=MOST):
            raise InvalidParams(f"There are {MOST} workflows already, which is the most")
        return _workflow(row)

    async def get(self, owner: Principal, id: str) -> Workflow | None:
        """Return a workflow with its latest runs."""
        row = await self._rows.one(owner, id)
        if row is None:
            return None
        operation = ops.ListTasks(
            context_id=ContextId(id),
            page_size=RUNS_SHOWN,
            include_artifacts=True,
            tenant=owner.tenant,
        )
        reply = await self.engine.answer(Call(operation=operation, caller=_caller(owner)))
        assert isinstance(reply, TaskPage), "a list is a page"
        runs = [_run(found.reading.task) for found in reply.tasks]
        # By when they began, not by when they last changed.
        runs.sort(key=lambda run: run.id, reverse=True)
        return msgspec.structs.replace(_workflow(row), runs=runs)

    async def page(
        self, owner: Principal, *, limit: int = 100, offset: int = 0, after: str = ""
    ) -> tuple[Sequence[Workflow], int]:
        """Return some of an owner's workflows, newest first, and how many there are."""
        # So few are stored that those before an offset are read too.
        rows, total = await self._rows.page(owner, limit=min(offset + limit, MOST), after=after)
        return [_workflow(row) for row in rows[offset:]], total

    # Runs

    async def execute(
        self,
        owner: Principal,
        id: str,
        *,
        scopes: frozenset[str] = frozenset(),
        key: str = "",
        place: str = "",
    ) -> WorkflowRun | None:
        """Begin a run, and return it once it is recorded; None: there is no such workflow.

        The same key leads to the same run. `place` is the address of an anonymous caller: the run
        and its steps count for it. Raises `RateLimited` if the quota is used up."""
        row = await self._rows.one(owner, id)
        if row is None:
            return None
        order = StepOrder(workflow_id=id, definition=_definition(row), is_typed=True)
        message = Message(
            MessageId(key or new_id()),
            Role.USER,
            [Part(data=msgspec.to_builtins(order))],
            context_id=ContextId(id),
        )
        operation = ops.SendMessage(message=message, wait=False, tenant=owner.tenant)
        caller = msgspec.structs.replace(_caller(owner, scopes), place=place)
        reply = await self.engine.answer(Call(operation=operation, caller=caller))
        assert isinstance(reply, TaskReply), "a run is a task"
        return _run(reply.reading.task)

    async def run(self, owner: Principal, run_id: str) -> WorkflowRun | None:
        """Return a run with its steps so far."""
        operation = ops.GetTask(task_id=TaskId(run_id), tenant=owner.tenant)
        return await self._run_after(owner, operation)

    async def cancel(self, owner: Principal, run_id: str) -> WorkflowRun | None:
        """Cancel a run and the tasks of its steps. Raises `TaskNotCancelable` if it has ended."""
        cancel = ops.CancelTask(task_id=TaskId(run_id), tenant=owner.tenant)
        run = await self._run_after(owner, cancel)
        # The run cancels them itself only if a process was carrying it out.
        for step in [] if run is None else run.steps:
            if step.status == "cancelled" and step.task_id:
                operation = ops.CancelTask(task_id=TaskId(step.task_id), tenant=owner.tenant)
                with contextlib.suppress(A2AError):
                    call = Call(operation=operation, caller=_caller(owner))
                    await self._service.answer(call)
        return run

    # The service that operators use: runs are tasks like any other.

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call about a run."""
        operation = call.operation
        if isinstance(operation, ops.CancelTask):
            id, tenant = operation.task_id, operation.tenant
            if await self.cancel(Principal(tenant, call.caller.owner), id) is None:
                raise TaskNotFound(taskId=id)
            call = Call(operation=ops.GetTask(task_id=id, tenant=tenant), caller=call.caller)
        return await self.engine.answer(call)

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a run."""
        return self.engine.follow(call)

    async def _run_after(self, owner: Principal, operation: ops.Operation) -> WorkflowRun | None:
        try:
            reply = await self.engine.answer(Call(operation=operation, caller=_caller(owner)))
        except TaskNotFound:
            return None
        assert isinstance(reply, TaskReply), "a run is a task"
        return _run(reply.reading.task)


def _caller(owner: Principal, scopes: frozenset[str] = frozenset()) -> Caller:
    return Caller(owner.owner, bool(owner.owner), scopes, owner.tenant or None)


def _definition(row: WorkflowRow) -> Definition:
    return msgspec.json.decode(row.definition, type=Definition)


def _workflow(row: WorkflowRow) -> Workflow:
    definition = _definition(row)
    return Workflow(
        id=row.id,
        name=definition.name,
        description=definition.description,
        steps=definition.steps,
        created_at=stamp(row.made_at * 1000),
    )


def _run(task: Task) -> WorkflowRun:
    order = msgspec.convert(task.history[0].data, StepOrder)
    steps = [StepState(index=i, name=step.name) for i, step in enumerate(order.definition.steps)]
    for state in states_of(task):
        steps[state.index] = state
    status = task.status
    if status.state.is_terminal:
        steps = [step if step.status in ENDED else _cut_short(step) for step in steps]
    text = status.message.text if status.message is not None else ""
    return WorkflowRun(
        id=task.id,
        workflow_id=order.workflow_id,
        status=_STATUSES.get(status.state, "running"),
        steps=steps,
        error=text if status.state in (TaskState.FAILED, TaskState.REJECTED) else None,
        created_at=stamp(_made_at(task.id) * 1000),
        completed_at=status.timestamp if status.state.is_terminal else None,
    )


def _cut_short(step: StepState) -> StepState:
    return msgspec.structs.replace(step, status="cancelled", retry_at=0)


def _made_at(run_id: str) -> int:
    """Return when a run began, in milliseconds: our ids begin with the time."""
    return int(run_id[:8] + run_id[9:13], 16)
