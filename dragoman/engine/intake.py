"""Takes messages in: a message begins a task, continues one, or repeats an earlier message.

Each case has its own result, which says what the caller's answer has to wait for. Nothing is
answered before the event that the answer rests on is durable.
"""

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from dragoman.engine.hooked_log import LogHooks
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.live_tasks import EngineContext, LiveTasks
from dragoman.engine.log import READ_AT_ONCE, STORE_IS_FULL, LogIsFull, TaskLog
from dragoman.engine.notes import Notes, task_ended
from dragoman.engine.receivers import Receivers, refused, with_ids
from dragoman.engine.recovery import Recovery, plan_further
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.engine.task_events import trace_event
from dragoman.errors import (
    InternalError,
    InvalidParams,
    Overloaded,
    RateLimited,
    StoreConflict,
    StoreRefused,
    TaskFailed,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model.clock import Clock, stamp_ms
from dragoman.model.events import DeadlineSet, MessageAdded, ScopesGranted, TraceJoined
from dragoman.model.identity import Caller, ContextId, Scope, TaskId, new_id
from dragoman.model.message import Message
from dragoman.model.operations import SendMessage
from dragoman.model.record import decode_message, encode
from dragoman.model.request_metadata import DEADLINE, deadline_of
from dragoman.model.task import OVERDUE, Task, TaskState, TaskStatus
from dragoman.service import LARGE_BYTES, Call, off_loop, reserve
from dragoman.shares import Root
from dragoman.stores.interface import KeepReply, TaskRow, write
from dragoman.telemetry import tracing

# Seconds after which a caller that has filled its share of the store may try again: old tasks are
# deleted every hour.
_RETRY_FULL_AFTER = 3600
# Bytes of memory reserved for each byte of a large message while it is accepted: it is written
# twice, into buffers that grow by half.
_ACCEPTING_BYTES = 4
# So often a message is looked at again whose equals were refused meanwhile.
_TRIES = 100
_encode_fingerprint = msgspec.json.Encoder(order="deterministic").encode


class _Arriving(StoreConflict):
    """Another call brought the same message while this one looked for it."""


class _NamedTaken(StoreConflict):
    """Another call began a task of the id that this message names."""


class BegunTask(msgspec.Struct, frozen=True):
    """The message began a task here, or code that decides whether there will be one."""

    worker: Worker
    task: Task


class Continued(msgspec.Struct, frozen=True):
    """The message was added to a task that this process writes, at a position of its log."""

    log: TaskLog
    seq: int


class TakenElsewhere(msgspec.Struct, frozen=True):
    """The message was added by the process that holds its task, at a position of its log."""

    task_id: TaskId
    seq: int


class Arriving(msgspec.Struct, frozen=True):
    """The message was given to a worker of this process before, and may not be durable yet."""

    worker: Worker
    seq: int


class Repeated(msgspec.Struct, frozen=True):
    """The message is in the store; the log is there while this process writes the task."""

    task_id: TaskId
    log: TaskLog | None


# A bare message is the reply that code without a task gave to the same message before.
Accepted = BegunTask | Continued | TakenElsewhere | Arriving | Repeated | Message


class Intake:
    """Accepts the messages of one agent's callers."""

    def __init__(
        self,
        context: EngineContext,
        live: LiveTasks,
        recovery: Recovery,
        notes: Notes,
        receivers: Receivers,
    ) -> None:
        self._context = context
        self._code = context.code
        self._store = context.store
        self._settings = context.settings
        self._clock = context.clock
        self._shares = context.shares
        self._has_keys = context.settings.engine.idempotency
        self._live = live
        self._recovery = recovery
        self._notes = notes
        self._receivers = receivers

    async def accept(self, scope: Scope, call: Call, operation: SendMessage) -> Accepted:
        """Take a message in, once: the same one again leads to the same task."""
        if operation.push is not None:
            # The secret that signs posts.
            await self._store.prepare()
            self._receivers.check(operation.push)
        shares = self._shares
        quota = shares.quota
        if quota is not None and quota.is_shared:
            # Before the look at earlier messages, which has to be followed by the beginning.
            await quota.prepare(shares.charged(operation.message.message_id, call.caller.who))
        running = shares.running
        if running is not None and scope.owner:
            await running.prepare(scope.principal)
        named = operation.message.task_id
        if self._has_keys and not (call.message_key or named) and call.size <= LARGE_BYTES:
            # Most messages, and without a wait.
            key: bytes | None = _fingerprint(operation)
        else:
            key = await self._key(call, operation)
        problem: Exception | None = None
        for _ in range(_TRIES):
            # Most messages, which are known to be new without a wait.
            is_new = (
                key is not None
                and not named
                and self._store.is_new(key)
                and self._live.arriving((scope, key)) is None
            )
            if key is not None and not is_new:
                earlier = await self._earlier(scope, key, operation)
                if earlier is not None:
                    return await self._joined(scope, earlier, operation)
            try:
                if named and (head := await self._named(scope, call, named)) is not None:
                    return await self._continue(call.caller, operation, head, key)
                if not is_new and key and self._live.arriving((scope, key)) is not None:
                    # Another call brought the same message meanwhile.
                    continue
                begun = self._begin(call, operation, scope, key)
                if not begun.worker.is_started:
                    await self._start_recorded(scope, begun.worker, named)
                return begun
            except _Arriving:
                # The call that was first may be refused: then this one is looked at by itself.
                continue
            except _NamedTaken:
                # What was begun under the same id is there now: this is a message to it.
                continue
            except (StoreConflict, UnsupportedOperation) as error:
                # Another call brought the same message at the same moment, here or to another
                # process, and was first; a task may have ended by it.
                problem = error if isinstance(error, UnsupportedOperation) else problem
                earlier = None if key is None else await self._earlier(scope, key, operation)
                if earlier is not None:
                    return await self._joined(scope, earlier, operation)
                break
        raise problem or Overloaded() from None

    async def _joined(
        self, scope: Scope, earlier: Arriving | Repeated | Message, operation: SendMessage
    ) -> Arriving | Repeated | Message:
        """Return what became of the same message before, with the receiver that this one names."""
        if operation.push is not None and not isinstance(earlier, Message):
            await self._add_receiver(scope, earlier, operation)
        return earlier

    async def _named(self, scope: Scope, call: Call, task_id: TaskId) -> TaskRow | None:
        """Return the row of a task that a caller names. None: there is none, its caller may create
        it, and this process is not about to, until the next `await`."""
        with self._live.reading((scope, task_id)) as read:
            head = await self._store.head(scope, task_id)
        log = self._live.get(scope, task_id)
        if log is None or log.durable_seq:
            if head is None and (log is not None or read.is_outdated):
                # A task of this id began here meanwhile, and may have come to rest.
                raise _NamedTaken
            if head is None and not call.client_task_id:
                raise TaskNotFound(taskId=task_id)
            return head
        # One is being created here. Another replica may have been first: then this one is refused.
        if log.is_held:
            # Its code has not decided yet whether there will be a task.
            raise Overloaded
        with contextlib.suppress(StoreRefused):
            await log.durable(1)
        await asyncio.sleep(0)
        raise _NamedTaken

    async def accepted_elsewhere(
        self, scope: Scope, call: Call, operation: SendMessage
    ) -> Arriving | Repeated | Message:
        """Return what became of a message that another process was given too, and took first."""
        key = await self._key(call, operation)
        earlier = None if key is None else await self._earlier(scope, key, operation)
        if earlier is None:
            raise Overloaded
        return earlier

    # Repetitions

    async def _key(self, call: Call, operation: SendMessage) -> bytes | None:
        """Return the fingerprint of a message: its key, or its id and its content; None if
        repetitions are not recognised.

        A message to a task may answer a sensitive question: a fingerprint without a secret would
        let a reader of the store's file try out answers."""
        if not self._has_keys:
            return None
        if call.message_key:
            return hashlib.blake2b(call.message_key.encode(), digest_size=16).digest()
        secret = b""
        if operation.message.task_id:
            await self._store.prepare()
            secret = self._store.secret
        if call.size <= LARGE_BYTES:
            return _fingerprint(operation, secret)
        reserve(_ACCEPTING_BYTES * call.size)
        return await off_loop(_fingerprint, operation, secret)

    async def _earlier(
        self, scope: Scope, key: bytes, operation: SendMessage
    ) -> Arriving | Repeated | Message | None:
        """Return what became of the same message before."""
        message_key = scope, key
        found = self._live.arriving(message_key)
        if found is not None and not found[0].is_started:
            # Another process may have been given the same message and be first.
            try:
                await found[0].log.durable(1)
            except StoreRefused:
                found = None
        if found is not None and found[0].log.failure is None:
            return Arriving(*found)
        with self._live.reading(message_key) as read:
            known = await self._store.known(scope, key)
            if known is None and operation.message.task_id:
                # Earlier releases stored fingerprints of all messages without a secret.
                known = await self._store.known(scope, _fingerprint(operation))
        if known is None:
            # A call may have brought the same message here and been answered meanwhile.
            return await self._earlier(scope, key, operation) if read.is_outdated else None
        if known.reply:
            return decode_message(known.reply)
        if not known.task_id:
            # The task was deleted; its message does not begin another one.
            raise TaskNotFound
        log = self._live.get(scope, known.task_id)
        if log is not None and log.failure is not None:
            # Another worker has the task, or will have it.
            log = None
        if log is None:
            await self._notes.wait_for(scope, known.task_id, operation.message.message_id)
        is_moving = log is not None and (log.is_active or not log.is_idle)
        return Repeated(known.task_id, log if is_moving else None)

    async def _add_receiver(
        self, scope: Scope, earlier: Arriving | Repeated, operation: SendMessage
    ) -> None:
        """Add the receiver that a repeated message names."""
        assert operation.push is not None
        task_id = earlier.worker.log.task_id if isinstance(earlier, Arriving) else earlier.task_id
        log = moving_log(earlier)
        if log is not None:
            # Without a durable task there is nothing to post.
            with contextlib.suppress(StoreRefused):
                await log.durable(earlier.seq if isinstance(earlier, Arriving) else 1)
        await self._receivers.add_repeated(scope, task_id, operation.push)

    # New tasks

    def _begin(
        self, call: Call, operation: SendMessage, scope: Scope, key: bytes | None
    ) -> BegunTask:
        """Begin a task, or at least the code that decides whether there will be one.

        Where other processes share the store, the code of a task waits: see `_start_recorded`."""
        live = self._live
        shares = self._shares
        code = self._code
        caller = call.caller
        live.make_room(scope)
        plan = code.plan(operation, caller=caller)
        if code.is_scoped:
            code.admit(caller, operation)
        ends = None
        if plan.deadline is not None or DEADLINE in operation.metadata:
            ends = _ends(plan, operation, self._clock)
        if ends is not None and ends <= self._clock.now() and plan.order is None:
            # Its caller waits no longer. (A task with an order is ended by its own code.)
            plan = Plan(_fail_overdue)
        message = operation.message
        who = caller.who
        task_id = message.task_id or TaskId(new_id())
        context_id = message.context_id or ContextId(new_id())
        operation = _with_ids(operation, task_id, context_id)
        root = shares.root(message.message_id, who)
        log = TaskLog(
            self._store,
            live.bell,
            live.limits,
            scope,
            task_id,
            context_id,
            shares,
            shares.account(root.who),
            scope.agent,
            (scope, task_id),
        )
        if shares.has_bounds:
            if shares.is_unmeasured(log.account):
                live.in_background(shares.measure(log.account, self._store))
            if log.account.is_full:
                raise RateLimited(STORE_IS_FULL, retry_after=_RETRY_FULL_AFTER)
        now = log.now()
        if plan.order is not None:
            log.order = msgspec.structs.replace(
                plan.order, requester=caller.principal, began_at=now
            )
        task = Task(
            id=task_id,
            context_id=context_id,
            status=TaskStatus(TaskState.SUBMITTED, None, stamp_ms(now)),
            history=[operation.message],
            metadata=operation.metadata,
        )
        # Held for the worker's first slice: a short task is accepted and completed in one write.
        log.is_held = True
        if key is not None:
            log.use_key(key)
        keep = functools.partial(self._keep_reply, scope, key)
        if self._context.hooks.is_on:
            hooks = LogHooks(self._context.hooks, log)
            keep = functools.partial(self._keep_hooked_reply, hooks, keep)
        replay = Replay([operation])
        # Counted after all other checks, and before anything is recorded.
        if shares.quota is not None and not root.is_counted:
            self._count(log, root, plan.tasks)
        worker = Worker(
            log, replay, plan, caller, self._clock, keep, is_local=self._context.is_local
        )
        replay.trace = tracing.current()
        try:
            log.emit(task, now)
            if tracing.per_event:
                trace_event(log, task, replay.trace)
            if replay.trace is not None:
                log.emit(TraceJoined(replay.trace.parent, replay.trace.state))
                if tracing.on:
                    tracing.note({"agent.task.id": task_id, "session.id": context_id})
            if caller.scopes:
                log.emit(ScopesGranted(sorted(caller.scopes)))
            if ends is not None:
                log.deadline = replay.deadline = ends
                log.emit(DeadlineSet(ends))
        except LogIsFull:
            if log.on_void is not None:
                log.on_void()
            raise InvalidParams("is larger than a task may be", field="message") from None
        if operation.push is not None:
            log.pushes = [with_ids(operation.push, task_id)]
            live.in_background(self._receivers.deliver(log))
        live.add(worker, (scope, key) if key is not None else None)
        if self._store.knows_all or plan.may_reply or plan.may_begin_early:
            live.start(worker)
        if not plan.may_reply:
            # After the start, so that the first slice comes before the write.
            log.release()
        elif ends is not None:
            seconds = (ends - self._clock.now()) / 1000
            live.in_background(_end_undecided(worker, seconds))
        return BegunTask(worker, task)

    def _count(self, log: TaskLog, root: Root, count: int) -> None:
        """Count the task on its caller's quota; raises `RateLimited`. What the store refuses is
        given back."""
        quota = self._shares.quota
        assert quota is not None, "asked before"
        quota.begin(root.who, count)
        log.on_void = functools.partial(quota.give_back, root.who, count)

    async def _keep_reply(self, scope: Scope, key: bytes | None, reply: Message) -> Message:
        """Store the reply of code that made no task; return the one that was stored first."""
        if key is None:
            return reply
        try:
            await write(self._store, KeepReply(scope, key, encode(reply)))
        except StoreConflict:
            # Another process was given the same message, and answered it first.
            known = await self._store.known(scope, key)
            if known is None or not known.reply:
                raise
            return decode_message(known.reply)
        return reply

    async def _keep_hooked_reply(
        self, hooks: LogHooks, keep: Callable[[Message], Awaitable[Message]], reply: Message
    ) -> Message:
        """Store what the hooks made of a reply, and show it to them."""
        stored = await keep(await hooks.reply(reply))
        hooks.replied(stored)
        return stored

    async def _start_recorded(self, scope: Scope, worker: Worker, named: TaskId) -> None:
        """Start a task's code once no other process can have taken the same message first, or
        begun a task of the id that the message names."""

        async def start() -> StoreRefused | None:
            try:
                await worker.log.durable(1)
            except StoreRefused as error:
                self._live.forget(worker)
                return error
            self._live.start(worker)
            return None

        # The caller may disconnect; the task begins all the same.
        refusal = await asyncio.shield(asyncio.ensure_future(start()))
        if refusal is not None:
            is_conflict = isinstance(refusal, StoreConflict)
            if named and is_conflict and await self._store.head(scope, named) is not None:
                raise _NamedTaken from refusal
            raise refusal

    # Further messages

    async def _continue(
        self, caller: Caller, operation: SendMessage, head: TaskRow, key: bytes | None
    ) -> Continued | TakenElsewhere:
        """Give a further message to a task."""
        message = operation.message
        if message.context_id and message.context_id != head.context_id:
            raise InvalidParams("is not the context of this task", field="message.contextId")
        if head.standing.state.is_terminal:
            raise task_ended(head.standing.state)
        operation = _with_ids(operation, head.task_id, head.context_id)
        if self._code.is_scoped:
            await self._admit(caller, operation, head)
        is_elsewhere = await self._live.is_elsewhere(head)
        if is_elsewhere:
            # Checked here as well: the holder of the task cannot refuse the sender.
            self._code.plan(operation, None, is_answer=True)
        if operation.push is not None:
            await self._receivers.put(head, operation.push)
        if is_elsewhere:
            seq = await self._notes.leave(caller, operation, head, key)
            return TakenElsewhere(head.task_id, seq)
        worker = await self._recovery.worker_of(head)
        if worker is None:
            raise task_ended()
        if worker.queued >= self._settings.engine.max_queued_messages:
            raise Overloaded
        if key is not None and self._live.arriving((head.scope, key)) is not None:
            raise _Arriving
        if tracing.on:
            tracing.link(worker.replay.trace or tracing.of_task(head.task_id))
        plan = plan_further(self._code, operation, worker.replay, worker.log)
        try:
            seq = worker.add_message(operation, plan, caller)
        except TaskIsFinished:
            raise task_ended() from None
        except LogIsFull:
            raise UnsupportedOperation("The task reached its limit") from None
        except StoreRefused as error:
            raise refused(error) from None
        if key is not None:
            worker.log.use_key(key)
            self._live.add(worker, (head.scope, key), seq)
        return Continued(worker.log, seq)

    async def _admit(self, caller: Caller, operation: SendMessage, head: TaskRow) -> None:
        """Raise `PermissionDenied` unless a caller may use every skill of a task: code that waits
        for an answer takes it from any sender, whichever skill the message names."""
        began: SendMessage | None = None
        after = 0
        while found := await self._store.read(
            head.number, after=after, limit=READ_AT_ONCE, artifacts=False
        ):
            for recorded in found:
                match recorded.event:
                    case Task() as task if began is None:
                        began = SendMessage(message=task.history[0], metadata=task.metadata)
                        self._code.admit(caller, began)
                    case MessageAdded(message, metadata):
                        further = SendMessage(message=message, metadata=metadata)
                        self._code.admit(caller, further, began)
                    case _:
                        pass
            after = found[-1].seq
        self._code.admit(caller, operation, began)


def moving_log(accepted: Arriving | Repeated) -> TaskLog | None:
    """Return the log of a repeated message's task if something may still be written to it."""
    if isinstance(accepted, Repeated):
        return accepted.log
    log = accepted.worker.log
    return None if log.is_retired or (log.is_idle and not log.is_active) else log


def _ends(plan: Plan, operation: SendMessage, clock: Clock) -> int | None:
    """Return when a task has to have ended, in milliseconds: the earlier of what its code and its
    caller allow. Metadata that is not a time is ignored: it may belong to another extension."""
    ends: list[int] = []
    if plan.deadline is not None:
        ends.append(clock.now() + int(plan.deadline * 1000))
    with contextlib.suppress(ValueError):
        callers = deadline_of(operation.metadata)
        if callers is not None:
            # 0 means no deadline.
            ends.append(max(1, callers))
    return min(ends, default=None)


async def _fail_overdue(worker: Worker) -> None:
    """Run in place of the code of a task whose deadline passed before it arrived."""
    raise TaskFailed(OVERDUE)


async def _end_undecided(worker: Worker, seconds: float) -> None:
    """Fail code that is overdue before it decides whether there is a task: no sweep finds it."""
    # What keeps it from a decision is told to the caller that waits for one.
    with contextlib.suppress(TimeoutError, StoreRefused, InternalError):
        await asyncio.wait_for(worker.decision.made(), seconds)
    if not worker.is_decided:
        worker.end(TaskState.FAILED, OVERDUE)


def _fingerprint(operation: SendMessage, secret: bytes = b"") -> bytes:
    content = _encode_fingerprint([operation.message, operation.metadata])
    return hashlib.blake2b(content, digest_size=16, key=secret).digest()


def _with_ids(operation: SendMessage, task_id: TaskId, context_id: ContextId) -> SendMessage:
    """Return the operation with its message bearing the ids of its task and context."""
    message = msgspec.structs.replace(operation.message, task_id=task_id, context_id=context_id)
    return msgspec.structs.replace(operation, message=message)
