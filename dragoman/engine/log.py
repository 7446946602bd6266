"""A task's log while this process writes it, and how readers follow it.

Events get their numbers when they happen and become visible when they are durable. A reader holds
a position and nothing else: what it has not read waits in the store, however slow it is.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import msgspec

from dragoman.engine.lifecycle import Draft
from dragoman.engine.shares import (
    NARROW_BYTES,
    NARROW_EVENTS,
    SHORT_EVENTS,
    WIDE_BYTES,
    WIDE_EVENTS,
    Account,
    Shares,
)
from dragoman.errors import InvalidAgentResponse
from dragoman.model.errand import Errand
from dragoman.model.events import CancelRequested, Event, StatusUpdate, StepRecorded
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading, encode, encode_event
from dragoman.model.task import Task, TaskState
from dragoman.service import LARGE_BYTES, off_loop, reserve
from dragoman.stores.interface import Append, Create, Head, Snapshot, Standing, Store
from dragoman.telemetry import figures

if TYPE_CHECKING:
    # Loaded where events have hooks.
    from dragoman.engine.hooked_log import LogHooks

# How far a worker may run ahead of the disk beside nobody else, and how much of a task it keeps in
# memory. The contents of larger tasks are only in the store.
MAX_UNWRITTEN_EVENTS = WIDE_EVENTS
MAX_UNWRITTEN_BYTES = WIDE_BYTES
MAX_DRAFT_BYTES = 256 * 1024
# What a log keeps at hand for readers that are up to date.
MAX_TAIL_EVENTS = 128
MAX_TAIL_BYTES = 128 * 1024
_READ_AT_ONCE = 200
# Bytes that are taken for each of a large event while it is read.
_MEMORY = 5
# Bytes read at once by whoever folds them right away and holds none of them.
_FOLD_AT_ONCE = 1024 * 1024
_MANY_WAITING = 32
# Events that may wait for the transforms of others before code waits too.
_MOST_UNTRANSFORMED = 8


class Bell:
    """Wakes the readers of a task when its log grew. Rings carry no content: the log does."""

    def __init__(self) -> None:
        self._waiting: dict[TaskId, set[asyncio.Future[None]]] = {}

    def listen(self, task_id: TaskId) -> asyncio.Future[None]:
        """Return a future that is done at the next ring; take it before reading the log."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(task_id, set())
        waiting.add(future)

        def forget(future: asyncio.Future[None]) -> None:
            waiting.discard(future)
            if not waiting and self._waiting.get(task_id) is waiting:
                del self._waiting[task_id]

        future.add_done_callback(forget)
        return future

    def ring(self, task_id: TaskId) -> None:
        """Wake everyone who listens to a task."""
        for future in self._waiting.pop(task_id, ()):
            if not future.done():
                future.set_result(None)

    def ring_all(self) -> None:
        """Wake everyone: someone else wrote, and nobody said what."""
        for task_id in list(self._waiting):
            self.ring(task_id)


class Limits:
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


class Batch(msgspec.Struct):
    """What one write takes along."""

    events: list[Recorded]
    size: int
    keys: list[bytes]
    notes: list[int]
    withheld: list[tuple[int, bytes]]
    errand: Errand | None
    # When someone has to look at the task; None: as before.
    alarm: int | None


class LogIsFull(Exception):
    """The task's log reached its limit. What it says is for the task's caller."""


class TaskLog:
    """The log of one task, written by this process under its fence."""

    def __init__(
        self,
        store: Store,
        bell: Bell,
        limits: Limits,
        *,
        scope: Scope,
        task_id: TaskId,
        context_id: ContextId,
        shares: Shares | None = None,
        account: Account | None = None,
    ) -> None:
        self._store = store
        self._bell = bell
        self._limits = limits
        self.shares = shares or Shares()
        self.principal = scope.principal
        # Whom it counts for, and who does the work: their turns are shared.
        self.account = account or self.shares.account(self.principal)
        self.agent = scope.agent
        self.scope = scope
        self.task_id = task_id
        self.context_id = context_id
        self.number = 0
        self.fence = 0
        self.draft: Draft | None = None
        # The last event that happened, and the last that is durable.
        self.seq = 0
        self._standing: Standing | None = None
        self._status_at = 0
        self._unwritten: list[Recorded] = []
        self._unwritten_bytes = 0
        self._size = 0
        self._keys: list[bytes] = []
        self._notes: list[int] = []
        # What the next write carries besides what its events show, and whether there ever was any.
        self._withheld: list[tuple[int, bytes]] = []
        self.has_withheld = False
        # What the first write carries besides its events.
        self.pushes: Sequence[PushConfig] = ()
        self.deadline = 0
        # Whether the next write is to say when someone has to look at the task.
        self._has_alarm = False
        # What the next write says to those who keep books.
        self.errand: Errand | None = None
        self._next_fence = 0
        self._is_writing = False
        self._is_scheduled = False
        # While held, nothing is written: whether there will be a task at all is not decided.
        self.is_held = False
        self._tail: deque[Recorded] = deque()
        self._tail_bytes = 0
        self._resting: list[tuple[int, asyncio.Future[TaskReading | None]]] = []
        self._durable: list[tuple[int, asyncio.Future[None]]] = []
        self.failure: Exception | None = None
        self.on_idle: Callable[[], None] | None = None
        # Called if the store refuses the task: there never was one.
        self.on_void: Callable[[], None] | None = None
        # What is done with its events besides, if anything; and who ends its code if that fails.
        self.hooks: LogHooks | None = None
        self.on_refused: Callable[[str], None] | None = None
        # Set when the engine has let go of it; what it has at hand may still be read.
        self.is_retired = False

    @classmethod
    def resumed(
        cls,
        store: Store,
        bell: Bell,
        limits: Limits,
        head: Head,
        reading: TaskReading,
        shares: Shares | None = None,
        account: Account | None = None,
    ) -> "TaskLog":
        """Return the log of a task that is in the store."""
        draft, size = Draft(reading.task), len(reading.body)
        if size > MAX_DRAFT_BYTES:
            draft.lighten()
        log = cls(
            store,
            bell,
            limits,
            scope=head.scope,
            task_id=head.task_id,
            context_id=head.context_id,
            shares=shares,
            account=account,
        )
        log.number = head.number
        log.fence = log._next_fence = head.fence
        log.draft = draft
        log.seq = head.standing.last_seq
        log._size = size
        log._standing = head.standing
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

    @property
    def durable_seq(self) -> int:
        """The last event anyone may see."""
        return self._standing.last_seq if self._standing else 0

    @property
    def is_idle(self) -> bool:
        """Whether everything that happened is durable."""
        return not self._unwritten and not self._is_writing

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.draft is not None and self.draft.state.is_terminal

    @property
    def is_active(self) -> bool:
        """Whether the task neither has ended nor waits for its caller."""
        return self.draft is None or not self.draft.state.is_resting

    def emit(self, event: Event, *, at: int = 0, withheld: bytes = b"") -> Recorded:
        """Let an event happen. It is numbered now, written soon, and shown once it is durable.
        What is withheld is kept with it for the code, and shown to nobody.

        Raises `TaskIsFinished` or `InvalidAgentResponse` if it may not happen, `LogIsFull` if the
        log has reached its limit and the event is not its end.
        """
        if self.failure is not None:
            raise self.failure
        body = encode_event(event)
        seq = self.seq + 1
        size = len(body) + len(withheld)
        total = self._size + size
        limits = self._limits
        # What ends a log, or is to, always has its place.
        if (seq >= limits.events or total > limits.size or self.account.is_full) and not _is_an_end(
            event
        ):
            raise LogIsFull(STORE_IS_FULL if self.account.is_full else limits.reason(seq))
        if self.draft is None:
            if not isinstance(event, Task):
                raise InvalidAgentResponse("a log begins with its task")
            self.draft = Draft(event)
        else:
            self.draft.apply(event)
        self._size = total
        if total > MAX_DRAFT_BYTES and not self.draft.is_light:
            self.draft.lighten()
        if at:
            self._status_at = at
        self.seq = seq
        if withheld:
            self._withheld.append((seq, withheld))
            self.has_withheld = True
        recorded = Recorded(seq, event, body)
        self._unwritten.append(recorded)
        self._unwritten_bytes += size
        if not self._is_scheduled:
            self._write_soon()
        return recorded

    def withhold(self, seq: int, body: bytes) -> None:
        """Have something else kept with an event that has something; empty: nothing. Call it before
        the event that is the reason: they are one write."""
        self._withheld.append((seq, body))

    def amend_last(self, recorded: Recorded, event: Event) -> bool:
        """Replace the latest event by one that says a little more, if nobody saw it yet. The state
        is the same after both."""
        if self.failure is not None:
            raise self.failure
        if not self._unwritten or self._unwritten[-1] is not recorded:
            return False
        amended = Recorded(recorded.seq, event, encode_event(event))
        self._unwritten[-1] = amended
        more = len(amended.body) - len(recorded.body)
        self._size += more
        self._unwritten_bytes += more
        return True

    def restate(self, recorded: Recorded, event: StatusUpdate) -> bool:
        """Replace a status by one of the same state, if nobody saw it yet and nothing but steps
        followed."""
        for place in range(len(self._unwritten) - 1, -1, -1):
            found = self._unwritten[place]
            if found.seq == recorded.seq:
                if self.draft is None or self.draft.state is not event.status.state:
                    return False
                self._unwritten[place] = Recorded(recorded.seq, event)
                self.draft.restate(event.status)
                return True
            if not isinstance(found.event, StepRecorded):
                return False
        return False

    def set_alarm(self, at: int) -> None:
        """Have someone look at the task at a time, in milliseconds, with or without a process that
        runs it until then; 0: never. Told with the next write."""
        self.deadline = at
        self._has_alarm = True

    def use_key(self, key: bytes) -> None:
        """Let the next write carry an idempotency key; call it before the event it goes with."""
        self._keys.append(key)

    def use_note(self, number: int) -> None:
        """Let the next write deal with a note; call it before the event it became."""
        self._notes.append(number)

    def take_over(self) -> None:
        """Raise the fence with the next write, so that an earlier worker's writes are refused."""
        self._next_fence = self.fence + 1

    def is_lost(self, head: Head) -> bool:
        """Tell by its row whether another worker has the task."""
        return self.number == head.number and head.fence > self._next_fence

    @property
    def is_full(self) -> bool:
        """Whether a worker should wait for the disk before it goes on."""
        events = len(self._unwritten)
        if events >= _MOST_UNTRANSFORMED and self.hooks is not None and self.hooks.is_transforming:
            return True
        if self.account.is_narrow:
            return (
                events >= NARROW_EVENTS
                or self._unwritten_bytes >= NARROW_BYTES
                # A short task has its first slice whole: it is one write, however many there are.
                or (events > SHORT_EVENTS and self.shares.is_late)
            )
        return events >= MAX_UNWRITTEN_EVENTS or self._unwritten_bytes >= MAX_UNWRITTEN_BYTES

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
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable.append((seq, future))
        await future

    def rest(self, after: int = 0) -> asyncio.Future[TaskReading | None]:
        """Return the task at its next resting point from an event on.

        None: it is too large to be at hand.
        """
        future: asyncio.Future[TaskReading | None] = asyncio.get_running_loop().create_future()
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
        """Return the durable events after a position, or None if they are not at hand."""
        if not self._tail or after + 1 < self._tail[0].seq:
            return [] if after >= self.durable_seq else None
        return list(islice(self._tail, after + 1 - self._tail[0].seq, None))

    def _write_soon(self) -> None:
        if not (self._is_writing or self._is_scheduled or self.is_held):
            self._is_scheduled = True
            # After the worker's present slice: a short task is accepted and completed in one write.
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_scheduled = False
        if self._is_writing or self.is_held or not self._unwritten or self.draft is None:
            return
        if self.failure is not None:
            # Given up: to write on would take the task back from whoever has it next.
            return
        batch = self._take()
        self.shares.wrote(self.account, len(batch.events), batch.size)
        self._is_writing = True
        if self.hooks is not None and self.hooks.is_transforming:
            self.hooks.prepare(batch)
        else:
            self.submit(batch)

    def _take(self) -> Batch:
        """Return what the next write takes along."""
        events, size = self._unwritten, self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = [], 0
        if self.hooks is not None and self.hooks.is_transforming and self._standing is None:
            # That there is a task waits for no transform: what comes after it is another write.
            count = next((i for i, one in enumerate(events) if i and one.is_public), len(events))
            events, self._unwritten = events[:count], events[count:]
            self._unwritten_bytes = sum(len(recorded.body) for recorded in self._unwritten)
            size -= self._unwritten_bytes
        batch = Batch(
            events,
            size,
            self._keys,
            self._notes,
            self._withheld,
            self.errand,
            self.deadline if self._has_alarm else None,
        )
        self._keys, self._notes, self._withheld, self.errand = [], [], [], None
        self._has_alarm = False
        return batch

    def submit(self, batch: Batch) -> None:
        """Write what was taken for it."""
        if self.failure is not None:
            return
        draft = self.draft
        if self.hooks is not None and self.hooks.draft is not None:
            draft = self.hooks.draft
        assert draft is not None, "a log begins with its task"
        events = batch.events
        standing = Standing(draft.state, self._status_at, events[-1].seq)
        reading = snapshot = None
        if draft.state.is_resting and not draft.is_light:
            snapshot = _snapshot(draft.task(), standing.last_seq)
            reading = TaskReading(standing.last_seq, body=snapshot.whole())
        if self._standing is None:
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
                batch.errand,
                batch.size,
            )
        else:
            write = Append(
                self.number,
                self.scope,
                self._standing,
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
                batch.errand,
                batch.alarm,
                batch.size,
            )
        self._store.submit(
            write, lambda error, number: self._written(error, number, events, standing, reading)
        )

    def _written(
        self,
        error: Exception | None,
        number: int,
        events: list[Recorded],
        standing: Standing,
        reading: TaskReading | None,
    ) -> None:
        self._is_writing = False
        if error is not None:
            if self._standing is None and self.on_void is not None:
                self.on_void()
            self.fail(error)
            return
        self.number = number
        self.fence = self._next_fence = max(self._next_fence, 1)
        if self._standing is None:
            figures.tasks_started.add(self.scope.agent)
        if standing.state.is_terminal:
            figures.tasks_ended.add(self.scope.agent, standing.state.name.lower())
        self._standing = standing
        self._keep_at_hand(events)
        if self.hooks is not None:
            self.hooks.recorded()
        if standing.state.is_resting:
            waiting, self._resting = self._resting, []
            for after, future in waiting:
                if after > standing.last_seq:
                    # The task rested before this caller's message reached it.
                    self._resting.append((after, future))
                elif not future.done():
                    future.set_result(reading)
        if self._durable:
            self._tell_durable()
        self._bell.ring(self.task_id)
        if self._unwritten:
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

    def _tell_durable(self) -> None:
        waiting, self._durable = self._durable, []
        for seq, future in waiting:
            if seq > self.durable_seq:
                self._durable.append((seq, future))
            elif not future.done():
                future.set_result(None)

    def _keep_at_hand(self, events: list[Recorded]) -> None:
        tail = self._tail
        for recorded in events:
            tail.append(recorded)
            self._tail_bytes += len(recorded.body)
        while len(tail) > MAX_TAIL_EVENTS or (self._tail_bytes > MAX_TAIL_BYTES and len(tail) > 1):
            self._tail_bytes -= len(tail.popleft().body)


def _snapshot(task: Task, seq: int) -> Snapshot:
    head = task if not task.artifacts else msgspec.structs.replace(task, artifacts=[])
    return Snapshot(seq, encode(head), encode(task.artifacts))


def _is_an_end(event: Event) -> bool:
    return isinstance(event, CancelRequested) or (
        isinstance(event, StatusUpdate) and event.status.state.is_terminal
    )


async def read_task(
    store: Store, number: int, *, upto: int | None = None, artifacts: bool = True
) -> TaskReading | None:
    """Return the task as of a position: the end of its log, unless told.

    Starts at the kept snapshot unless the position lies before it.
    """
    draft: Draft | None = None
    seq = 0
    reading = await store.snapshot(number, artifacts=artifacts)
    if reading is not None and (upto is None or reading.seq <= upto):
        seq = reading.seq
    else:
        reading = None
    size = 0 if reading is None else reading.size
    while True:
        batch = await store.read(
            number, after=seq, limit=500, artifacts=artifacts, size=_FOLD_AT_ONCE
        )
        if upto is not None:
            batch = [recorded for recorded in batch if recorded.seq <= upto]
        if not batch:
            break
        size += (found := sum([len(recorded.body) for recorded in batch]))
        if found > LARGE_BYTES:
            reserve(_MEMORY * found)
            await off_loop(_decode, batch)
        for recorded in batch:
            event = recorded.event
            if draft is None:
                draft = Draft(reading.task) if reading is not None else None
            if draft is None:
                assert isinstance(event, Task), "a log begins with its task"
                draft = Draft(event)
            else:
                draft.apply(event)
        seq = batch[-1].seq
        if upto is not None and seq >= upto:
            break
    if draft is not None:
        return TaskReading(seq, draft.task(), size=size)
    return reading


def _decode(batch: Sequence[Recorded]) -> None:
    """Have the events at hand as values."""
    for recorded in batch:
        _ = recorded.event


class Place(msgspec.Struct, frozen=True):
    """Where a reader stands: a task and a position in its log."""

    scope: Scope
    task_id: TaskId
    number: int
    after: int


class Logs(Protocol):
    """The logs this process writes at present."""

    def get(self, scope: Scope, task_id: TaskId, /) -> TaskLog | None:
        """Return a task's log, if it is among them."""
        ...


async def tail(
    store: Store, bell: Bell, logs: Logs, log: TaskLog | None, place: Place
) -> AsyncGenerator[Sequence[Recorded]]:
    """Yield all that follows a place, for ever.

    Events at hand come from the log that is being written, all others from the store."""
    after = place.after
    while True:
        ring: asyncio.Future[None] | None = None
        if log is not None and (log.is_retired or log.failure) and after >= log.durable_seq:
            log = logs.get(place.scope, place.task_id)
            if log is not None and log.failure:
                log = None
        batch = log.recent(after) if log is not None else None
        if batch is None:
            log = log or logs.get(place.scope, place.task_id)
            # Listening before reading: what is written in between rings.
            ring = bell.listen(place.task_id)
            batch = await store.read(place.number, after=after, limit=_READ_AT_ONCE)
        if batch:
            if ring is not None:
                ring.cancel()
            after = batch[-1].seq
            yield batch
            continue
        await (ring or bell.listen(place.task_id))


async def follow(
    batches: AsyncGenerator[Sequence[Recorded]], *, closes_on_input: bool
) -> AsyncGenerator[Sequence[Recorded]]:
    """Yield what a stream shows of a log, until the task ends or the reader's dialect stops."""
    async with contextlib.aclosing(batches):
        async for batch in batches:
            shown, is_over = _shown(batch, closes_on_input=closes_on_input)
            if shown:
                yield shown
            if is_over:
                return


def _shown(batch: Sequence[Recorded], *, closes_on_input: bool) -> tuple[list[Recorded], bool]:
    """Return what a stream shows of a batch, and whether it ends there."""
    shown: list[Recorded] = []
    for recorded in batch:
        if not recorded.is_public:
            continue
        shown.append(recorded)
        if recorded.is_status and isinstance(event := recorded.event, StatusUpdate):
            state = event.status.state
            if state.is_terminal or (state is TaskState.INPUT_REQUIRED and closes_on_input):
                return shown, True
    return shown, False
