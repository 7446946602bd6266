"""The engine: the Service that runs an agent on its tasks. One short method per operation."""

import asyncio
import contextlib
import functools
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from dragoman.config import Settings
from dragoman.engine.event_hooks import EventHooks, HookCalls
from dragoman.engine.holdings import OVERDUE, Holdings, NoteBody
from dragoman.engine.isolation import Isolation
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.log import (
    STORE_IS_FULL,
    LogIsFull,
    Place,
    TaskLog,
    follow,
    read_task,
    tail,
)
from dragoman.engine.receivers import Postings, Receivers, named, refused
from dragoman.engine.replay import Replay
from dragoman.engine.seal import load_cipher, seal, unseal
from dragoman.engine.shares import Root, Shares
from dragoman.engine.transitions import read_transitions
from dragoman.engine.worker import AgentCode, Plan, Worker, trace_event
from dragoman.errors import (
    ExtensionRequired,
    InternalError,
    InvalidParams,
    Overloaded,
    RateLimited,
    StoreConflict,
    StoreRefused,
    TaskFailed,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.deadline import deadline_of
from dragoman.model.events import (
    DeadlineSet,
    MessageAdded,
    ScopesGranted,
    StatusUpdate,
    TraceJoined,
)
from dragoman.model.identity import Caller, ContextId, Scope, TaskId, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message
from dragoman.model.record import Recorded, TaskReading, decode_message, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.model.transition import TRANSITIONS_URI
from dragoman.service import (
    Batch,
    Call,
    Opening,
    Reply,
    TaskPage,
    TaskReply,
    next_turn,
    off_loop,
    reserve,
)
from dragoman.stores.interface import Head, KeepReply, LeaveNote, Push, Query, Store, Write
from dragoman.telemetry import tracing

# A page of a list holds not much more than this.
_PAGE_BYTES = 16 * 1024 * 1024
# Events that are read at once where a whole log is looked through.
_READ_AT_ONCE = 1000
# Seconds after which who has filled their share of the store may look again: old tasks are
# forgotten every hour.
_STORE_IS_FULL_FOR = 3600
# Seconds beyond its grace that a cancel in another process may take.
_ELSEWHERE = 5.0
# Bytes that are taken for each of a large message while it is accepted: it is written twice, into
# what grows by half.
_MEMORY = 4
_fingerprint = msgspec.json.Encoder(order="deterministic").encode


class _Accepted(msgspec.Struct):
    """What became of a message: a task and where in its log the message stands, or a reply."""

    task_id: TaskId = TaskId("")
    worker: Worker | None = None
    log: TaskLog | None = None
    # The state the caller's stream opens with; None: as the store has it.
    opening: Task | None = None
    seq: int = 0
    reply: Message | None = None
    # What of the log has to be durable before anyone hears of it.
    durable: int = 1


class Engine:
    """Answers calls for one agent."""

    def __init__(
        self,
        code: AgentCode,
        store: Store,
        settings: Settings,
        *,
        clock: Clock | None = None,
        postings: Postings | None = None,
        isolation: Isolation | None = None,
        shares: Shares | None = None,
        is_local: bool = False,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        """`shares` are those of all engines of a process; `is_local`: only this machine reaches
        us. `hooks` see and change the events of its tasks, in their order."""
        self._code = code
        self._store = store
        self._settings = settings
        self._clock = clock or SystemClock()
        self._receivers = Receivers(store, postings)
        self._shares = shares or Shares()
        self._is_local = is_local
        self._hooks = HookCalls(hooks)
        self._holdings = Holdings(
            code,
            store,
            settings,
            self._clock,
            self._shares,
            isolation,
            self._hooks,
            is_local=is_local,
        )

    # Life

    async def sweep(self) -> int:
        """Take over what dead workers left, end what is overdue; return how many were taken."""
        return await self._holdings.sweep()

    async def stop(self) -> None:
        """Let go of running tasks; another process takes them over."""
        self._holdings.stop()
        await self._hooks.close()

    # Service

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        self._check_extensions(call)
        match call.operation:
            case ops.SendMessage() as operation:
                try:
                    return await self._send(call, operation)
                except StoreRefused as error:
                    # Whichever write it was: one's own, or the one that a repetition waited for.
                    raise refused(error) from None
            case ops.GetTask() as operation:
                return await self._get(call, operation)
            case ops.ListTasks() as operation:
                return await self._list(self._scope(call), operation)
            case ops.CancelTask() as operation:
                return await self._cancel(self._scope(call), operation)
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush() as operation:
                await self._store.prepare()
                return await self._receivers.answer(self._scope(call), operation)
            case _:
                raise UnsupportedOperation

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call."""
        self._check_extensions(call)
        if not self._code.streaming:
            raise UnsupportedOperation("Streaming is not supported")
        match call.operation:
            case ops.SendMessage() as operation:
                return self._send_and_follow(call, operation)
            case ops.SubscribeToTask() as operation:
                return self._subscribe(call, operation)
            case _:
                raise UnsupportedOperation

    def _check_extensions(self, call: Call) -> None:
        missing = self._code.required_extensions - call.extensions
        if missing:
            raise ExtensionRequired(extensions=",".join(sorted(missing)))

    def _scope(self, call: Call) -> Scope:
        return Scope.of(self._code.name, call.operation.tenant, call.caller)

    @property
    def live_tasks(self) -> int:
        """How many tasks this process works on."""
        return self._holdings.live

    # Reading

    async def _find(self, scope: Scope, task_id: TaskId) -> Head:
        """Return a task's row."""
        head = await self._store.head(scope, task_id)
        if head is None:
            raise TaskNotFound(taskId=task_id)
        return head

    async def _reading(self, head: Head, upto: int | None = None) -> TaskReading:
        """Return a task as of a position, or as its head was found: an agent that writes faster
        than we read would keep a reader of the newest busy for ever."""
        upto = head.standing.last_seq if upto is None else upto
        return await self._task_at(head.number, upto)

    async def _task_at(self, number: int, upto: int | None) -> TaskReading:
        found = await read_task(self._store, number, upto=upto)
        if found is None:
            raise TaskNotFound
        return found

    async def _get(self, call: Call, operation: ops.GetTask) -> TaskReply:
        found = await self._store.at_rest(self._scope(call), operation.task_id)
        if found is None:
            raise TaskNotFound(taskId=operation.task_id)
        head, reading = found
        reply = TaskReply(reading or await self._reading(head), operation.history)
        if TRANSITIONS_URI not in call.extensions:
            return reply
        after = call.after or 0
        if after < 0:
            raise InvalidParams("is not a position", field="lastEventId")
        upto = reply.reading.seq
        transitions = await read_transitions(self._store, head.number, after=after, upto=upto)
        return msgspec.structs.replace(reply, transitions=transitions)

    async def _list(self, scope: Scope, operation: ops.ListTasks) -> TaskPage:
        since = operation.status_since
        token = operation.page_token
        found = await self._store.page(
            Query(
                scope=scope,
                # One more than asked tells whether there is a next page.
                limit=operation.page_size + 1,
                context_id=operation.context_id,
                state=operation.state,
                # The wire shows whole milliseconds; a finer bound rounds up to the next one.
                status_since=None if since is None else -(-since // 1000),
                errand_for=operation.agent,
                after=await self._unsealed(token, scope, operation),
            )
        )
        heads = found.heads[: operation.page_size]
        tasks: list[TaskReply] = []
        size = 0
        for index, head in enumerate(heads):
            if size > _PAGE_BYTES:
                # A page ends where it gets heavy; its token goes on from there.
                heads = heads[:index]
                break
            read = await read_task(
                self._store,
                head.number,
                upto=head.standing.last_seq,
                artifacts=operation.include_artifacts,
            )
            if read is not None:
                size += len(read.body)
                tasks.append(TaskReply(read, operation.history))
        next_token = ""
        if len(found.heads) > len(heads):
            last = heads[-1]
            place = (last.standing.status_at, last.number)
            await self._can_seal()
            next_token = seal(place, self._store.secret, scope, operation)
        return TaskPage(
            tasks, next_token, operation.page_size, found.total, operation.include_artifacts
        )

    async def _unsealed(
        self, token: str, scope: Scope, operation: ops.ListTasks
    ) -> tuple[int, int] | None:
        if not token:
            return None
        await self._can_seal()
        return unseal(token, self._store.secret, scope, operation)

    async def _can_seal(self) -> None:
        """Have at hand what page tokens are sealed with."""
        await self._store.prepare()
        await load_cipher()

    # Sending

    async def _send(self, call: Call, operation: ops.SendMessage) -> Reply:
        accepted = await self._accept(call, operation)
        try:
            return await self._answered(call, operation, accepted)
        except StoreConflict:
            again = await self._again(call, operation)
            return await self._answered(call, operation, again)

    async def _answered(self, call: Call, operation: ops.SendMessage, accepted: _Accepted) -> Reply:
        reply = await self._reply(accepted)
        if reply is not None:
            return reply
        reading = None
        log = accepted.log
        try:
            if log is None and operation.wait:
                resting = self._rest_elsewhere(self._scope(call), accepted.task_id, accepted.seq)
                await asyncio.wait_for(resting, call.patience or None)
            elif log is not None and operation.wait:
                reading = await asyncio.wait_for(log.rest(accepted.seq), call.patience or None)
            elif log is not None:
                await log.durable(max(accepted.seq, accepted.durable))
        except TimeoutError:
            if log is not None:
                # Who is told of a task finds it, however slow the disk is.
                await log.durable(max(accepted.seq, accepted.durable))
        if reading is None:
            if call.is_large:
                await next_turn()
            head = await self._find(self._scope(call), accepted.task_id)
            reading = await self._reading(head)
        return TaskReply(reading, operation.history)

    async def _rest_elsewhere(
        self, scope: Scope, task_id: TaskId, after: int = 0, *, at_end: bool = False
    ) -> None:
        """Wait until a task that is not written here rests, or until its end."""
        head = await self._find(scope, task_id)
        state = head.standing.state
        if state.is_terminal or (state.is_resting and not at_end):
            return
        last = after or head.standing.last_seq
        batches = self._batches(_place(head, last), None)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for event in (recorded.event for recorded in batch):
                    if isinstance(event, StatusUpdate) and (
                        event.status.state.is_terminal
                        or (event.status.state.is_resting and not at_end)
                    ):
                        return

    async def _reply(self, accepted: _Accepted) -> Message | None:
        """Wait until it is decided whether there is a task; return the reply if there is none."""
        if accepted.worker is None or accepted.worker.decision.done():
            decided = accepted.reply
            if accepted.worker is not None and not accepted.worker.decision.cancelled():
                decided = accepted.worker.decision.result()
            return decided
        try:
            return await asyncio.shield(accepted.worker.decision)
        except asyncio.CancelledError:
            if accepted.worker.decision.cancelled():
                raise InternalError from None
            raise

    async def _again(self, call: Call, operation: ops.SendMessage) -> _Accepted:
        """Return what became of a message that another process was given too, and took first."""
        key = await self._key(call, operation)
        earlier = None if key is None else await self._earlier(self._scope(call), key, operation)
        if earlier is None:
            raise Overloaded
        return earlier

    async def _send_and_follow(
        self, call: Call, operation: ops.SendMessage
    ) -> AsyncGenerator[Batch]:
        try:
            accepted, reply = await self._begun_once(call, operation)
        except StoreRefused as error:
            raise refused(error) from None
        if reply is not None:
            yield reply
            return
        log = accepted.log
        is_reset = False
        if accepted.opening is not None and log is not None:
            reading = TaskReading(accepted.seq, accepted.opening)
            number = log.number
        else:
            head = await self._find(self._scope(call), accepted.task_id)
            upto = accepted.seq or _position(call.after, head)
            is_reset = call.after is not None and upto is None
            reading, number = await self._reading(head, upto), head.number
        yield Opening(TaskReply(reading, operation.history), is_reset)
        state = reading.task.status.state
        if state.is_terminal or (state.is_interrupted and not accepted.seq and call.after is None):
            return
        place = Place(self._scope(call), accepted.task_id, number, reading.seq)
        shown = self._shown(place, call, log)
        async with contextlib.aclosing(shown):
            async for batch in shown:
                yield batch

    async def _begun_once(
        self, call: Call, operation: ops.SendMessage
    ) -> tuple[_Accepted, Message | None]:
        """Take a message in and wait until that is durable, here or where it was taken in first."""
        accepted = await self._accept(call, operation)
        try:
            return accepted, await self._begun(accepted)
        except StoreConflict:
            accepted = await self._again(call, operation)
            return accepted, await self._begun(accepted)

    async def _begun(self, accepted: _Accepted) -> Message | None:
        """Wait until what a stream begins with is durable; return the reply if it is only that."""
        reply = await self._reply(accepted)
        if reply is None and accepted.log is not None:
            await accepted.log.durable(max(accepted.seq, accepted.durable))
        return reply

    async def _accept(self, call: Call, operation: ops.SendMessage) -> _Accepted:
        """Take a message in, once: the same one again leads to the same task."""
        if operation.push is not None:
            # Posts are signed with it.
            await self._store.prepare()
            self._receivers.check(operation.push)
        scope = self._scope(call)
        key = await self._key(call, operation)
        if key is not None and (earlier := await self._earlier(scope, key, operation)) is not None:
            if operation.push is not None and earlier.task_id:
                if earlier.log is not None:
                    # It may not be on disk yet; if it never is, there is nothing to tell of.
                    with contextlib.suppress(StoreRefused):
                        await earlier.log.durable(max(earlier.durable, 1))
                await self._receivers.also_tell(scope, earlier.task_id, operation.push)
            return earlier
        try:
            if operation.message.task_id:
                head = await self._store.head(scope, operation.message.task_id)
                if head is not None:
                    return await self._continue(call.caller, operation, head, key)
                if not call.client_task_id:
                    raise TaskNotFound(taskId=operation.message.task_id)
            accepted = self._begin(call, operation, scope, key)
            if accepted.worker is not None and not accepted.worker.is_started:
                await self._start_recorded(accepted)
        except StoreConflict:
            # Another process was given the same message at the same moment, and was first.
            return await self._again(call, operation)
        return accepted

    async def _start_recorded(self, accepted: _Accepted) -> None:
        """Start a task's code once the task is ours for certain: others share the store."""
        log, worker = accepted.log, accepted.worker
        assert log is not None and worker is not None, "a task that begins has both"

        async def start() -> StoreRefused | None:
            try:
                await log.durable(1)
            except StoreRefused as error:
                self._holdings.forget(worker)
                return error
            self._holdings.start(worker)
            return None

        # The caller may leave; the task is begun all the same.
        refusal = await asyncio.shield(asyncio.ensure_future(start()))
        if refusal is not None:
            raise refusal

    async def _earlier(
        self, scope: Scope, key: bytes, operation: ops.SendMessage
    ) -> _Accepted | None:
        """Return what became of the same message before."""
        found = self._holdings.arriving((scope, key))
        if found is not None and not found[0].is_started:
            # Another process may have been given the same message and be first.
            try:
                await found[0].log.durable(1)
            except StoreRefused:
                found = None
        if found is not None and found[0].log.failure is None:
            worker, seq = found
            log = None if worker.log.is_retired else worker.log
            resting = log is not None and log.is_idle and not log.is_active
            return _Accepted(worker.log.task_id, worker, None if resting else log, durable=seq)
        known = await self._store.known(scope, key)
        if known is None and operation.message.task_id:
            # Earlier releases left bare fingerprints of all messages.
            known = await self._store.known(scope, _digest(operation))
        if known is None:
            return None
        if known.reply:
            return _Accepted(reply=decode_message(known.reply))
        if not known.task_id:
            # The task was forgotten; its message is not a new one for that.
            raise TaskNotFound
        log = self._holdings.get(scope, known.task_id)
        if log is None:
            await self._wait_for_note(scope, known.task_id, operation.message.message_id)
        is_moving = log is not None and (log.is_active or not log.is_idle)
        return _Accepted(known.task_id, None, log if is_moving else None)

    async def _wait_for_note(self, scope: Scope, task_id: TaskId, message_id: str) -> None:
        """Wait until a message that was left for another process is taken in, if it is not yet."""
        head = await self._store.head(scope, task_id)
        if head is None or head.standing.state.is_terminal:
            return
        for note in await self._store.notes(head.number):
            said = NoteBody.decoded(note.body).operation
            if said is not None and said.message.message_id == message_id:
                await self._taken_in_time(head, message_id)

    async def _key(self, call: Call, operation: ops.SendMessage) -> bytes | None:
        """Return the fingerprint of a message: its id and what it says; None: none is wanted.

        What is said to a task may answer a sensitive question: a bare fingerprint would let whoever
        has the store's file try out answers."""
        if not self._settings.idempotency:
            return None
        secret = b""
        if operation.message.task_id:
            await self._store.prepare()
            secret = self._store.secret
        if not call.is_large:
            return _digest(operation, secret)
        reserve(_MEMORY * call.size)
        return await off_loop(_digest, operation, secret)

    def _begin(
        self, call: Call, operation: ops.SendMessage, scope: Scope, key: bytes | None
    ) -> _Accepted:
        """Start a task, or at least the code that decides whether there will be one.

        Where others share the store the code of a task waits: see `_start_recorded`."""
        self._holdings.make_room(scope.principal)
        plan = self._code.plan(operation, caller=call.caller)
        self._code.admit(call.caller, operation)
        ends = _ends(plan, operation, self._clock.now())
        if ends is not None and ends <= self._clock.now() and plan.errand is None:
            # Its caller waits no longer. (What is on somebody's books is ended by its own code.)
            plan = Plan(_too_late)
        message = operation.message
        if message.task_id and self._holdings.get(scope, message.task_id) is not None:
            # Someone is making a task of this very id; once it is there, this is a message to it.
            raise Overloaded
        task_id = message.task_id or TaskId(new_id())
        context_id = message.context_id or ContextId(new_id())
        operation = _stamped(operation, task_id, context_id)
        root = self._shares.root(message.message_id, call.caller.who)
        log = self._holdings.fresh_log(scope, operation.message, task_id, root.who)
        if self._shares.has_bounds:
            self._check_store(log)
        now = time.time_ns() // 1000
        if plan.errand is not None:
            log.errand = msgspec.structs.replace(
                plan.errand, requester=call.caller.principal, began_at=now // 1000
            )
        task = Task(
            id=task_id,
            context_id=context_id,
            status=TaskStatus(TaskState.SUBMITTED, None, stamp(now)),
            history=[operation.message],
            metadata=operation.metadata,
        )
        # Held for the worker's first slice: a short task is accepted and completed in one write.
        log.is_held = True
        if key is not None:
            log.use_key(key)

        async def keep(reply: Message) -> Message:
            if key is None:
                return reply
            try:
                await self._write(KeepReply(scope, key, encode(reply)))
            except StoreConflict:
                # Another process was given the same message, and answered it first.
                known = await self._store.known(scope, key)
                if known is None or not known.reply:
                    raise
                return decode_message(known.reply)
            return reply

        replay = Replay(operation)
        # Counted once nothing else speaks against it, and before anything is recorded.
        self._count(log, root, plan.tasks)
        worker = Worker(log, replay, plan, call.caller, self._clock, keep, is_local=self._is_local)
        replay.trace = tracing.current()
        try:
            log.emit(task, at=now // 1000)
            if tracing.per_event:
                trace_event(log, task, replay.trace)
            if replay.trace is not None:
                log.emit(TraceJoined(replay.trace.parent, replay.trace.state))
                if tracing.on:
                    tracing.note({"agent.task.id": task_id, "session.id": context_id})
            if call.caller.scopes:
                log.emit(ScopesGranted(sorted(call.caller.scopes)))
            if ends is not None:
                log.deadline = replay.deadline = ends
                log.emit(DeadlineSet(ends))
        except LogIsFull:
            if log.on_void is not None:
                log.on_void()
            raise InvalidParams("is larger than a task may be", field="message") from None
        if operation.push is not None:
            log.pushes = [named(operation.push, task_id)]
            self._holdings.soon(self._receivers.deliver(log))
        self._holdings.add(worker, (scope, key) if key is not None else None)
        if self._store.is_alone or plan.may_reply or plan.may_begin_early:
            self._holdings.start(worker)
        if not plan.may_reply:
            # After the start, so that the first slice comes before the write.
            log.release()
        elif ends is not None:
            left = (ends - self._clock.now()) / 1000
            self._holdings.soon(self._holdings.end_undecided(worker, left))
        return _Accepted(log.task_id, worker, log, task, 1)

    def _check_store(self, log: TaskLog) -> None:
        """Refuse a task of a caller whose logs have all that they may have of the store."""
        if self._shares.is_unmeasured(log.account):
            self._holdings.soon(self._shares.measure(log.account, self._store))
        if log.account.is_full:
            raise RateLimited(STORE_IS_FULL, retry_after=_STORE_IS_FULL_FOR)

    def _count(self, log: TaskLog, root: Root, count: int) -> None:
        """Count what begins on its caller's quota; raises `RateLimited`. What the store refuses
        was never begun."""
        quota = self._shares.quota
        if quota is not None and not root.is_counted:
            quota.begin(root.who, count)
            log.on_void = functools.partial(quota.give_back, root.who, count)

    async def _continue(
        self, caller: Caller, operation: ops.SendMessage, head: Head, key: bytes | None
    ) -> _Accepted:
        """Give a further message to a task."""
        message = operation.message
        if message.context_id and message.context_id != head.context_id:
            raise InvalidParams("is not the context of this task", field="message.contextId")
        if head.standing.state.is_terminal:
            raise _finished(head.standing.state)
        operation = _stamped(operation, head.task_id, head.context_id)
        if self._code.is_scoped:
            await self._admit(caller, operation, head)
        is_elsewhere = self._holdings.is_elsewhere(head)
        if is_elsewhere:
            # What is wrong with a message its sender hears, not the process that holds the task.
            self._code.plan(operation, None, is_answer=True)
        if operation.push is not None:
            await self._receivers.put(head, operation.push)
        if is_elsewhere:
            return await self._leave_note(caller, operation, head, key)
        worker = await self._holdings.worker_of(head)
        if worker is None:
            raise _finished(None)
        if worker.queued >= self._settings.max_queued_messages:
            raise Overloaded
        if tracing.on:
            tracing.link(worker.replay.trace or tracing.of_task(head.task_id))
        plan = self._holdings.plan_for(operation, worker.replay, worker.log)
        try:
            seq = self._holdings.hand_over(worker, operation, plan, caller)
        except TaskIsFinished:
            raise _finished(None) from None
        except LogIsFull:
            raise UnsupportedOperation("The task reached its limit") from None
        except StoreRefused as error:
            raise refused(error) from None
        if key is not None:
            worker.log.use_key(key)
            self._holdings.add(worker, (head.scope, key), seq)
        return _Accepted(head.task_id, worker, worker.log, None, seq)

    async def _admit(self, caller: Caller, operation: ops.SendMessage, head: Head) -> None:
        """Raise `PermissionDenied` unless a caller may use every skill a task has to do with: the
        code that waits for an answer takes it from whoever sends one, whatever that one names."""
        began: ops.SendMessage | None = None
        after = 0
        while found := await self._store.read(
            head.number, after=after, limit=_READ_AT_ONCE, artifacts=False
        ):
            for recorded in found:
                match recorded.event:
                    case Task() as task if began is None:
                        began = ops.SendMessage(message=task.history[0], metadata=task.metadata)
                        self._code.admit(caller, began)
                    case MessageAdded(message, metadata):
                        said = ops.SendMessage(message=message, metadata=metadata)
                        self._code.admit(caller, said, began)
                    case _:
                        pass
            after = found[-1].seq
        self._code.admit(caller, operation, began)

    async def _leave_note(
        self, caller: Caller, operation: ops.SendMessage, head: Head, key: bytes | None
    ) -> _Accepted:
        """Leave a message to a task for the process that holds it."""
        keys = [] if key is None else [key]
        body = NoteBody(operation, sorted(caller.scopes)).encoded()
        await self._write(LeaveNote(head.scope, head.number, keys, body))
        # Not before: a task that ends without having read it has not taken the message in.
        seq = await self._taken_in_time(head, operation.message.message_id)
        return _Accepted(head.task_id, seq=seq)

    async def _taken_in_time(self, head: Head, message_id: str) -> int:
        taking = self._taken_in(head, message_id)
        try:
            return await asyncio.wait_for(taking, self._settings.lease + _ELSEWHERE)
        except TimeoutError:
            raise Overloaded from None

    async def _taken_in(self, head: Head, message_id: str) -> int:
        """Wait until the process that holds a task recorded a message; return the place from which
        on the task is as the message leaves it."""
        state = head.standing.state
        batches = self._batches(_place(head, head.standing.last_seq), None)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for recorded in batch:
                    event = recorded.event
                    if isinstance(event, MessageAdded) and event.message.message_id == message_id:
                        # One that wakes the task is followed by that status, in the same write.
                        return recorded.seq + state.is_resting
                    if isinstance(event, StatusUpdate):
                        state = event.status.state
                        if state.is_terminal:
                            raise _finished(state)
        raise Overloaded

    async def _write(self, write: Write) -> None:
        """Make a write durable that belongs to no log."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: Exception | None, _: int) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._store.submit(write, told)
        await done

    # Following

    async def _subscribe(self, call: Call, operation: ops.SubscribeToTask) -> AsyncGenerator[Batch]:
        head = await self._find(self._scope(call), operation.task_id)
        upto = _position(call.after, head)
        if upto is None and head.standing.state.is_terminal:
            raise UnsupportedOperation("The task has ended; there is nothing to follow")
        reading = await self._reading(head, upto)
        yield Opening(TaskReply(reading), is_reset=call.after is not None and upto is None)
        if reading.task.status.state.is_terminal:
            return
        log = self._holdings.get(head.scope, head.task_id)
        shown = self._shown(_place(head, reading.seq), call, log)
        async with contextlib.aclosing(shown):
            async for batch in shown:
                yield batch

    def _shown(
        self, place: Place, call: Call, log: TaskLog | None
    ) -> AsyncGenerator[Sequence[Recorded]]:
        return follow(self._batches(place, log), closes_on_input=call.closes_on_input)

    def _batches(self, place: Place, log: TaskLog | None) -> AsyncGenerator[Sequence[Recorded]]:
        return tail(self._store, self._holdings.bell, self._holdings, log, place)

    # Cancelling

    async def _cancel(self, scope: Scope, operation: ops.CancelTask) -> TaskReply:
        head = await self._find(scope, operation.task_id)
        if head.standing.state.is_terminal:
            raise TaskNotCancelable(taskId=head.task_id)
        try:
            if self._holdings.is_elsewhere(head):
                await self._cancel_elsewhere(head)
            else:
                await self._holdings.cancel(head)
        except StoreRefused as error:
            raise refused(error) from None
        except TimeoutError:
            raise Overloaded from None
        # It has ended since the head was found, so there is an end to read to.
        reading = await self._task_at(head.number, None)
        if reading.task.status.state is not TaskState.CANCELED:
            raise TaskNotCancelable(taskId=head.task_id)
        return TaskReply(reading)

    async def _cancel_elsewhere(self, head: Head) -> None:
        """Have the process that holds a task end it, and wait for that."""
        # Refused: it ended a moment ago, and that is what is awaited.
        with contextlib.suppress(StoreConflict):
            await self._write(LeaveNote(head.scope, head.number, [], NoteBody().encoded()))
        ending = self._rest_elsewhere(head.scope, head.task_id, at_end=True)
        await asyncio.wait_for(ending, self._settings.cancel_grace + _ELSEWHERE)

    # For whoever posts events

    async def follow_push(self, push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        """Yield a task's events after a receiver's cursor, until there will be no more."""
        head = await self._store.head(push.scope, push.config.task_id)
        if head is None or (
            head.standing.state.is_terminal and push.cursor >= head.standing.last_seq
        ):
            return
        log = self._holdings.get(head.scope, head.task_id)
        batches = self._batches(_place(head, push.cursor), log)
        async with contextlib.aclosing(shown := follow(batches, closes_on_input=False)):
            async for batch in shown:
                yield batch

    async def task_as_of(self, push: Push, seq: int) -> Task:
        """Return a receiver's task as it was after an event."""
        return (await self._task_at(push.task, seq)).task


def _ends(plan: Plan, operation: ops.SendMessage, now: int) -> int | None:
    """Return when a task has to have ended, in milliseconds: the earlier of what its code gives it
    and what its caller says. What is no time says nothing: it may be somebody else's word."""
    ends: list[int] = []
    if plan.deadline is not None:
        ends.append(now + int(plan.deadline * 1000))
    with contextlib.suppress(ValueError):
        said = deadline_of(operation.metadata)
        if said is not None:
            # 0 is for none.
            ends.append(max(1, said))
    return min(ends, default=None)


async def _too_late(worker: Worker) -> None:
    """Do nothing for a task whose time was over before it came."""
    raise TaskFailed(OVERDUE)


def _digest(operation: ops.SendMessage, secret: bytes = b"") -> bytes:
    said = _fingerprint([operation.message, operation.metadata])
    return hashlib.blake2b(said, digest_size=16, key=secret).digest()


def _place(head: Head, after: int) -> Place:
    return Place(head.scope, head.task_id, head.number, after)


def _position(after: int | None, head: Head) -> int | None:
    """Return where a reader left off; a position the log never had is as good as none."""
    if after is None or not 0 <= after <= head.standing.last_seq:
        return None
    # The log begins with its task: whoever has seen nothing begins there.
    return max(after, 1)


def _finished(state: TaskState | None) -> UnsupportedOperation:
    return UnsupportedOperation(
        "The task has ended; start a new one in the same context",
        reason="TASK_TERMINAL",
        **({"state": state.value} if state is not None else {}),
    )


def _stamped(operation: ops.SendMessage, task_id: TaskId, context_id: ContextId) -> ops.SendMessage:
    """Return the operation with its message bearing the ids of its task and context."""
    message = msgspec.structs.replace(operation.message, task_id=task_id, context_id=context_id)
    return msgspec.structs.replace(operation, message=message)
