"""All writing: whatever waits at the same moment shares one transaction and one fsync.

Rows are inserted by the event loop and committed by a thread. Inserting takes microseconds and
touches memory only; a thread would have to win the interpreter's lock from a busy loop for every
statement, which costs far more. Waiting for the disk is what a thread is for, unless the disk is
quick and the loop has nothing else to do: a write that is alone is then committed at once, since
handing it over would take longer. If any row of a group is refused, the group is written again one
by one, so that a conflict costs its own caller alone.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol, TypeVar

import apsw
import msgspec

from dragoman.errors import (
    A2AError,
    HoldRefused,
    StoreBroken,
    StoreConflict,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from dragoman.model.identity import Scope
from dragoman.stores.columns import STATE_NUMBERS, packed
from dragoman.stores.interface import (
    Append,
    Create,
    Done,
    LeaveNote,
    Write,
)
from dragoman.stores.sqlite.message_keys import KeyRow, MessageKeys
from dragoman.stores.sqlite.schema import close, executor, inserter, queries, run
from dragoman.stores.sqlite.seals import Seals
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

SEQ_BITS = 20
MAX_SEQ = (1 << SEQ_BITS) - 1
MAX_GROUP = 1_000
# Bytes after which a group takes no more: the loop inserts it in one go.
_GROUP_BYTES = 1024 * 1024

# What a column can hold, and a row of them.
Column = int | str | bytes | None
Row = tuple[Column, ...]
# Work that is not a task's write: the thread does it in a transaction of its own.
Chore = Callable[[apsw.Connection], object]
_Item = tuple[Write | Chore, Done]
_Outcome = tuple[Done, Exception | None, int]
# What the loop does after the thread.
_Next = Callable[[], None]
# After one of these it is unknown what the disk holds: a later sync may succeed without having
# written what this one failed to write.
_LOST_WRITES = frozenset(
    {
        apsw.SQLITE_IOERR_FSYNC,
        apsw.SQLITE_IOERR_DIR_FSYNC,
        apsw.SQLITE_IOERR_WRITE,
        apsw.SQLITE_IOERR_TRUNCATE,
    }
)
# What refuses one write of a group, and leaves the transaction as it is.
_REFUSALS = (apsw.ConstraintError, StoreConflict, StoreUnavailable, HoldRefused)
# Writes of events. Not a union, which would be made for every write that is looked at.
_OF_EVENTS = (Create, Append)
# Scopes known by heart. Tenants may be the callers' choice, and so without end.
MOST_KNOWN = 10_000
_K = TypeVar("_K")
_V = TypeVar("_V")
# Pages in the log, of 4 KiB each, before they are brought into the file.
_WAL_PAGES = 4000
# Seconds that the thread waits for another program that holds the file, and between two tries; the
# loop does not wait.
_PATIENCE = 10.0
_BETWEEN_TRIES = 0.0003
# Seconds that others wait for a loop that is to go on with a transaction: an author's code may keep
# it for as long as it likes.
_HANDED_OVER = 0.005
# Seconds a commit on the loop may be expected to take; a longer one sends the next ones to the
# thread until as many have been short as make up for it.
_SHORT = 0.001
_FADING = 0.9
# A commit on the loop is followed by this many times its length for others, before the next one.
_PAUSE = 1.0
# Bytes of a write that it commits.
_SMALL = 64 * 1024
# Commits on the loop after which one goes to the thread, which brings the log into the file.
_MOST_ON_LOOP = 200


class TaskOrderWrites(Protocol):
    """Records what writes of tasks mean to their orders, in the same transaction."""

    def record(
        self, connection: apsw.Connection, writes: Sequence[Write], numbers: Sequence[int]
    ) -> None:
        """Record it; raises `HoldRefused`."""
        ...


class Writer:
    """Owns the writing connection and the thread that commits."""

    def __init__(
        self, connection: apsw.Connection, worker: int, seals: Seals, known: MessageKeys
    ) -> None:
        self._connection = connection
        self._execute = executor(connection)
        # What a group may have to take back is kept in memory, not in a file of its own.
        self._execute("PRAGMA temp_store = memory")
        connection.wal_autocheckpoint(_WAL_PAGES)
        connection.set_busy_timeout(0)
        self._seals = seals
        self._known = known
        # The holder of what is written.
        self._worker = worker
        self.orders: TaskOrderWrites | None = None
        self._sql = sql = queries()
        insert = inserter(connection)
        self._insert_tasks = partial(insert, sql["insert_tasks"])
        self._insert_events = partial(insert, sql["insert_events"])
        self._insert_keys = partial(insert, sql["insert_keys"])
        self._insert_fresh_keys = partial(insert, sql["insert_fresh_keys"])
        self._insert_snapshots = partial(insert, sql["insert_snapshots"])
        self._add_count = partial(self._execute, sql["count"])
        self._scopes: dict[Scope, int] = {}
        # Scopes met in the present transaction, which may yet be rolled back.
        self._met: dict[Scope, int] = {}
        self._pending: deque[_Item] = deque()
        self._is_busy = False
        # Whether another process writes at present, and ours wait.
        self.is_waiting = False
        self._is_scheduled = False
        self._handed: queue.SimpleQueue[Callable[[], _Next] | None] = queue.SimpleQueue()
        # What the file is like as others leave it, as of our last transaction.
        self._version = 0
        # The highest number of a task, and the version as of which it is that; -1: look.
        self._number = 0
        self._numbered = -1
        # Writes to come that are to be written one by one, since one of them was refused.
        self._apart = 0
        # Seconds that recent commits took at most, older ones fading.
        self._took = _SHORT
        # When the loop has been free for as long as the last commit took.
        self._quiet_at = 0.0
        self._is_telling = False
        # Commits of the loop since the thread last did something.
        self._on_loop = 0
        self._loop = asyncio.get_running_loop()
        # Why nothing more is taken: the disk lost a write, or the file is lost.
        self.fault: StoreBroken | None = None
        # Set when that is to be told.
        self.broken = asyncio.Event()
        # Called when a write was refused that should not have been.
        self.on_trouble: Callable[[], None] = _nothing
        self._thread = threading.Thread(target=self._work, name="dragoman-writer", daemon=True)
        self._thread.start()
        self._unwatch = figures.writes_waiting.watch(self._waiting_now)

    def _waiting_now(self) -> float:
        return len(self._pending)

    def submit(self, item: Write | Chore, done: Done) -> None:
        """Queue a write; called on the event loop."""
        self._pending.append((item, done))
        if not (self._is_busy or self._is_scheduled):
            # At the end of this turn of the loop, so that its other writes come along.
            self._is_scheduled = True
            self._loop.call_soon(self._write_group)

    async def flush(self) -> None:
        """Wait for what is queued, and for nothing that comes later: a busy writer never rests."""
        reached: asyncio.Future[None] = self._loop.create_future()

        def done(_: Exception | None, __: int) -> None:
            if not reached.done():
                reached.set_result(None)

        self.submit(lambda _: None, done)
        await reached

    async def close(self, *, keeps_log: bool = False) -> None:
        """Wait for what is queued, then end the thread."""
        while self._is_busy or self._pending:
            await self.flush()
        self._unwatch()
        self._handed.put(None)
        await asyncio.to_thread(self._thread.join)
        close(self._connection, keeps_log=keeps_log)

    def _write_group(self) -> None:
        self._is_scheduled = False
        if self._is_busy or not self._pending:
            return
        self._is_busy = True
        if self.fault is not None:
            refused: list[_Outcome] = [(done, self.fault, 0) for _, done in self._pending]
            self._pending.clear()
            self._loop.call_soon(self._finished, refused)
            return
        item, done = self._pending[0]
        if callable(item):
            self._pending.popleft()
            self._hand_over(partial(self._do, item, done))
            return
        try:
            self._begin()
        except apsw.BusyError:
            # Another process writes. Whatever comes until it is done goes along.
            waiting, self.is_waiting = len(self._pending), True
            self._hand_over(partial(self._wait, waiting))
        except Exception as error:
            self._refuse(self._taken(), error)
        else:
            self._write_begun()

    def _taken(self, most: int = MAX_GROUP) -> list[tuple[Write, Done]]:
        """Take what waits, up to the first chore, or until it is so much that others of the loop
        would wait for it."""
        pending = self._pending
        if len(pending) == 1:
            write, done = pending[0]
            if not callable(write):
                pending.clear()
                return [(write, done)]
        group: list[tuple[Write, Done]] = []
        size = 0
        while pending and len(group) < most and size < _GROUP_BYTES:
            write, done = pending[0]
            if callable(write):
                break
            pending.popleft()
            group.append((write, done))
            if pending:
                size += _size(write)
        return group

    def _hand_over(self, work: Callable[[], _Next]) -> None:
        if self._on_loop:
            self._on_loop = 0
            self._connection.wal_autocheckpoint(_WAL_PAGES)
        self._handed.put(work)

    def _write_begun(self) -> None:
        most, self._apart = self._apart, 0
        group = self._taken(most or MAX_GROUP)
        try:
            if most:
                outcomes = [self._insert_one(write, done) for write, done in group]
            else:
                outcomes = self._insert_group(group)
        except _REFUSALS as error:
            if len(group) == 1:
                self._refuse(group, error)
            else:
                self._write_apart(group)
        except Exception as error:
            self._refuse(group, error)
        else:
            if len(group) == 1 and self._may_commit_here(group[0][0]):
                self._finished(self._committed(outcomes))
            else:
                self._hand_over(partial(self._commit, outcomes))

    def _write_apart(self, group: Sequence[tuple[Write, Done]]) -> None:
        """Write the same group again, one by one: some of it was refused."""
        self._roll_back()
        self._pending.extendleft(reversed(group))
        self._apart = len(group)
        self._try_again()

    def _may_commit_here(self, write: Write) -> bool:
        """Say whether the loop itself commits a write that it has just inserted: it is small, no
        other one waits, the disk has been quick, and since the last commit the loop was free for
        others for at least as long as that took."""
        if (
            self._pending
            or self._is_telling
            or self._took >= _SHORT
            or self._on_loop >= _MOST_ON_LOOP
            or time.perf_counter() < self._quiet_at
            or _size(write) > _SMALL
        ):
            return False
        if not self._on_loop:
            # Bringing the log into the file takes long: for the thread.
            self._connection.wal_autocheckpoint(0)
        self._on_loop += 1
        return True

    def _refuse(self, group: Sequence[tuple[Write, Done]], error: Exception) -> None:
        """Tell the callers that nothing was committed: the disk may be full, another program may
        hold the file, or we have a bug."""
        self._roll_back()
        refusal = _refusal(error)
        refused: list[_Outcome] = [(done, refusal, 0) for _, done in group]
        self._loop.call_soon(self._finished, refused)

    def _go_on(self, handover: "_Handover") -> None:
        if handover.take():
            self.is_waiting = False
            self._write_begun()

    def _try_again(self) -> None:
        self._is_busy = False
        self._write_group()

    def _give_up(self, waiting: int, error: Exception) -> None:
        self.is_waiting = False
        # Later callers have not waited so long.
        self._refuse(self._taken(min(waiting, MAX_GROUP)), error)

    def _finished(self, outcomes: list[_Outcome]) -> None:
        self._is_busy = False
        for _, error, _ in outcomes:
            if error is not None and self._is_judged(error):
                break
        if self.fault is not None:
            # Also what was committed meanwhile: it is in a file that is lost.
            outcomes = [(done, error or self.fault, 0) for done, error, _ in outcomes]
        if self._pending:
            # The next group goes to the disk while this one's callers are told: by the thread,
            # since they are told in the order of their writes.
            self._is_telling = True
            self._write_group()
            self._is_telling = False
        for done, error, number in outcomes:
            try:
                done(error, number)
            except Exception:
                # The others of the group are to be told all the same.
                logger.exception("a writer could not be told")

    def _is_judged(self, error: Exception) -> bool:
        """Notice what went wrong beyond the write itself; True: others of its group need not be
        looked at."""
        if isinstance(error, StoreBroken) and self.fault is None:
            self.give_up(error)
        elif isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull):
            self.on_trouble()
            return True
        return False

    def give_up(self, fault: StoreBroken) -> None:
        """Take nothing more, for this reason, and tell; on the loop."""
        self.refuse_all(fault)
        self.broken.set()

    def refuse_all(self, fault: StoreBroken) -> None:
        """Acknowledge nothing more, also of what is under way."""
        self.fault = fault

    # In the thread

    def _work(self) -> None:
        while (work := self._handed.get()) is not None:
            self._loop.call_soon_threadsafe(work())

    def _wait(self, waiting: int) -> _Next:
        """Begin as soon as no other process writes. The rows are inserted by the loop all the same:
        it has the interpreter. If it does not come at once, others are not to wait for it."""
        try:
            self._begin_patiently()
        except Exception as error:
            # A name that outlives the handler, which the loop runs after.
            refusal = error
            return lambda: self._give_up(waiting, refusal)
        handover = _Handover()
        try:
            self._loop.call_soon_threadsafe(self._go_on, handover)
        except RuntimeError:
            # The loop is closed: no caller is left to tell.
            self._roll_back()
            raise
        if handover.is_taken(_HANDED_OVER):
            return _nothing
        self._roll_back()
        return self._try_again

    def _commit(self, outcomes: list[_Outcome]) -> _Next:
        kept = self._committed(outcomes)
        return lambda: self._finished(kept)

    def _committed(self, outcomes: list[_Outcome]) -> list[_Outcome]:
        began = time.perf_counter()
        try:
            self._execute("COMMIT")
        except apsw.Error as error:
            figures.commits.add("failed")
            self._roll_back()
            refusal = _refusal(error)
            return [(done, refused or refusal, 0) for done, refused, _ in outcomes]
        ended = time.perf_counter()
        took = ended - began
        self._took = max(took, self._took * _FADING)
        self._quiet_at = ended + _PAUSE * took
        figures.commits.add("ok")
        figures.commit_seconds.add(took)
        figures.commit_writes.add(len(outcomes))
        if self._met:
            for scope, number in self._met.items():
                keep(self._scopes, scope, number)
        return outcomes

    def _do(self, chore: Chore, done: Done) -> _Next:
        # It may write tasks of its own.
        self._numbered = -1
        try:
            self._begin_patiently()
            chore(self._connection)
        except Exception as error:
            self._roll_back()
            refused: list[_Outcome] = [(done, _refusal(error), 0)]
            return lambda: self._finished(refused)
        return self._commit([(done, None, 0)])

    def _begin_patiently(self) -> None:
        """Begin a transaction once others let us. SQLite's own waits grow to a tenth of a second,
        which is far longer than any of our transactions."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._begin()
            except apsw.BusyError:
                if time.monotonic() > until:
                    raise
            time.sleep(_BETWEEN_TRIES)

    # In either

    def _begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")
        self._met = {}
        self._version = self._execute("PRAGMA data_version").get

    @property
    def version(self) -> int:
        """A number that is another one when other processes have written."""
        if not self._is_busy:
            self._version = self._execute("PRAGMA data_version").get
        return self._version

    def _insert_group(self, group: Sequence[tuple[Write, Done]]) -> list[_Outcome]:
        """Insert in the transaction that was begun; raises what refuses one of them."""
        writes, told = zip(*group, strict=True)
        return list(zip(told, repeat(None, len(told)), self._apply(writes), strict=True))

    def _insert_one(self, write: Write, done: Done) -> _Outcome:
        self._execute("SAVEPOINT one")
        met = dict(self._met)
        try:
            (number,) = self._apply([write])
        except _REFUSALS as error:
            # Only these leave the transaction as it is; any other error ends the group.
            # Nothing here is unavailable but the key of what is to be sealed.
            self._execute("ROLLBACK TO one")
            self._execute("RELEASE one")
            self._met = met
            return done, _refusal(error), 0
        self._execute("RELEASE one")
        return done, None, number

    def _roll_back(self) -> None:
        # What was met in the transaction is not in the file.
        self._met = {}
        self._numbered = -1
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def _apply(self, writes: Sequence[Write]) -> list[int]:
        tasks: list[Row] = []
        events: list[Row] = []
        keys: list[KeyRow] = []
        snapshots: list[Row] = []
        appends: list[tuple[int, ...]] = []
        # What few writes have beside these, in its order.
        rest: list[Callable[[], None]] = []
        counts: dict[tuple[int, int], int] = {}
        numbers: list[int] = []
        made_at = time.time_ns() // 1_000_000
        last_number = self._last_number()
        for write in writes:
            scope = self._scopes.get(write.scope) or self._scope(write.scope)
            if isinstance(write, Create):
                number = last_number = last_number + 1
                standing = write.standing
                state = STATE_NUMBERS[standing.state]
                tasks.append(
                    (
                        number,
                        write.task_id,
                        scope,
                        write.context_id,
                        state,
                        standing.status_at,
                        standing.last_seq,
                        1,
                        self._worker,
                    )
                )
                if write.pushes or write.deadline:
                    rest.append(partial(self._create_rest, number, write))
            elif isinstance(write, Append):
                number = write.number
                standing, before = write.standing, write.before
                state = STATE_NUMBERS[standing.state]
                left = scope, STATE_NUMBERS[before.state]
                counts[left] = counts.get(left, 0) - 1
                expected = before.last_seq, write.fence, write.next_fence
                reached = state, standing.status_at, standing.last_seq
                appends.append((number, *expected, *reached))
                if write.notes or write.withheld or write.forgets or write.deadline is not None:
                    rest.append(partial(self._append_rest, write))
            elif isinstance(write, LeaveNote):
                keys.extend([(scope, key, write.number, None, made_at) for key in write.keys])
                rest.append(partial(self._leave_note, write))
                numbers.append(write.number)
                continue
            else:
                keys.append((scope, write.key, None, write.body, made_at))
                numbers.append(0)
                continue
            place = scope, state
            counts[place] = counts.get(place, 0) + 1
            numbers.append(number)
            for key in write.keys:
                keys.append((scope, key, number, None, made_at))
            last, count, kind, bodies = packed(write.events)
            events.append((number << SEQ_BITS | last, count, kind, bodies))
            if (snapshot := write.snapshot) is not None:
                snapshots.append((number, snapshot.seq, snapshot.head, snapshot.artifacts))
        if appends:
            self._append(appends)
        if tasks:
            self._insert_tasks(tasks)
        if events:
            self._insert_events(events)
        if keys:
            fresh, others = self._known.take(keys)
            if fresh:
                # Beside the index, where they cost least.
                self._insert_fresh_keys(fresh)
            if others:
                self._index_keys(others)
        if snapshots:
            self._insert_snapshots(snapshots)
        for record in rest:
            record()
        for (scope, state), n in counts.items():
            if n:
                self._add_count((scope, state, n))
        if self.orders is not None:
            self.orders.record(self._connection, writes, numbers)
        self._number, self._numbered = last_number, self._version
        return numbers

    def _index_keys(self, rows: Sequence[KeyRow]) -> None:
        for scope, key, *_ in rows:
            # The index refuses those that are in it.
            if (
                self._known.is_fresh(key)
                and self._execute(self._sql["known_fresh"], (scope, key)).fetchall()
            ):
                raise StoreConflict("the key exists")
        self._insert_keys(rows)

    def _last_number(self) -> int:
        """Return the highest number of a task: as we left it, unless others have written since."""
        if self._numbered != self._version:
            return self._execute(self._sql["last_number"]).fetchall()[0][0]
        return self._number

    def _append(self, appends: Sequence[tuple[int, ...]]) -> None:
        encoded = msgspec.json.encode(appends).decode()
        self._execute(self._sql["append"], (self._worker, encoded))
        if self._connection.changes() != len(appends):
            raise StoreConflict("the log moved on")

    def _leave_note(self, write: LeaveNote) -> None:
        body = self._seals.note(self._connection, write.number, write.body)
        self._execute(self._sql["leave_note"], (body, write.number))
        if self._connection.changes() != 1:
            raise StoreConflict("the task is gone or has ended")

    def _create_rest(self, number: int, write: Create) -> None:
        if write.deadline and not write.standing.state.is_terminal:
            self._set_deadline(number, write.deadline)
        for config in write.pushes:
            shown, sealed = self._seals.push(self._connection, number, config)
            values = (number, config.id, shown, sealed, self._worker, 0)
            self._execute(self._sql["put_push"], values)

    def _append_rest(self, write: Append) -> None:
        number, execute, sql = write.number, self._execute, self._sql
        if write.deadline is not None:
            execute(sql["forget_deadline"], (number,))
            if write.deadline:
                self._set_deadline(number, write.deadline)
        for seq, body in write.withheld:
            sealed = self._seals.answer(self._connection, number, seq, body)
            execute(sql["withhold"], (number, seq, sealed))
        if write.forgets:
            execute(sql["forget_withheld"], (number,))
        if write.notes:
            execute(sql["drop_notes"], (msgspec.json.encode(write.notes).decode(),))

    def _set_deadline(self, number: int, at: int) -> None:
        self._execute(self._sql["insert_deadline"], (number, at))

    def _scope(self, scope: Scope) -> int:
        number = self._scopes.get(scope) or self._met.get(scope)
        if number is None:
            number = scope_number(self._connection, self._sql, scope)
            if number is None:
                rows = self._execute(
                    self._sql["add_scope"], (scope.agent, scope.tenant, scope.owner)
                ).fetchall()
                number = int(rows[0][0])
            self._met[scope] = number
        return number


class _Handover:
    """A transaction that the thread began and the loop goes on with, unless it comes too late."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._is_taken = threading.Event()

    def take(self) -> bool:
        """Go on with it; False: it is over. On the loop."""
        if not self._turn.acquire(blocking=False):
            return False
        self._is_taken.set()
        return True

    def is_taken(self, within: float) -> bool:
        """Wait for the loop; False: it did not come, and cannot any more. In the thread."""
        return self._is_taken.wait(within) or not self._turn.acquire(blocking=False)


def _nothing() -> None:
    """The loop goes on by itself."""


def keep(known: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep what the file says in memory, for as many as use it at a time: the oldest goes."""
    if key not in known and len(known) >= MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = value


def scope_number(connection: apsw.Connection, sql: dict[str, str], scope: Scope) -> int | None:
    """Return the number of a scope, if it has one."""
    rows = run(connection, sql["scope"], (scope.agent, scope.tenant, scope.owner))
    return int(rows[0][0]) if rows else None


def _size(write: Write) -> int:
    """Return about how many bytes a write inserts."""
    if isinstance(write, _OF_EVENTS):
        return write.size
    return len(write.body)


def _refusal(error: Exception) -> Exception:
    if isinstance(error, apsw.ConstraintError):
        return StoreConflict("the id or the key exists")
    if isinstance(error, StoreConflict | StoreBroken | HoldRefused | A2AError):
        # The last is what a chore says of its own: what it did so far did not happen.
        return error
    logger.error("the store refused a write", exc_info=error)
    if isinstance(error, apsw.FullError):
        return StoreFull(str(error))
    # apsw sets the extended result on the exception without declaring it.
    if isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in _LOST_WRITES:
        return StoreBroken(str(error))
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(str(error))
    return StoreUnavailable(str(error))
