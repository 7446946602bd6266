"""The reading part of the SQLite store: point reads on the loop, scans on a thread.

A point read is an index look-up in a local file and takes microseconds, less than handing it to a
thread would.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw
import msgspec

from dragoman.model.identity import Principal, Scope, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState
from dragoman.stores.columns import STATE_NUMBERS, STATES, task_row, unpacked
from dragoman.stores.interface import (
    LATEST,
    READ_BYTES,
    Bodies,
    Known,
    Query,
    Snapshot,
    Survey,
    TaskRow,
    TaskRows,
    whole_task,
)
from dragoman.stores.sqlite.message_keys import MessageKeys
from dragoman.stores.sqlite.schema import Execute, Row, one_moment, rows_of, run
from dragoman.stores.sqlite.surveys import surveyed
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS, keep, scope_number

T = TypeVar("T")


class FileReads:
    """What `SQLiteStore` reads of tasks; the store opens and closes the connections."""

    _reader: apsw.Connection
    _execute: Execute
    _scans: apsw.Connection
    _scanner: ThreadPoolExecutor
    is_read_only: bool

    def __init__(self, sql: dict[str, str]) -> None:
        self._sql = sql
        self._scopes: dict[Scope, int] = {}
        self._parts: dict[int, Scope] = {}
        self._keys = MessageKeys()
        self.is_new = self._keys.is_new

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for."""
        if self._keys.is_new(key):
            return None
        number = self._scopes.get(scope) or self._scope(scope)
        if number is None:
            return None
        found = number, key
        # In this order: it may be moved in between.
        # One who only reads the file does not know which keys are beside the index.
        may_be_fresh = self.is_read_only or self._keys.is_fresh(key)
        rows = may_be_fresh and self._rows("known_fresh", found)
        rows = rows or self._execute(self._sql["known"], found).fetchall()
        if not rows:
            return None
        task_id, reply = rows[0]
        return Known(TaskId(task_id or ""), reply or b"")

    async def head(self, scope: Scope, task_id: TaskId) -> TaskRow | None:
        """Return a task's row."""
        number = self._scope(scope)
        if number is None:
            return None
        rows = self._rows("head", (task_id, number))
        return self._head(rows[0]) if rows else None

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[int, int, TaskReading | None] | None:
        """Return a task's number and last position and, if it rests, the task."""
        place = self._scopes.get(scope) or self._scope(scope)
        if place is None:
            return None
        row = self._execute(self._sql["at_rest"], (task_id, place)).get
        if row is None:
            return None
        number, last, head, artifacts = row
        if head is None:
            return number, last, None
        return number, last, TaskReading(last, body=whole_task(head, artifacts))

    async def read(
        self,
        number: int,
        *,
        after: int,
        limit: int,
        artifacts: bool = True,
        size: int = READ_BYTES,
    ) -> list[Recorded]:
        """Return the events after a position."""
        first = number << SEQ_BITS
        name = "read" if artifacts else "read_without_artifacts"
        rows = rows_of(
            self._reader, self._sql[name], (first | min(after, MAX_SEQ), first | MAX_SEQ)
        )
        with contextlib.closing(rows):
            return unpacked(rows, after=after, limit=limit, size=size, artifacts=artifacts)

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = self._rows("snapshot" if artifacts else "snapshot_head", (number,))
        if not rows:
            return None
        return Snapshot(*rows[0]).reading(artifacts=artifacts)

    async def read_many(
        self, places: Sequence[tuple[int, int]], *, limit: int, size: int = READ_BYTES
    ) -> list[list[Recorded]]:
        """Return the events after each position; one by one, since the file is near."""
        return [
            await self.read(number, after=after, limit=limit, size=size) for number, after in places
        ]

    async def last_seqs(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the last position of each task's log."""
        wanted = msgspec.json.encode(numbers).decode()
        return dict(self._rows("last_seqs", (wanted,)))

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have."""
        whose = principal.tenant, *principal.owners()
        rows = await self.read_tx(lambda connection: run(connection, self._sql["stored"], whose))
        return int(rows[0][0])

    async def page(self, query: Query, *, bodies: Bodies | None = None) -> TaskRows:
        """Return one page; totals without a filter come from counters."""
        number = self._scope(query.scope)
        if number is None:
            return TaskRows([], 0)
        values: dict[str, Any] = {
            "scope": number,
            "context": query.context_id,
            "state": STATE_NUMBERS[query.state] if query.state is not None else None,
            "since": 0 if query.status_since is None else query.status_since,
            "status_at": query.after[0] if query.after else LATEST,
            "number": query.after[1] if query.after else LATEST,
            "limit": query.limit,
            "agent": query.ordered_from,
        }
        if query.ordered_from:
            page, total = "page_of_agent", "total_of_agent"
        elif query.context_id:
            page, total = "page_of_context", "total_of_context"
        else:
            page = "page" if query.state is None else "page_of_state"
            total = "total" if query.status_since is None else "total_since"
        loop = asyncio.get_running_loop()
        rows, count, readings = await loop.run_in_executor(
            self._scanner, self._scan, self._sql[page], self._sql[total], values, bodies
        )
        return TaskRows([self._head(row) for row in rows], count, readings)

    async def survey(self, survey: Survey) -> list[TaskRow]:
        """Return tasks of all owners, latest status first."""
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._scanner, surveyed, self._scans, self._sql, survey)
        return [self._head(row) for row in rows]

    async def counts(self) -> dict[TaskState, int]:
        """Return how many tasks are in each state."""
        return {STATES[state]: count for state, count in self._rows("counts", ())}

    def _scan(
        self, page: str, total: str, values: dict[str, Any], bodies: Bodies | None
    ) -> tuple[list[Row], int, list[TaskReading | None]]:
        # One transaction: the page, its total and its tasks are of the same moment.
        with one_moment(self._scans):
            rows = run(self._scans, page, values)
            ((count,),) = run(self._scans, total, values)
            readings = [] if bodies is None else self._scan_bodies(rows, bodies)
        return rows, count, readings

    def _scan_bodies(self, rows: Sequence[Row], bodies: Bodies) -> list[TaskReading | None]:
        query = self._sql["snapshot_at" if bodies.artifacts else "snapshot_head_at"]
        left = bodies.size
        readings: list[TaskReading | None] = []
        for number, _, _, _, _, _, last_seq, *_ in rows:
            found = run(self._scans, query, (number, last_seq)) if left > 0 else []
            reading = Snapshot(*found[0]).reading(artifacts=bodies.artifacts) if found else None
            left -= len(reading.body) if reading is not None else 0
            readings.append(reading)
        return readings

    async def read_tx(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read on a thread; the event loop does not wait."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._scanner, reading, self._scans)

    def read_now(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read a few rows on the event loop, which waits."""
        return reading(self._reader)

    def _rows(self, name: str, values: tuple[Any, ...] | dict[str, Any]) -> list[Row]:
        return self._execute(self._sql[name], values).fetchall()

    def _scope(self, scope: Scope) -> int | None:
        number = self._scopes.get(scope)
        if number is None:
            number = scope_number(self._reader, self._sql, scope)
            if number is not None:
                keep(self._scopes, scope, number)
        return number

    def _part(self, scope: int) -> Scope:
        found = self._parts.get(scope)
        if found is None:
            found = Scope(*self._rows("scope_parts", (scope,))[0])
            keep(self._parts, scope, found)
        return found

    def _head(self, row: Row) -> TaskRow:
        return task_row(row, self._part(row[3]))
