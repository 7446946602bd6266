"""Runs of workflows: the code of an agent whose tasks are runs and whose work are other tasks.

The state of each step is an artifact of the run: readers see it, and the worker that takes the run
over after a crash goes on from it. A step's task is made by a message whose id follows from the
run, the step and the attempt: sent again, it leads to the same task.
"""

import asyncio
import contextlib
import logging
from typing import Any, NamedTuple

import msgspec

from dragoman.engine.reading import read_task
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import (
    A2AError,
    InvalidParams,
    Overloaded,
    RateLimited,
    TaskFailed,
    UnsupportedOperation,
)
from dragoman.gateway.workflows.plan import (
    ENDED,
    StepOrder,
    StepState,
    WorkflowStep,
    is_end,
    obstacle,
    output_of,
    problem_of,
    states_of,
    task_of,
)
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import StepKind
from dragoman.model.identity import ANONYMOUS, Caller, TaskId
from dragoman.model.message import Part
from dragoman.model.task import Task, TaskState
from dragoman.service import Call, Reply, Service, TaskReply
from dragoman.stores.interface import Store

logger = logging.getLogger("dragoman")

# Milliseconds until a gateway that is busy, or cut a stream, is asked again: no step fails by that.
_BUSY = 1000
# Milliseconds after its time-out within which the gateway itself ends a step's task.
_GRACE = 10_000


class Runs:
    """The code that runs workflows, as the engine sees it."""

    # No agent of an author has a dot in its name.
    name = "gateway.workflows"
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def __init__(self, service: Service, store: Store) -> None:
        """`service` makes the steps' tasks: it is the gateway's."""
        self._service = service
        self._store = store

    def admit(
        self, caller: Caller, operation: ops.SendMessage, began: ops.SendMessage | None = None
    ) -> None:
        """Admit every run: only `Workflows` begins them, for the owner of the workflow."""

    def withdraw(self, replay: Replay) -> None:
        """Steps end by their own deadlines."""

    def plan(
        self,
        operation: ops.SendMessage,
        began: ops.SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Read the order; raises `InvalidParams` for anything else."""
        try:
            order = msgspec.convert(operation.message.data, StepOrder)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"is no order of a run: {error}", field="message") from None

        async def run(worker: Worker) -> None:
            await _Run(worker, order, self._service, self._store).carry_out()

        return Plan(run)


class StepAttempt(NamedTuple):
    """The task of an attempt, if it ended, and what went wrong; empty: nothing."""

    task: Task | None
    problem: str


class _Run:
    """One run while it is carried out."""

    def __init__(self, worker: Worker, order: StepOrder, service: Service, store: Store) -> None:
        self._worker = worker
        self._service = service
        self._store = store
        self._order = order
        self._steps = order.definition.steps
        self._states = [StepState(index=i, name=step.name) for i, step in enumerate(self._steps)]
        self._is_over = [asyncio.Event() for _ in self._steps]
        # Messages on their way. They are not cancelled: a task that they make would be lost.
        self._sending: dict[int, asyncio.Task[Reply]] = {}
        # Steps whose task cannot begin in time because the owner's quota is used up.
        self._used_up: set[int] = set()

    async def carry_out(self) -> None:
        worker = self._worker
        worker.decide()
        # Each step has its place in the log from the beginning, whichever ends first.
        is_noted = [worker.recall(StepKind.STEP, f"step {i}").done for i in range(len(self._steps))]
        # The run is durable before any task of its steps.
        await worker.log.durable(worker.log.seq)
        await self._restore()
        works = [
            asyncio.ensure_future(self._work(i, is_noted=is_noted[i] is not None))
            for i in range(len(self._steps))
        ]
        try:
            await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            # If the process stops, or another one has the run, its tasks go on.
            if worker.is_cancelled or worker.log.is_over:
                await self._cancel_tasks()
        failed = sum(state.status == "failed" for state in self._states)
        if failed:
            raise TaskFailed(f"{failed} step(s) failed")

    async def _restore(self) -> None:
        """Load the states that an earlier worker recorded."""
        reading = await read_task(self._store, self._worker.log.number)
        assert reading is not None, "a task that is at work is there"
        for state in states_of(reading.task):
            self._states[state.index] = state

    def _show(self, index: int, **changes: Any) -> None:
        """Record a change of a step's state."""
        state = self._states[index] = msgspec.structs.replace(self._states[index], **changes)
        part = Part(data=msgspec.to_builtins(state))
        self._worker.artifact(Artifact(f"step-{index}", [part], name=state.name))

    # A step

    async def _work(self, index: int, *, is_noted: bool) -> None:
        """Carry a step out once all it depends on is over."""
        step = self._steps[index]
        for earlier in step.depends_on:
            await self._is_over[earlier].wait()
        cause = obstacle(step, self._states)
        if self._states[index].status in ENDED:
            pass
        elif cause is not None:
            self._end(
                index, "skipped", error=f"Skipped: dependency step {cause} failed", because=cause
            )
        else:
            await self._try_all(index, step)
        if not is_noted:
            # The run made progress: a crash after this does not count as a failed attempt.
            note = msgspec.Raw(msgspec.json.encode(self._states[index].status))
            await self._worker.remember(StepKind.STEP, index, f"step {index}", note)
        self._is_over[index].set()

    async def _try_all(self, index: int, step: WorkflowStep) -> None:
        clock = self._worker.clock
        while True:
            state = self._states[index]
            if state.status == "pending":
                await clock.wait_until(state.retry_at)
                self._show(
                    index,
                    status="running",
                    attempts=state.attempts + 1,
                    started_at=clock.now(),
                    retry_at=0,
                    task_id="",
                    error="",
                )
            task, problem = await self._try(index, step)
            if task is not None and not problem:
                self._end(index, "completed", output=output_of(task))
                return
            delay = step.retry_policy.delay(self._states[index].attempts)
            # A step whose task was canceled is not tried again.
            is_canceled = task is not None and task.status.state is TaskState.CANCELED
            if delay is None or is_canceled or index in self._used_up:
                self._end(index, "failed", error=problem)
                return
            self._show(index, status="pending", retry_at=clock.now() + delay, error=problem)

    def _end(self, index: int, status: str, **changes: Any) -> None:
        self._show(index, status=status, ended_at=self._worker.clock.now(), **changes)

    async def _try(self, index: int, step: WorkflowStep) -> StepAttempt:
        """Make one attempt at a step."""
        # The gateway ends a task in time by itself, with the reason; this is for one that cannot.
        until = self._states[index].started_at + step.timeout * 1000 + _GRACE
        doing = asyncio.ensure_future(self._do(index, step))
        waiting = asyncio.ensure_future(self._worker.clock.wait_until(until))
        try:
            await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                task = doing.result()
                return StepAttempt(task, problem_of(task))
        except A2AError as error:
            return StepAttempt(None, error.public)
        finally:
            for future in (doing, waiting):
                future.cancel()
            await asyncio.gather(doing, waiting, return_exceptions=True)
        await self._cancel_task(index)
        return StepAttempt(None, f"Timed out after {step.timeout} s")

    async def _do(self, index: int, step: WorkflowStep) -> Task:
        """Return the task of a step once it has ended."""
        if not self._states[index].task_id:
            reply = await self._send(index, step)
            self._show(index, task_id=reply.reading.task.id)
        task_id = TaskId(self._states[index].task_id)
        is_cut = False
        while True:
            reply = await self._ask(ops.GetTask(task_id=task_id, tenant=self._tenant))
            assert isinstance(reply, TaskReply), "a task that is read is a task"
            if reply.reading.task.status.state.is_terminal:
                return reply.reading.task
            if is_cut:
                # Not at once: the stream may be cut again.
                await self._pause()
            is_cut = not await self._follow(task_id)

    async def _follow(self, task_id: TaskId) -> bool:
        """Follow a task until it has ended; return whether its stream went that far."""
        call = Call(
            operation=ops.SubscribeToTask(task_id=task_id, tenant=self._tenant),
            caller=self._worker.caller,
            # Its owner may answer a question of its agent, and then it goes on.
            closes_on_input=False,
        )
        # Also raised if it ended after it was read.
        with contextlib.suppress(UnsupportedOperation, Overloaded):
            async with contextlib.aclosing(self._service.follow(call)) as batches:
                async for batch in batches:
                    if is_end(batch):
                        return True
        return False

    async def _pause(self) -> None:
        await self._worker.clock.wait_until(self._worker.clock.now() + _BUSY)

    # The steps' tasks

    async def _send(self, index: int, step: WorkflowStep) -> TaskReply:
        """Make a step's task, unless it was made before."""
        while True:
            sending = self._sending.get(index)
            if sending is None:
                sending = asyncio.ensure_future(self._ask(self._message(index)))
                # Its error is read here in case no one awaits it any more.
                sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
                self._sending[index] = sending
            try:
                reply = await asyncio.shield(sending)
            except A2AError as error:
                del self._sending[index]
                if isinstance(error, RateLimited) and self._is_too_long(index, step, error):
                    self._used_up.add(index)
                    raise
                if not isinstance(error, Overloaded):
                    raise
                await self._pause()
            else:
                # Not on cancellation: the one that ends the step needs its task.
                del self._sending[index]
                assert isinstance(reply, TaskReply), "everything that is forwarded is a task"
                return reply

    def _is_too_long(self, index: int, step: WorkflowStep, refusal: RateLimited) -> bool:
        """Return whether the quota has room again only after the step's time-out."""
        ends = self._states[index].started_at + step.timeout * 1000
        return self._worker.clock.now() + refusal.retry_after * 1000 > ends

    def _message(self, index: int) -> ops.SendMessage:
        message, metadata = task_of(self._worker.log.task_id, self._order, index, self._states)
        return ops.SendMessage(message=message, wait=False, metadata=metadata, tenant=self._tenant)

    @property
    def _tenant(self) -> str:
        return self._worker.log.scope.tenant

    async def _ask(self, operation: ops.Operation) -> Reply:
        return await self._service.answer(Call(operation=operation, caller=self._worker.caller))

    async def _cancel_tasks(self) -> None:
        """Cancel the tasks of a run that was canceled."""
        running = [state.index for state in self._states if state.status == "running"]
        await asyncio.gather(*map(self._cancel_task, running))

    async def _cancel_task(self, index: int) -> None:
        """Cancel the task of a step, even one that is being made at this moment."""
        task_id = self._states[index].task_id
        try:
            if not task_id and (sending := self._sending.pop(index, None)) is not None:
                reply = await sending
                task_id = reply.reading.task.id if isinstance(reply, TaskReply) else ""
            if task_id:
                await self._ask(ops.CancelTask(task_id=TaskId(task_id), tenant=self._tenant))
        except A2AError as error:
            logger.info("the task of step %d could not be canceled: %s", index, error.public)
