"""The engine: the Service that runs an agent on its tasks. One short method per operation."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from dragoman.config import Settings
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.log import (
    Bell,
    Limits,
    LogIsFull,
    Place,
    TaskLog,
    follow,
    read_task,
    unanswered,
)
from dragoman.engine.seal import seal, unseal
from dragoman.engine.worker import TOO_LARGE, AgentCode, Plan, Worker, status_update
from dragoman.errors import (
    A2AError,
    ExtensionRequired,
    InternalError,
    InvalidParams,
    Overloaded,
    PushNotSupported,
    StoreRefused,
    StoreUnavailable,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.events import AttemptStarted, MessageAdded
from dragoman.model.identity import Caller, ContextId, Scope, TaskId, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Part
from dragoman.model.record import Recorded, TaskReading, decode_message, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Batch, Call, Opening, Reply, TaskPage, TaskReply
from dragoman.stores.interface import Head, KeepReply, Query, Store

logger = logging.getLogger("dragoman")

# A page of a list holds not much more than this.
_PAGE_BYTES = 16 * 1024 * 1024
# Seconds until a task whose disk failed is tried again.
RETRY_AFTER = 5.0
_CANCELED = "The task was canceled."
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


class Engine:
    """Answers calls for one agent."""

    def __init__(self, code: AgentCode, store: Store, settings: Settings) -> None:
        self._code = code
        self._store = store
        self._settings = settings
        self._bell = Bell()
        self._limits = Limits(settings.max_events, settings.max_task_bytes)
        self._logs: dict[TaskId, TaskLog] = {}
        self._workers: dict[TaskId, Worker] = {}
        # Messages whose keys may not be in the store yet.
        self._arriving: dict[tuple[Scope, bytes], Worker] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    # Life

    async def recover(self) -> int:
        """Take over every task that a worker left unfinished; return how many."""
        heads = await self._store.unfinished(self._code.name)
        for head in heads:
            try:
                await self._take_over(head)
            except Exception:
                # One task that cannot be taken over must not keep all others from going on.
                logger.exception("task %s cannot be taken over", head.task_id)
            # Thousands of them must not keep the first callers waiting.
            await asyncio.sleep(0)
        return len(heads)

    async def stop(self) -> None:
        """Let go of running tasks; the next process takes them over."""
        self._is_stopped = True
        for worker in list(self._workers.values()):
            worker.abandon()
        self._workers.clear()
        self._logs.clear()

    # Service

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        self._check_extensions(call)
        match call.operation:
            case ops.SendMessage() as operation:
                return await self._send(call, operation)
            case ops.GetTask() as operation:
                return await self._get(self._scope(call), operation)
            case ops.ListTasks() as operation:
                return await self._list(self._scope(call), operation)
            case ops.CancelTask() as operation:
                return await self._cancel(self._scope(call), operation)
            case ops.PushOperation():
                raise PushNotSupported
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
        return Scope(self._code.name, call.operation.tenant, call.caller.owner)

    # Reading

    async def _find(self, scope: Scope, task_id: TaskId) -> Head:
        """Return a task's row."""
        head = await self._store.head(scope, task_id)
        if head is None:
            raise TaskNotFound(taskId=task_id)
        return head

    async def _reading(self, number: int, upto: int | None = None) -> TaskReading:
        found = await read_task(self._store, number, upto=upto)
        if found is None:
            raise TaskNotFound
        return found[0]

    async def _get(self, scope: Scope, operation: ops.GetTask) -> TaskReply:
        found = await self._store.at_rest(scope, operation.task_id)
        if found is None:
            raise TaskNotFound(taskId=operation.task_id)
        head, reading = found
        return TaskReply(reading or await self._reading(head.number), operation.history)

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
                after=unseal(token, self._store.secret, scope, operation) if token else None,
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
            read = await read_task(self._store, head.number, artifacts=operation.include_artifacts)
            if read is not None:
                size += len(read[0].body)
                tasks.append(TaskReply(read[0], operation.history))
        next_token = ""
        if len(found.heads) > len(heads):
            last = heads[-1]
            place = (last.standing.status_at, last.number)
            next_token = seal(place, self._store.secret, scope, operation)
        return TaskPage(
            tasks, next_token, operation.page_size, found.total, operation.include_artifacts
        )

    # Sending

    async def _send(self, call: Call, operation: ops.SendMessage) -> Reply:
        accepted = await self._accept(call, operation)
        reply = await self._reply(accepted)
        if reply is not None:
            return reply
        reading = None
        log = accepted.log
        try:
            if log is not None and operation.wait:
                reading = await asyncio.wait_for(log.rest(accepted.seq), call.patience or None)
            elif log is not None:
                await log.durable(max(accepted.seq, 1))
        except TimeoutError:
            pass
        except StoreRefused:
            raise Overloaded from None
        if reading is None:
            head = await self._find(self._scope(call), accepted.task_id)
            reading = await self._reading(head.number)
        return TaskReply(reading, operation.history)

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

    async def _send_and_follow(
        self, call: Call, operation: ops.SendMessage
    ) -> AsyncGenerator[Batch]:
        accepted = await self._accept(call, operation)
        reply = await self._reply(accepted)
        if reply is not None:
            yield reply
            return
        log = accepted.log
        if log is not None:
            try:
                await log.durable(max(accepted.seq, 1))
            except StoreRefused:
                raise Overloaded from None
        if accepted.opening is not None and log is not None:
            reading = TaskReading(accepted.seq, accepted.opening)
            number = log.number
        else:
            head = await self._find(self._scope(call), accepted.task_id)
            upto = accepted.seq or _position(call.after, head)
            reading, number = await self._reading(head.number, upto), head.number
        yield Opening(TaskReply(reading, operation.history))
        state = reading.task.status.state
        if state.is_terminal or (state.is_interrupted and not accepted.seq and call.after is None):
            return
        tail = self._tail(accepted.task_id, number, reading.seq, call, log)
        async with contextlib.aclosing(tail):
            async for batch in tail:
                yield batch

    async def _accept(self, call: Call, operation: ops.SendMessage) -> _Accepted:
        """Take a message in, once: the same one again leads to the same task."""
        if operation.push is not None:
            raise PushNotSupported
        scope = self._scope(call)
        key = self._key(operation) if self._settings.idempotency else None
        if key is not None and (earlier := await self._earlier(scope, key)) is not None:
            return earlier
        if operation.message.task_id:
            head = await self._store.head(scope, operation.message.task_id)
            if head is not None:
                return await self._continue(call, operation, head, key)
            if not call.client_task_id:
                raise TaskNotFound(taskId=operation.message.task_id)
        return self._begin(call, operation, scope, key)

    async def _earlier(self, scope: Scope, key: bytes) -> _Accepted | None:
        worker = self._arriving.get((scope, key))
        if worker is not None:
            log = None if worker.log.is_retired else worker.log
            resting = log is not None and log.is_idle and not _is_active(log)
            return _Accepted(worker.log.task_id, worker, None if resting else log, seq=0)
        known = await self._store.known(scope, key)
        if known is None:
            return None
        if known.reply:
            return _Accepted(reply=decode_message(known.reply))
        if not known.task_id:
            # The task was forgotten; its message is not a new one for that.
            raise TaskNotFound
        log = self._logs.get(known.task_id)
        is_moving = log is not None and (_is_active(log) or not log.is_idle)
        return _Accepted(known.task_id, None, log if is_moving else None)

    @staticmethod
    def _key(operation: ops.SendMessage) -> bytes:
        """Return the fingerprint of a message: its id and what it says."""
        said = _fingerprint([operation.message, operation.metadata])
        return hashlib.blake2b(said, digest_size=16).digest()

    def _begin(
        self, call: Call, operation: ops.SendMessage, scope: Scope, key: bytes | None
    ) -> _Accepted:
        """Start a task, or at least the code that decides whether there will be one."""
        self._make_room()
        plan = self._code.plan(operation)
        message = operation.message
        if message.task_id in self._logs:
            # Someone is making a task of this very id; once it is there, this is a message to it.
            raise Overloaded
        log = TaskLog(
            self._store,
            self._bell,
            self._limits,
            scope=scope,
            task_id=message.task_id or TaskId(new_id()),
            context_id=message.context_id or ContextId(new_id()),
        )
        operation = _stamped(operation, log)
        now = time.time_ns() // 1000
        task = Task(
            id=log.task_id,
            context_id=log.context_id,
            status=TaskStatus(TaskState.SUBMITTED, None, stamp(now)),
            history=[operation.message],
            metadata=operation.metadata,
        )
        # Held for the worker's first slice: a short task is accepted and completed in one write.
        log.is_held = True
        if key is not None:
            log.use_key(key)

        async def keep(reply: Message) -> None:
            if key is not None:
                await self._keep(scope, key, reply)

        worker = Worker(log, operation, plan, call.caller, keep)
        try:
            log.emit(task, at=now // 1000)
        except LogIsFull:
            raise InvalidParams("is larger than a task may be", field="message") from None
        self._adopt(worker, (scope, key) if key is not None else None)
        if not plan.may_reply:
            log.release()
        return _Accepted(log.task_id, worker, log, task, 1)

    async def _continue(
        self, call: Call, operation: ops.SendMessage, head: Head, key: bytes | None
    ) -> _Accepted:
        """Give a further message to a task."""
        message = operation.message
        if message.context_id and message.context_id != head.context_id:
            raise InvalidParams("is not the context of this task", field="message.contextId")
        if head.standing.state.is_terminal:
            raise _finished(head.standing.state)
        reading = None
        worker = self._workers.get(head.task_id)
        if worker is None:
            reading = await self._reading(head.number)
            # Another message may have started a worker while the task was read.
            worker = self._workers.get(head.task_id)
        if worker is None and reading is not None:
            began = _began(reading.task)
            plan = self._code.plan(operation, began)
            log = self._resume(head, reading)
        else:
            assert worker is not None, "either there is a worker or the task was read"
            if worker.queued >= self._settings.max_queued_messages:
                raise Overloaded
            log, began = worker.log, worker.began
            plan = self._code.plan(operation, began, is_answer=worker.is_waiting)
        operation = _stamped(operation, log)
        try:
            recorded = log.emit(MessageAdded(operation.message))
            if not _is_active(log):
                # In the same write: whoever waits for the task waits for what comes of this.
                working, at = status_update(log, TaskState.WORKING)
                log.emit(working, at=at)
        except TaskIsFinished:
            raise _finished(None) from None
        except LogIsFull:
            if worker is None:
                self._logs.pop(head.task_id, None)
            raise UnsupportedOperation("The task reached its limit") from None
        except StoreRefused:
            raise Overloaded from None
        if key is not None:
            log.use_key(key)
        if worker is not None and worker.is_running:
            worker.give(operation, plan)
            if key is not None:
                worker.keys.append((head.scope, key))
                self._arriving[head.scope, key] = worker
        else:
            worker = Worker(log, operation, plan, call.caller, _no_reply)
            worker.began = began
            worker.decide()
            self._adopt(worker, (head.scope, key) if key is not None else None)
        return _Accepted(head.task_id, worker, log, None, recorded.seq)

    def _resume(self, head: Head, reading: TaskReading) -> TaskLog:
        """Return the log of a resting task, ready to be written."""
        log = self._logs.get(head.task_id)
        if log is None:
            log = TaskLog.resumed(self._store, self._bell, self._limits, head, reading)
            # Registered at once: a second message finds this log and not the store's state.
            self._logs[head.task_id] = log
        return log

    def _adopt(self, worker: Worker, arriving: tuple[Scope, bytes] | None) -> None:
        """Start a worker and let go of it when its task rests and nothing is left to write."""
        log = worker.log
        self._logs[log.task_id] = log
        self._workers[log.task_id] = worker
        if arriving is not None:
            self._arriving[arriving] = worker

        def retire() -> None:
            if worker.is_running and log.failure is not None:
                # Nothing it does can be recorded; its end comes back here.
                worker.dismiss()
                return
            if worker.is_running or not (log.is_idle or log.failure or log.is_held):
                return
            if isinstance(log.failure, StoreUnavailable):
                self._try_again_later(log)
            # A worker that was let go may have a successor, which has the log now.
            if self._workers.get(log.task_id, worker) is worker:
                self._workers.pop(log.task_id, None)
                if self._logs.get(log.task_id) is log:
                    del self._logs[log.task_id]
                log.is_retired = True
            for entry in worker.keys:
                self._arriving.pop(entry, None)

        if arriving is not None:
            worker.keys.append(arriving)
        log.on_idle = worker.on_end = retire
        worker.start()

    def _try_again_later(self, log: TaskLog) -> None:
        """Take a task over ourselves once the disk takes writes again."""

        async def take_over() -> None:
            head = await self._store.head(log.scope, log.task_id)
            if head is None or head.standing.state.is_resting or log.task_id in self._workers:
                return
            await self._take_over(head)

        def begin() -> None:
            if not self._is_stopped:
                self._later.add(task := asyncio.get_running_loop().create_task(take_over()))
                task.add_done_callback(self._later.discard)

        asyncio.get_running_loop().call_later(RETRY_AFTER, begin)

    def _make_room(self) -> None:
        """Refuse what is too much; code that only waits for its caller makes way."""
        if len(self._workers) < self._settings.max_live_tasks:
            return
        for worker in self._workers.values():
            if worker.is_running and worker.log.is_idle and not _is_active(worker.log):
                worker.dismiss()
                return
        raise Overloaded

    async def _keep(self, scope: Scope, key: bytes, reply: Message) -> None:
        """Record a reply under its message's key."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: Exception | None, _: int) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._store.submit(KeepReply(scope, key, encode(reply)), told)
        await done

    # Taking over

    async def _take_over(self, head: Head) -> None:
        found = await read_task(self._store, head.number)
        if found is None:
            return
        reading, attempt = found
        log = TaskLog.resumed(self._store, self._bell, self._limits, head, reading)
        log.take_over()
        began = _began(reading.task)
        messages = await unanswered(self._store, head.number)
        try:
            if attempt >= self._settings.max_attempts:
                raise UnsupportedOperation(f"The agent did not finish in {attempt} attempts.")
            work = self._plans(messages, began)
            log.emit(AttemptStarted(attempt + 1))
        except (A2AError, LogIsFull) as error:
            sentence = error.public if isinstance(error, A2AError) else TOO_LARGE
            failed, at = status_update(log, TaskState.FAILED, [Part(text=sentence)])
            log.emit(failed, at=at)
            return
        (operation, plan), *waiting = work
        worker = Worker(log, operation, plan, Caller(head.scope.owner), _no_reply)
        worker.began = began
        worker.attempt = attempt + 1
        for operation, plan in waiting:
            worker.give(operation, plan)
        worker.decide()
        self._adopt(worker, None)

    def _plans(
        self, messages: Sequence[Message], began: ops.SendMessage
    ) -> list[tuple[ops.SendMessage, Plan]]:
        """Return what to do again. If the first message only makes sense as an answer, the task
        begins from its beginning and the code that asks gets the answers it had."""
        said = [ops.SendMessage(message=message) for message in messages]
        if not said or said[0].message == began.message:
            said[:1] = [began]
        try:
            first = self._code.plan(said[0], began)
        except InvalidParams:
            if said[0] is began:
                raise
            said.insert(0, began)
            first = self._code.plan(began, began)
        plans = [first]
        for operation in said[1:]:
            try:
                plans.append(self._code.plan(operation, began))
            except InvalidParams:
                plans.append(self._code.plan(operation, began, is_answer=True))
        return list(zip(said, plans, strict=True))

    # Following

    async def _subscribe(self, call: Call, operation: ops.SubscribeToTask) -> AsyncGenerator[Batch]:
        head = await self._find(self._scope(call), operation.task_id)
        upto = _position(call.after, head)
        if upto is None and head.standing.state.is_terminal:
            raise UnsupportedOperation("The task has ended; there is nothing to follow")
        reading = await self._reading(head.number, upto)
        yield Opening(TaskReply(reading))
        if reading.task.status.state.is_terminal:
            return
        log = self._logs.get(head.task_id)
        tail = self._tail(head.task_id, head.number, reading.seq, call, log)
        async with contextlib.aclosing(tail):
            async for batch in tail:
                yield batch

    def _tail(
        self, task_id: TaskId, number: int, after: int, call: Call, log: TaskLog | None
    ) -> AsyncGenerator[Sequence[Recorded]]:
        return follow(
            self._store,
            self._bell,
            self._logs,
            log,
            Place(task_id, number, after),
            closes_on_input=call.closes_on_input,
        )

    # Cancelling

    async def _cancel(self, scope: Scope, operation: ops.CancelTask) -> TaskReply:
        head = await self._find(scope, operation.task_id)
        if head.standing.state.is_terminal:
            raise TaskNotCancelable(taskId=head.task_id)
        worker = self._workers.get(head.task_id)
        if worker is not None and worker.is_running:
            await self._stop_worker(worker)
        else:
            await self._end(self._resume(head, await self._reading(head.number)))
        reading = await self._reading(head.number)
        if reading.task.status.state is not TaskState.CANCELED:
            raise TaskNotCancelable(taskId=head.task_id)
        return TaskReply(reading)

    async def _stop_worker(self, worker: Worker) -> None:
        """Ask the code to stop, wait as long as it has, then end the task without it."""
        log = worker.log
        if not worker.is_cancelled:
            worker.cancel()
        try:
            async with asyncio.timeout(self._settings.cancel_grace):
                while not (_is_over(log) and log.is_idle):
                    await log.rest()
        except TimeoutError:
            worker.end(TaskState.CANCELED, _CANCELED)
            await self._written(log)
        except StoreRefused:
            raise Overloaded from None

    async def _end(self, log: TaskLog) -> None:
        """Cancel a task that nobody works on."""
        canceled, at = status_update(log, TaskState.CANCELED, [Part(text=_CANCELED)])
        try:
            # Whoever ended it a moment ago decides the answer.
            with contextlib.suppress(TaskIsFinished):
                log.emit(canceled, at=at)
            await self._written(log)
        except StoreRefused:
            raise Overloaded from None
        finally:
            self._logs.pop(log.task_id, None)
            log.is_retired = True

    async def _written(self, log: TaskLog) -> None:
        try:
            await log.durable(log.seq)
        except StoreRefused:
            raise Overloaded from None


async def _no_reply(reply: Message) -> None:
    """A task that exists does not end in a bare message."""


def _began(task: Task) -> ops.SendMessage:
    """Return what a task began with."""
    return ops.SendMessage(message=task.history[0], metadata=task.metadata)


def _is_over(log: TaskLog) -> bool:
    return log.draft is not None and log.draft.state.is_terminal


def _is_active(log: TaskLog) -> bool:
    return log.draft is None or not log.draft.state.is_resting


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


def _stamped(operation: ops.SendMessage, log: TaskLog) -> ops.SendMessage:
    """Return the operation with its message bearing the ids of its task and context."""
    message = msgspec.structs.replace(
        operation.message, task_id=log.task_id, context_id=log.context_id
    )
    return msgspec.structs.replace(operation, message=message)
