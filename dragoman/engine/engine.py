"""The engine: the `Service` that runs an agent on its tasks.

It joins the parts and hands each operation to one of them: `sending` takes messages in, `reading`
and `following` show tasks, `receivers` keeps where events are posted, `recovery` brings stored
tasks back, `notes` reaches the processes that share the store.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from dragoman.config import Settings
from dragoman.engine.agent_code import AgentCode
from dragoman.engine.event_hooks import EventHooks, HookCalls
from dragoman.engine.following import Following, LogPosition
from dragoman.engine.intake import Intake
from dragoman.engine.live_tasks import EngineContext, LiveTasks
from dragoman.engine.notes import Notes
from dragoman.engine.reading import TaskReader
from dragoman.engine.receivers import PushRegistry, Receivers, refused
from dragoman.engine.recovery import Recovery
from dragoman.engine.running.isolation import Isolation
from dragoman.engine.sending import Sending
from dragoman.engine.store_clock import StoreClock
from dragoman.errors import (
    ExtensionRequired,
    Overloaded,
    StoreRefused,
    TaskNotCancelable,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.clock import Clock
from dragoman.model.identity import Scope
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Reply, TaskReply
from dragoman.shares import Shares
from dragoman.stores.interface import Push, Store, TaskRow


class Engine:
    """Answers calls for one agent."""

    def __init__(
        self,
        code: AgentCode,
        store: Store,
        settings: Settings,
        *,
        clock: Clock | None = None,
        postings: PushRegistry | None = None,
        isolation: Isolation | None = None,
        shares: Shares | None = None,
        is_local: bool = False,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        """`isolation` and `shares` are those of all engines of a process; `is_local`: only this
        machine reaches the server. `hooks` see and change the events of its tasks, in order."""
        self._code = code
        self._store = store
        self._hooks = HookCalls(hooks)
        context = EngineContext(
            code,
            store,
            settings,
            clock or StoreClock(store),
            shares or Shares(),
            self._hooks,
            is_local,
        )
        self._live = LiveTasks(context, isolation or Isolation(settings.engine.suspect_seconds))
        self._recovery = Recovery(context, self._live)
        self._reader = TaskReader(store)
        self._following = Following(store, self._live, self._reader)
        self._notes = Notes(context, self._live, self._recovery, self._following)
        self._receivers = Receivers(store, postings)
        intake = Intake(context, self._live, self._recovery, self._notes, self._receivers)
        self._sending = Sending(intake, self._following, self._reader)

    @property
    def live_tasks(self) -> int:
        """How many tasks this process works on."""
        return self._live.count

    async def sweep(self) -> int:
        """Take over tasks of dead workers, end what is overdue, read notes; return how many tasks
        were taken over."""
        count = await self._recovery.sweep()
        await self._notes.take()
        return count

    async def look(self) -> None:
        """Wake readers of tasks that another process wrote, should its ring have been lost."""
        await self._following.look()

    async def stop(self) -> None:
        """Let go of running tasks; another process takes them over."""
        self._live.stop()
        self._recovery.stop()
        await self._hooks.close()

    # Service

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        if self._code.required_extensions:
            self._check_extensions(call)
        operation = call.operation
        scope = Scope.of(self._code.name, operation.tenant, call.caller)
        try:
            # Most calls are one of these.
            if isinstance(operation, ops.SendMessage):
                return await self._sending.send(scope, call, operation)
            if isinstance(operation, ops.GetTask):
                return await self._reader.get(scope, call, operation)
            return await self._answer(scope, operation)
        except StoreRefused as error:
            raise refused(error) from None

    async def _answer(self, scope: Scope, operation: ops.Operation) -> Reply:
        match operation:
            case ops.ListTasks():
                return await self._reader.list(scope, operation)
            case ops.CancelTask():
                return await self._cancel(scope, operation)
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush():
                await self._store.prepare()
                return await self._receivers.answer(scope, operation)
            case _:
                raise UnsupportedOperation

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call."""
        self._check_extensions(call)
        if not self._code.streaming:
            raise UnsupportedOperation("Streaming is not supported")
        scope = Scope.of(self._code.name, call.operation.tenant, call.caller)
        match call.operation:
            case ops.SendMessage() as operation:
                return self._sending.stream(scope, call, operation)
            case ops.SubscribeToTask() as operation:
                return self._following.subscribe(scope, call, operation)
            case _:
                raise UnsupportedOperation

    def _check_extensions(self, call: Call) -> None:
        if missing := self._code.required_extensions - call.extensions:
            raise ExtensionRequired(extensions=",".join(sorted(missing)))

    async def _cancel(self, scope: Scope, operation: ops.CancelTask) -> TaskReply:
        head = await self._reader.find(scope, operation.task_id)
        if head.standing.state.is_terminal:
            raise TaskNotCancelable(taskId=head.task_id)
        try:
            if await self._live.is_elsewhere(head):
                await self._notes.cancel(head)
            else:
                await self._recovery.cancel(head)
        except StoreRefused as error:
            raise refused(error) from None
        except TimeoutError:
            raise Overloaded from None
        # It has ended since its row was read, so its whole log has an end.
        reading = await self._reader.read_at(head.number, None)
        if reading.task.status.state is not TaskState.CANCELED:
            raise TaskNotCancelable(taskId=head.task_id)
        return TaskReply(reading)

    # For operators

    def follow_log(self, head: TaskRow, after: int) -> AsyncIterator[Sequence[Recorded]]:
        """Return all events of a task after a position, also those that no stream shows, without
        end. The task may be another agent's of the same store."""
        log = self._live.get(head.scope, head.task_id)
        return self._following.events(LogPosition.of(head, after), log)

    # For the posting of events

    def follow_push(self, push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        """Return a task's events after a receiver's cursor, until there will be no more."""
        return self._following.follow_push(push)

    async def task_as_of(self, push: Push, seq: int) -> Task:
        """Return a receiver's task as it was after an event."""
        return (await self._reader.read_at(push.task, seq)).task
