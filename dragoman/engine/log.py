"""A task's log while this process writes it.

Events get their numbers when they happen and become visible when they are durable. Readers are
elsewhere: `following` and `reading`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from dragoman.engine.lifecycle import Draft
from dragoman.errors import InvalidAgentResponse
from dragoman.model.events import CancelRequested, Event, StatusUpdate, StepRecorded
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.order import Order
from dragoman.model.push import PushConfig
from dragoman.model.record import MEMBERS, Recorded, TaskReading, encode, encode_event
from dragoman.model.task import Task
from dragoman.shares import (
    NARROW_BYTES,
    NARROW_EVENTS,
    SHORT_EVENTS,
    WIDE_BYTES,
    WIDE_EVENTS,
    Account,
    Shares,
)
from dragoman.stores.interface import Append, Create, Snapshot, Store, TaskPosition, TaskRow
from dragoman.telemetry import figures
from dragoman.telemetry.activity import activity

# How much of a task a worker keeps in memory; the contents of larger tasks are only in the store.
MAX_DRAFT_BYTES = 256 * 1024
# The recent events a log keeps in memory for readers that are up to date.
MAX_TAIL_EVENTS = 128
MAX_TAIL_BYTES = 128 * 1024
# Events that one read returns: to code that folds or skips them, and to a stream that sends each.
READ_AT_ONCE = 500
STREAMED_AT_ONCE = 200
_MANY_WAITING = 32
# Events that may wait for transforms before the code waits too.
_MAX_UNTRANSFORMED = 8
# Without a step of Python for each event.
_body_of = attrgetter("body")


class Bell:
    """Wakes the readers of a task when its log grew. Rings carry no content: the log does."""

    def __init__(self) -> None:
        self._waiting: dict[TaskId, set[asyncio.Future[None]]] = {}
        # By the numbers that rings of other processes name, and those numbers by task.
        self._ids: dict[int, TaskId] = {}
        self._numbers: dict[TaskId, int] = {}
        # How far each reader is in a log that another process writes.
        self._places: dict[asyncio.Future[None], tuple[int, int]] = {}

    def listen(
        self, task_id: TaskId, number: int = 0, after: int | None = None
    ) -> asyncio.Future[None]:
        """Return a future that is done at the next ring: take it before reading the log and `leave`
        it afterwards. `after`: how far its reader is in a log that another process writes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, set()).add(future)
        if number:
            self._ids[number], self._numbers[task_id] = task_id, number
            if after is not None:
                self._places[future] = number, after
        return future

    def leave(self, task_id: TaskId, future: asyncio.Future[None]) -> None:
        """A reader waits no more, whether it was woken or not. Not a callback of the future, which
        would be kept for each of those that wait: thousands may."""
        if self._places:
            self._places.pop(future, None)
        waiting = self._waiting.get(task_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[task_id]
                self._forget(task_id)

    def places(self) -> dict[int, int]:
        """Return how far those who wait for other processes are, by the numbers of the tasks: of
        several the one that is least far."""
        places: dict[int, int] = {}
        for future, (number, after) in self._places.items():
            if not future.done():
                places[number] = min(after, places.get(number, after))
        return places

    def ring(self, task_id: TaskId) -> None:
        """Wake the readers of a task."""
        waiting = self._waiting.pop(task_id, None)
        if waiting is None:
            return
        self._forget(task_id)
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def ring_number(self, number: int) -> None:
        """Wake the readers of a task that another process wrote."""
        if number in self._ids:
            self.ring(self._ids[number])

    def ring_all(self) -> None:
        """Wake all: another process wrote, and which task is not known."""
        for task_id in list(self._waiting):
            self.ring(task_id)

    def _forget(self, task_id: TaskId) -> None:
        self._ids.pop(self._numbers.pop(task_id, 0), None)


class LogLimits:
    """How large one log may get."""

    def __init__(self, events: int, size: int) -> None:
        self.events = events
        self.size = size

    def reason(self, events: int) -> str:
        """Return which limit a log of so many events has reached, for the task's caller."""
        if events >= self.events:
            return f"The task grew beyond its limit of {self.events:,} events."
        return f"The task grew beyond its limit of {self.size:,} bytes."


STORE_IS_FULL = "The tasks of this caller have reached their share of the store."


class LogBatch(msgspec.Struct, eq=False):
    """What one write carries."""

    # A struct would print its fields, and with them keys and secrets.
    __repr__ = object.__repr__

    events: list[Recorded] = []
    size: int = 0
    # Idempotency keys of its messages, and notes that became its events.
    keys: list[bytes] = []
    notes: list[int] = []
    # Secrets that are stored beside its events.
    withheld: list[tuple[int, bytes]] = []
    # What it says to the ledger.
    order: Order | None = None
    # When a sweep has to look at the task; None: as before.
    alarm: int | None = None


class LogIsFull(Exception):
    """The task's log reached its limit. The text is shown to the task's caller."""


# A struct, because one is made for each task.
class TaskLog(msgspec.Struct, eq=False):
    """The log of one task, written by this process under its fence."""

    # A struct would print its fields, and with them credentials and messages.
    __repr__ = object.__repr__

    _store: Store
    _bell: Bell
    _limits: LogLimits
    scope: Scope
    task_id: TaskId
    context_id: ContextId
    shares: Shares
    # The caller whose account it is charged to, and the agent: turns are shared by both.
    account: Account
    agent: str
    # What it is found by: tasks of two callers may have one id.
    key: tuple[Scope, TaskId]
    # Asked for once: each look-up of the running loop is a system call, on Python 3.11.
    loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    number: int = 0
    fence: int = 0
    draft: Draft | None = None
    # The last event that happened, and the last that is durable.
    seq: int = 0
    _position: TaskPosition | None = None
    _status_at: int = 0
    # Bytes of all that happened, and of what writes were given.
    _size: int = 0
    _taken_bytes: int = 0
    # Whether there ever were secrets beside its events.
    has_withheld: bool = False
    # What the first write carries besides its events.
    pushes: Sequence[PushConfig] = ()
    deadline: int = 0
    # What the next write says to the ledger.
    order: Order | None = None
    _next_fence: int = 0
    _is_writing: bool = False
    # What is being written: the batch, where the task stands after it, and its snapshot.
    _written: tuple[LogBatch, TaskPosition, Snapshot | None] | None = None
    _is_scheduled: bool = False
    # While held, nothing is written: whether there will be a task at all is not decided.
    is_held: bool = False
    _tail_bytes: int = 0
    failure: Exception | None = None
    on_idle: Callable[[], None] | None = None
    # Called if the store refuses the task: there never was one.
    on_void: Callable[[], None] | None = None
    # Set where hooks change events: takes the batch of a write and submits it when it is ready.
    transform: Callable[[LogBatch], None] | None = None
    # Called after each durable write, for hooks that observe.
    on_recorded: Callable[[], None] | None = None
    # Ends the task's code with a sentence if a transform fails.
    on_refused: Callable[[str], None] | None = None
    # Set when the engine has let go of it; its recent events may still be read.
    is_retired: bool = False
    # What the next write carries.
    _unwritten: LogBatch = msgspec.field(default_factory=LogBatch)
    # A list, since a deque takes 760 bytes before it holds anything.
    _tail: list[Recorded] = []
    _resting: list[tuple[int, asyncio.Future[TaskReading | None]]] = []
    _durable: list[tuple[int, asyncio.Future[None]]] = []

    @classmethod
    def resumed(
        cls,
        store: Store,
        bell: Bell,
        limits: LogLimits,
        head: TaskRow,
        reading: TaskReading,
        shares: Shares | None = None,
        account: Account | None = None,
    ) -> "TaskLog":
        """Return the log of a task that is in the store."""
        draft, size = Draft(reading.task), len(reading.body)
        if size > MAX_DRAFT_BYTES:
            draft.lighten()
        shares = shares or Shares()
        account = account or shares.account(head.scope.principal)
        scope, task_id = key = head.scope, head.task_id
        ids = scope, task_id, head.context_id
        log = cls(store, bell, limits, *ids, shares, account, scope.agent, key)
        log.number = head.number
        log.fence = log._next_fence = head.fence
        log.draft = draft
        log.seq = head.standing.last_seq
        log._size = log._taken_bytes = size
        log._position = head.standing
        log._status_at = head.standing.status_at
        return log

    @property
    def worker(self) -> int:
        """The number of the worker that writes it."""
        return self._store.worker

    @property
    def most_bytes(self) -> int:
        """How large it may get."""
        return self._limits.size

    def grow(self, size: int) -> None:
        """Count what transforms made of its events."""
        self._size += size
        self._taken_bytes += size

    @property
    def durable_seq(self) -> int:
        """The last event anyone may see."""
        return self._position.last_seq if self._position else 0

    def now(self) -> int:
        """Return milliseconds since the epoch by the clock that all workers of the store share."""
        return time.time_ns() // 1_000_000 + self._store.clock_offset

    @property
    def is_idle(self) -> bool:
        """Whether everything that happened is durable."""
        return not self._is_writing and not self._unwritten.events

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.draft is not None and self.draft.state.is_terminal

    @property
    def is_active(self) -> bool:
        """Whether the task neither has ended nor waits for its caller."""
        return self.draft is None or not self.draft.state.is_resting

    def emit(self, event: Event, at: int = 0, withheld: bytes = b"") -> Recorded:
        """Let an event happen. It is numbered now, written soon, and shown once it is durable.
        What is withheld is stored beside it for the code alone.

        Raises `TaskIsFinished` or `InvalidAgentResponse` if it may not happen, `LogIsFull` if the
        log has reached its limit and the event is not its end.
        """
        if self.failure is not None:
            raise self.failure
        seq = self.seq + 1
        body = encode({MEMBERS[type(event)]: event})
        total = self._size + len(body)
        if withheld:
            total += len(withheld)
        limits = self._limits
        if seq >= limits.events or total > limits.size or self.account.is_full:
            self._check_room(event, seq)
        draft = self.draft
        if draft is None:
            if not isinstance(event, Task):
                raise InvalidAgentResponse("a log begins with its task")
            draft = self.draft = Draft(event)
        else:
            draft.apply(event)
        if total > MAX_DRAFT_BYTES:
            draft.lighten()
        if at:
            self._status_at = at
        self.seq = seq
        self._size = total
        if withheld:
            self._unwritten.withheld.append((seq, withheld))
            self.has_withheld = True
        recorded = Recorded(seq, event, body)
        self._unwritten.events.append(recorded)
        if not (self._is_scheduled or self.is_held):
            self._write_soon()
        return recorded

    def _check_room(self, event: Event, seq: int) -> None:
        """Raise `LogIsFull` at a limit. An event that ends a log, or asks for its end, is always
        accepted."""
        if not _is_an_end(event):
            raise LogIsFull(STORE_IS_FULL if self.account.is_full else self._limits.reason(seq))

    def withhold(self, seq: int, body: bytes) -> None:
        """Replace what is withheld beside an earlier event; empty: forget it. Call it before the
        event that is the reason, so that both are one write."""
        self._unwritten.withheld.append((seq, body))

    def amend_last(self, recorded: Recorded, event: Event) -> bool:
        """Replace the latest event by one that says a little more, unless it is being written. The
        state is the same after both."""
        if self.failure is not None:
            raise self.failure
        events = self._unwritten.events
        if not events or events[-1] is not recorded:
            return False
        amended = Recorded(recorded.seq, event, encode_event(event))
        events[-1] = amended
        self._size += len(amended.body) - len(recorded.body)
        return True

    def restate(self, recorded: Recorded, event: StatusUpdate) -> bool:
        """Replace a status by one of the same state, unless it is being written or something but
        steps followed."""
        events = self._unwritten.events
        for place in range(len(events) - 1, -1, -1):
            found = events[place]
            if found.seq == recorded.seq:
                if self.draft is None or self.draft.state is not event.status.state:
                    return False
                events[place] = Recorded.of_event(recorded.seq, event)
                self.draft.restate(event.status)
                return True
            if not isinstance(found.event, StepRecorded):
                return False
        return False

    def set_alarm(self, at: int) -> None:
        """Have a sweep look at the task at a time, in milliseconds, even if no process runs it
        until then; 0: never. Stored with the next write."""
        self.deadline = self._unwritten.alarm = at

    def use_key(self, key: bytes) -> None:
        """Let the next write carry an idempotency key; call it before the event it goes with."""
        self._unwritten.keys.append(key)

    def use_note(self, number: int) -> None:
        """Let the next write delete a note; call it before the event it became."""
        self._unwritten.notes.append(number)

    def take_over(self) -> None:
        """Raise the fence with the next write, so that an earlier worker's writes are refused."""
        self._next_fence = self.fence + 1

    def is_lost(self, head: TaskRow) -> bool:
        """Tell by its row whether another worker has the task."""
        return self.number == head.number and head.fence > self._next_fence

    @property
    def is_full(self) -> bool:
        """Whether a worker should wait for the disk before it goes on."""
        events, size = len(self._unwritten.events), self._size - self._taken_bytes
        if self.account.is_narrow:
            if (
                events >= NARROW_EVENTS
                or size >= NARROW_BYTES
                # A short task has its first slice whole: it is one write, however many there are.
                or (events > SHORT_EVENTS and self.shares.is_late)
            ):
                return True
        elif events >= WIDE_EVENTS or size >= WIDE_BYTES:
            return True
        return events >= _MAX_UNTRANSFORMED and self.transform is not None

    def release(self) -> None:
        """Write what was held."""
        self.is_held = False
        self._write_soon()

    async def durable(self, seq: int) -> None:
        """Wait until an event is on disk."""
        if self.durable_seq >= seq:
            return
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[None] = self.loop.create_future()
        self._durable.append((seq, future))
        await future

    def rest(self, after: int = 0) -> asyncio.Future[TaskReading | None]:
        """Return the task at its next resting point from an event on.

        None: it is too large to be held in memory.
        """
        future: asyncio.Future[TaskReading | None] = self.loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            if len(self._resting) >= _MANY_WAITING:
                # Callers that gave up leave theirs behind.
                self._resting = [entry for entry in self._resting if not entry[1].done()]
            self._resting.append((after, future))
        return future

    async def read(self, after: int, limit: int) -> Sequence[Recorded]:
        """Return durable events after a position, from the store."""
        return await self._store.read(self.number, after=after, limit=limit)

    def recent(self, after: int) -> list[Recorded] | None:
        """Return the durable events after a position; None if memory does not reach back so far."""
        if not self._tail or after + 1 < self._tail[0].seq:
            return [] if after >= self.durable_seq else None
        return self._tail[after + 1 - self._tail[0].seq :]

    def _write_soon(self) -> None:
        if not (self._is_writing or self._is_scheduled or self.is_held):
            self._is_scheduled = True
            # After the worker's present slice: a short task is accepted and completed in one write.
            self.loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_scheduled = False
        if self._is_writing or self.is_held or not self._unwritten.events:
            return
        if self.failure is not None:
            # Given up: another write would take the task back from its next holder.
            return
        batch = self._take()
        self.shares.wrote(self.account, len(batch.events), batch.size)
        self._is_writing = True
        if self.transform is not None:
            self.transform(batch)
        else:
            self.submit(batch)

    def _take(self) -> LogBatch:
        """Return what the next write carries."""
        batch, self._unwritten = self._unwritten, LogBatch()
        batch.size, self._taken_bytes = self._size - self._taken_bytes, self._size
        batch.order, self.order = self.order, None
        if self.transform is not None and self._position is None:
            # Creating the task waits for no transform: what comes after it is another write.
            events = batch.events
            count = next((i for i, one in enumerate(events) if i and one.is_public), len(events))
            batch.events, self._unwritten.events = events[:count], events[count:]
            left = sum(map(len, map(_body_of, self._unwritten.events)))
            self._taken_bytes -= left
            batch.size -= left
        return batch

    def submit(self, batch: LogBatch, transformed: Draft | None = None) -> None:
        """Write a batch; `transformed` is the task as it is recorded, if hooks changed it."""
        if self.failure is not None:
            return
        draft = transformed or self.draft
        assert draft is not None, "a log begins with its task"
        events = batch.events
        standing = TaskPosition(draft.state, self._status_at, events[-1].seq)
        snapshot = None
        if draft.state.is_resting and not draft.is_light:
            head, artifacts = encode(draft.head()), encode(draft.artifacts())
            snapshot = Snapshot(standing.last_seq, head, artifacts)
        if self._position is None:
            write = Create(
                self.scope,
                self.task_id,
                self.context_id,
                batch.keys,
                events,
                standing,
                snapshot,
                self.pushes,
                self.deadline,
                batch.order,
                batch.size,
            )
        else:
            write = Append(
                self.number,
                self.scope,
                self._position,
                self.fence,
                self._next_fence,
                batch.keys,
                events,
                standing,
                snapshot,
                batch.notes,
                batch.withheld,
                # Code that has ended does not run again.
                self.has_withheld and draft.state.is_terminal,
                batch.order,
                batch.alarm,
                batch.size,
            )
        self._written = batch, standing, snapshot
        self._store.submit(write, self._on_written)

    def _on_written(self, error: Exception | None, number: int) -> None:
        self._is_writing = False
        assert self._written is not None, "it was submitted"
        (batch, standing, snapshot), self._written = self._written, None
        if error is not None:
            if self._position is None and self.on_void is not None:
                self.on_void()
            self.fail(error)
            return
        before, self._position = self._position, standing
        if before is None:
            self.number = number
            self._next_fence = 1
            figures.tasks_started.add(self.agent)
        self.fence = self._next_fence
        self._keep_at_hand(batch)
        state = standing.state
        if state.is_resting:
            if state.is_terminal:
                figures.tasks_ended.add(self.agent, state.word)
            # Two statuses may be of one millisecond.
            if activity.on and (
                before is None
                or before.state is not state
                or before.status_at != standing.status_at
            ):
                activity.rested(self.agent, self.task_id, state, standing.status_at)
            if self._resting:
                self._tell_resting(standing.last_seq, snapshot)
        if self.on_recorded is not None:
            self.on_recorded()
        if self._durable:
            self._tell_durable()
        self._bell.ring(self.task_id)
        if self._unwritten.events:
            self._write()
        elif self.on_idle is not None:
            self.on_idle()

    def fail(self, error: Exception) -> None:
        """Give the log up: it could not be written, or another worker has it."""
        self.failure = error
        for _, future in self._resting:
            if not future.done():
                future.set_exception(error)
        for _, future in self._durable:
            if not future.done():
                future.set_exception(error)
        self._bell.ring(self.task_id)
        if self.on_idle is not None:
            self.on_idle()

    def _tell_resting(self, seq: int, snapshot: Snapshot | None) -> None:
        reading = None if snapshot is None else snapshot.reading()
        waiting, self._resting = self._resting, []
        for after, future in waiting:
            if after > seq:
                # The task rested before this caller's message reached it.
                self._resting.append((after, future))
            elif not future.done():
                future.set_result(reading)

    def _tell_durable(self) -> None:
        waiting, self._durable = self._durable, []
        for seq, future in waiting:
            if seq > self.durable_seq:
                self._durable.append((seq, future))
            elif not future.done():
                future.set_result(None)

    def _keep_at_hand(self, batch: LogBatch) -> None:
        tail = self._tail
        tail.extend(batch.events)
        if batch.withheld or self.transform is not None:
            # Its size is not that of the events.
            self._tail_bytes += sum(map(len, map(_body_of, batch.events)))
        else:
            self._tail_bytes += batch.size
        more = len(tail) - MAX_TAIL_EVENTS
        if more > 0:
            self._tail_bytes -= sum(map(len, map(_body_of, tail[:more])))
            del tail[:more]
        while self._tail_bytes > MAX_TAIL_BYTES and len(tail) > 1:
            self._tail_bytes -= len(tail.pop(0).body)


def _is_an_end(event: Event) -> bool:
    return isinstance(event, CancelRequested) or (
        isinstance(event, StatusUpdate) and event.status.state.is_terminal
    )
