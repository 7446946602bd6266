"""Workflows: graphs of steps, each of them a task of a registered agent.

A workflow belongs to who defined it. A run of it is a task of an agent of the gateway's own, so it
is recorded before it begins, goes on after a crash, and can be canceled.

    workflows = Workflows(store, gateway)
    await workflows.sweep()                     # at the start and then with the gateway's own
    made = await workflows.create(owner, definition)
    run = await workflows.execute(owner, made.id)
    run = await workflows.run(owner, run.id)    # how it stands
"""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, Protocol

import apsw
import msgspec

from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.shares import Shares
from dragoman.errors import A2AError, InvalidParams, TaskNotFound
from dragoman.gateway.agents import Registered, serves
from dragoman.gateway.workflow_plan import (
    ENDED,
    Definition,
    Order,
    Step,
    StepState,
    checked,
    states_of,
)
from dragoman.gateway.workflow_runs import Runs
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.identity import Caller, ContextId, MessageId, Principal, TaskId, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Reply, Service, TaskPage, TaskReply
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite import workflows as kept

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


class Agents(Protocol):
    """Who is registered."""

    def get(self, ref: str) -> Registered | None:
        """Return an agent by its id or name."""
        ...


class Gateway(Protocol):
    """What workflows need of a gateway."""

    @property
    def registry(self) -> Agents:
        """The agents."""
        ...

    @property
    def service(self) -> Service:
        """What makes tasks of theirs."""
        ...

    @property
    def settings(self) -> Settings:
        """How it is run."""
        ...


class Run(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
    steps: list[Step]
    created_at: str
    runs: list[Run] = []


class Workflows:
    """All workflows of a gateway. What belongs to another owner is not there."""

    def __init__(
        self,
        store: SQLiteStore,
        gateway: Gateway,
        *,
        clock: Clock | None = None,
        shares: Shares | None = None,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._clock = clock or SystemClock()
        # Of the same kind as the gateway's own: whoever looks after engines looks after this too.
        code = Runs(lambda: gateway.service, store)
        self.engine = Engine(code, store, gateway.settings, clock=clock, shares=shares, hooks=hooks)

    async def sweep(self) -> int:
        """Go on with runs that nobody carries out any more; return how many."""
        return await self.engine.sweep()

    async def stop(self) -> None:
        """Let go of runs that are under way; the next process goes on with them."""
        await self.engine.stop()

    # Workflows

    async def create(self, owner: Principal, definition: Any) -> Workflow:
        """Keep a workflow: a `Definition`, or the JSON of one. Raises `InvalidParams`."""

        def is_known(ref: str) -> bool:
            agent = self._gateway.registry.get(ref)
            return agent is not None and serves(agent, owner)

        found = checked(definition, is_known)
        row = kept.WorkflowRow(new_id(), self._clock.now(), encode(found))

        def put(connection: apsw.Connection) -> bool:
            return kept.put(connection, owner, row, most=MOST)

        if not await self._store.change(put):
            raise InvalidParams(f"There are {MOST} workflows already, which is the most")
        return _workflow(row)

    async def get(self, owner: Principal, id: str) -> Workflow | None:
        """Return a workflow with its latest runs."""
        row = await self._row(owner, id)
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
        # By when they began, not by when they last moved.
        runs.sort(key=lambda run: run.id, reverse=True)
        return msgspec.structs.replace(_workflow(row), runs=runs)

    async def page(
        self, owner: Principal, *, limit: int = 100, offset: int = 0
    ) -> tuple[Sequence[Workflow], int]:
        """Return some of an owner's workflows, newest first, and how many there are."""

        def read(connection: apsw.Connection) -> tuple[Sequence[kept.WorkflowRow], int]:
            return kept.page(connection, owner, limit=limit, offset=offset)

        rows, total = await self._store.look(read)
        return [_workflow(row) for row in rows], total

    async def list(self, owner: Principal) -> Sequence[Workflow]:
        """Return an owner's workflows, newest first."""
        found, _ = await self.page(owner, limit=MOST)
        return found

    async def _row(self, owner: Principal, id: str) -> kept.WorkflowRow | None:
        reading: Callable[[apsw.Connection], kept.WorkflowRow | None]
        reading = lambda connection: kept.one(connection, owner, id)  # noqa: E731 - typed
        return await self._store.look(reading)

    # Runs

    async def execute(
        self,
        owner: Principal,
        id: str,
        *,
        scopes: frozenset[str] = frozenset(),
        key: str = "",
        place: str = "",
    ) -> Run | None:
        """Begin a run, and return it once it is recorded; None: there is no such workflow.

        The same key leads to the same run. `place` is where a caller who is not known comes from:
        the run and its steps count for it. Raises `RateLimited` if the quota is used up."""
        row = await self._row(owner, id)
        if row is None:
            return None
        order = Order(workflow_id=id, definition=_definition(row), is_typed=True)
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

    async def run(self, owner: Principal, run_id: str) -> Run | None:
        """Return how a run stands."""
        operation = ops.GetTask(task_id=TaskId(run_id), tenant=owner.tenant)
        return await self._told(owner, operation)

    async def cancel(self, owner: Principal, run_id: str) -> Run | None:
        """End a run and what is under way for it. Raises `TaskNotCancelable` if it has ended."""
        cancel = ops.CancelTask(task_id=TaskId(run_id), tenant=owner.tenant)
        run = await self._told(owner, cancel)
        # The code of the run does so too, if there was a process that had it under way.
        for step in [] if run is None else run.steps:
            if step.status == "cancelled" and step.task_id:
                operation = ops.CancelTask(task_id=TaskId(step.task_id), tenant=owner.tenant)
                with contextlib.suppress(A2AError):
                    call = Call(operation=operation, caller=_caller(owner))
                    await self._gateway.service.answer(call)
        return run

    # As operators see them: tasks like any other.

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

    async def _told(self, owner: Principal, operation: ops.Operation) -> Run | None:
        try:
            reply = await self.engine.answer(Call(operation=operation, caller=_caller(owner)))
        except TaskNotFound:
            return None
        assert isinstance(reply, TaskReply), "a run is a task"
        return _run(reply.reading.task)


def _caller(owner: Principal, scopes: frozenset[str] = frozenset()) -> Caller:
    return Caller(owner.owner, bool(owner.owner), scopes, owner.tenant or None)


def _definition(row: kept.WorkflowRow) -> Definition:
    return msgspec.json.decode(row.definition, type=Definition)


def _workflow(row: kept.WorkflowRow) -> Workflow:
    definition = _definition(row)
    return Workflow(
        id=row.id,
        name=definition.name,
        description=definition.description,
        steps=definition.steps,
        created_at=stamp(row.made_at * 1000),
    )


def _run(task: Task) -> Run:
    order = msgspec.convert(task.history[0].data, Order)
    steps = [StepState(index=i, name=step.name) for i, step in enumerate(order.definition.steps)]
    for state in states_of(task):
        steps[state.index] = state
    status = task.status
    if status.state.is_terminal:
        steps = [step if step.status in ENDED else _cut_short(step) for step in steps]
    said = status.message.text if status.message is not None else ""
    return Run(
        id=task.id,
        workflow_id=order.workflow_id,
        status=_STATUSES.get(status.state, "running"),
        steps=steps,
        error=said if status.state in (TaskState.FAILED, TaskState.REJECTED) else None,
        created_at=stamp(_made_at(task.id) * 1000),
        completed_at=status.timestamp if status.state.is_terminal else None,
    )


def _cut_short(step: StepState) -> StepState:
    return msgspec.structs.replace(step, status="cancelled", retry_at=0)


def _made_at(run_id: str) -> int:
    """Return when a run began, in milliseconds: our ids begin with the time."""
    return int(run_id[:8] + run_id[9:13], 16)
