"""The SQLite store: writes through one thread, point reads on the loop, scans on a second thread.

A point read is an index look-up in a local file and takes microseconds, less than handing it to a
thread would.
"""

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw

from dragoman.errors import ConfigError
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.stores.interface import (
    Done,
    Found,
    Head,
    KeepReply,
    Known,
    Query,
    Snapshot,
    Standing,
    Write,
)
from dragoman.stores.sqlite.filter import KeyFilter
from dragoman.stores.sqlite.schema import Row, check, connect, migrate, queries, rows_of, run
from dragoman.stores.sqlite.writer import (
    MAX_SEQ,
    SEQ_BITS,
    STATE_NUMBERS,
    Chore,
    Writer,
    scope_number,
)

_STATES = {number: state for state, number in STATE_NUMBERS.items()}
_PRUNE_STEP = 200
_EVERYTHING = 1 << 62
# A read ends after about so much, however many events were asked for.
_READ_BYTES = 1024 * 1024
_CHUNK = b'{"artifactUpdate"'


class SQLiteStore:
    """Tasks and their logs in one file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.secret = b""
        self._sql = queries()
        self._scopes: dict[Scope, int] = {}
        self._parts: dict[int, Scope] = {}
        self._lock: int | None = None
        # Which keys there may be. Exact in saying no, because no other process writes the file.
        self._filter: KeyFilter | None = None
        self._arriving: list[bytes] = []
        self._filling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Create or migrate the file; one process at a time may have it."""
        # What callers said is nobody else's on this machine.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._lock = _lock(self.path)
        try:
            check(str(self.path))
            connection = connect(str(self.path))
            migrate(connection)
        except BaseException:
            self._let_go()
            raise
        self._writer = Writer(connection)
        self._scanner = ThreadPoolExecutor(1, "dragoman-reader")
        self._reader = connect(str(self.path))
        run(self._reader, "PRAGMA query_only = on")
        self._scans = connect(str(self.path))
        run(self._scans, "PRAGMA query_only = on")
        self.secret = bytes(self._rows("fact", ("secret",))[0][0])
        self._filter = None
        if self._lock is not None:
            self._filling = asyncio.get_running_loop().create_task(self._fill_filter())

    async def close(self) -> None:
        """Finish pending writes and let go of the file."""
        if self._filling is not None:
            await self._filling
        await self._writer.close()
        await asyncio.to_thread(self._scanner.shutdown)
        self._reader.close()
        self._scans.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def submit(self, write: Write, done: Done) -> None:
        """Queue the write for the next commit."""
        self._note_keys(write)
        self._writer.submit(write, done)

    def _note_keys(self, write: Write) -> None:
        keys = [write.key] if isinstance(write, KeepReply) else write.keys
        if self._filter is None:
            if self._filling is not None:
                self._arriving.extend(keys)
        else:
            for key in keys:
                self._filter.add(key)

    async def _fill_filter(self) -> None:
        """Learn all keys in the background; until then every look-up asks the file."""
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self._scanner, self._scan_keys)
        for key in self._arriving:
            known.add(key)
        self._arriving.clear()
        self._filter = known

    def _scan_keys(self) -> KeyFilter:
        known = KeyFilter()
        for (key,) in run(self._scans, self._sql["keys"]):
            known.add(key)
        return known

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for."""
        number = self._scope(scope)
        if number is None or (self._filter is not None and key not in self._filter):
            return None
        rows = self._rows("known", (number, key))
        if not rows:
            return None
        task_id, reply = rows[0]
        return Known(TaskId(task_id or ""), reply or b"")

    async def head(self, scope: Scope, task_id: TaskId) -> Head | None:
        """Return a task's row."""
        number = self._scope(scope)
        if number is None:
            return None
        rows = self._rows("head", (task_id, number))
        return self._head(rows[0]) if rows else None

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[Head, TaskReading | None] | None:
        """Return a task's row and, if it rests, the task."""
        number = self._scope(scope)
        if number is None:
            return None
        rows = self._rows("at_rest", (task_id, number))
        if not rows:
            return None
        *columns, seq, head, artifacts = rows[0]
        reading = None
        if seq is not None:
            reading = TaskReading(seq, body=Snapshot(seq, head, artifacts).whole())
        return self._head(tuple(columns)), reading

    async def read(
        self, number: int, *, after: int, limit: int, artifacts: bool = True
    ) -> list[Recorded]:
        """Return the events after a position."""
        first = number << SEQ_BITS
        name = "read" if artifacts else "read_without_artifacts"
        rows = rows_of(
            self._reader, self._sql[name], (first | min(after, MAX_SEQ), first | MAX_SEQ)
        )
        events: list[Recorded] = []
        size = 0
        with contextlib.closing(rows):
            for last, count, bodies in rows:
                # The first row may begin before the position asked for.
                for seq, body in enumerate(bodies.split(b"\n"), last - count + 1):
                    if seq > after and (artifacts or not body.startswith(_CHUNK)):
                        events.append(Recorded(seq, body=body))
                size += len(bodies)
                # Nothing means the end of the log, so a row of which all is passed over is not it.
                if events and (len(events) >= limit or size >= _READ_BYTES):
                    break
        return events[:limit]

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = self._rows("snapshot" if artifacts else "snapshot_head", (number,))
        if not rows:
            return None
        snapshot = Snapshot(*rows[0])
        return TaskReading(snapshot.seq, body=snapshot.whole() if artifacts else snapshot.head)

    async def page(self, query: Query) -> Found:
        """Return one page; totals without a filter come from counters."""
        number = self._scope(query.scope)
        if number is None:
            return Found([], 0)
        values: dict[str, Any] = {
            "scope": number,
            "context": query.context_id,
            "state": STATE_NUMBERS[query.state] if query.state is not None else None,
            "since": 0 if query.status_since is None else query.status_since,
            "status_at": query.after[0] if query.after else _EVERYTHING,
            "number": query.after[1] if query.after else _EVERYTHING,
            "limit": query.limit,
        }
        if query.context_id:
            page, total = "page_of_context", "total_of_context"
        else:
            page = "page" if query.state is None else "page_of_state"
            total = "total" if query.status_since is None else "total_since"
        loop = asyncio.get_running_loop()
        rows, count = await loop.run_in_executor(
            self._scanner, self._scan, self._sql[page], self._sql[total], values
        )
        return Found([self._head(row) for row in rows], count)

    def _scan(self, page: str, total: str, values: dict[str, Any]) -> tuple[list[Row], int]:
        # One transaction, so that the page and its total speak of the same moment.
        run(self._scans, "BEGIN")
        try:
            rows = run(self._scans, page, values)
            ((count,),) = run(self._scans, total, values)
        finally:
            run(self._scans, "COMMIT")
        return rows, count

    async def unfinished(self, agent: str) -> list[Head]:
        """Return tasks that no worker may have."""
        return [self._head(row) for row in self._rows("unfinished", (agent,))]

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget in small transactions, so that writers wait for none of them long."""
        forgotten = 0
        while step := await self._prune_step(ended_before, keep):
            forgotten += step
        await self._do(lambda c: run(c, self._sql["forget_keys"], (ended_before,)))
        return forgotten

    async def _prune_step(self, ended_before: int, keep: int) -> int:
        doomed: list[Row] = []

        def forget(connection: apsw.Connection) -> None:
            sql = self._sql
            doomed.extend(run(connection, sql["doomed_by_age"], (ended_before, _PRUNE_STEP)))
            surplus = run(connection, sql["ended"], ())[0][0] - len(doomed) - keep
            if surplus > 0 and not doomed:
                limit = min(surplus, _PRUNE_STEP)
                doomed.extend(run(connection, sql["doomed_by_number"], (limit,)))
            if not doomed:
                return
            last = run(connection, sql["last_number"], ())[0][0]
            retired = run(connection, sql["retired_number"], ())
            highest = max([last, *(row[0] for row in retired)])
            run(connection, sql["set_fact"], ("retired_number", highest))
            for number, scope, state in doomed:
                first = number << SEQ_BITS
                run(connection, sql["forget_events"], (first, first | MAX_SEQ))
                run(connection, sql["forget_snapshot"], (number,))
                run(connection, sql["forget_task"], (number,))
                run(
                    connection,
                    "UPDATE counts SET n = n - 1 WHERE scope = ? AND state = ?",
                    (scope, state),
                )

        await self._do(forget)
        return len(doomed)

    async def _do(self, chore: Chore) -> None:
        """Run a chore on the writer's thread in a transaction of its own."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, _: int) -> None:
            if finished.done():
                return
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        self._writer.submit(chore, done)
        await finished

    def _rows(self, name: str, values: tuple[Any, ...]) -> list[Row]:
        return run(self._reader, self._sql[name], values)

    def _scope(self, scope: Scope) -> int | None:
        number = self._scopes.get(scope)
        if number is None:
            number = scope_number(self._reader, self._sql, scope)
            if number is not None:
                self._scopes[scope] = number
        return number

    def _head(self, row: Row) -> Head:
        number, task_id, context, scope, state, status_at, last_seq, fence = row
        if scope not in self._parts:
            self._parts[scope] = Scope(*self._rows("scope_parts", (scope,))[0])
        return Head(
            number,
            TaskId(task_id),
            ContextId(context),
            self._parts[scope],
            Standing(_STATES[state], status_at, last_seq),
            fence,
        )


def _lock(path: Path) -> int | None:
    """Take the file for this process; whoever holds the lock knows that no other worker lives."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be opened ({error.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"{path}: another dragoman process is using it; give --store another file"
        ) from None
    return lock
