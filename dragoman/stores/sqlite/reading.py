"""Tasks and their logs as tools read them from the file: no worker, and no write."""

import contextlib
from collections.abc import Generator
from pathlib import Path

import apsw

from dragoman.model.record import Recorded, TaskReading
from dragoman.stores.columns import STATE_NUMBERS, task_line, unpacked
from dragoman.stores.interface import READ_BYTES, Snapshot
from dragoman.stores.interface.inspection import TailFilter, TailPosition, TaskFilter, TaskLine
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import Row, one_moment, queries, rows_of, run
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS

_EVERYTHING = 1 << 62
_CHUNK = b'{"artifactUpdate"'
_SQL = queries("reading.sql")


@contextlib.contextmanager
def reading_tasks(path: Path) -> Generator["Reading"]:
    """Open a store's file to read its tasks, also while servers use it."""
    with contextlib.closing(open_to_read(path)) as connection:
        yield Reading(connection)


class Reading:
    """The tasks of a file that was opened to be read."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def version(self) -> int:
        """Return a number that changes when another process wrote."""
        return int(run(self._connection, "PRAGMA data_version")[0][0])

    async def page(
        self, wanted: TaskFilter, limit: int, after: tuple[int, int] | None = None
    ) -> list[TaskLine]:
        """Return the tasks whose status changed last, after a time and number."""
        values = {
            "status_at": after[0] if after else _EVERYTHING,
            "number": after[1] if after else _EVERYTHING,
            "since": wanted.since,
            "state": None if wanted.state is None else STATE_NUMBERS[wanted.state],
            "context": wanted.context_id,
            "limit": limit,
        }
        found: list[Row] = []
        # By scope, since that is how the index goes.
        for (scope,) in run(self._connection, _SQL["scopes"], (wanted.agent, wanted.agent)):
            found += run(self._connection, _SQL["page"], values | {"scope": scope})
        found.sort(key=lambda row: (row[4], row[0]), reverse=True)
        return [task_line(row) for row in found[:limit]]

    async def find(self, task_id: str, agent: str = "") -> list[TaskLine]:
        """Return the tasks of an id: one, unless agents or owners share it."""
        return [
            task_line(row) for row in run(self._connection, _SQL["by_id"], (task_id, agent, agent))
        ]

    async def here(self, agent: str = "") -> TailPosition:
        """Return the position of a reader that has seen everything."""
        with one_moment(self._connection):
            ((highest,),) = run(self._connection, _SQL["highest"])
            live = map(task_line, run(self._connection, _SQL["live"], (agent, agent)))
            return TailPosition(int(highest), {line.number: line.last_seq for line in live})

    async def follow(
        self, position: TailPosition, wanted: TailFilter, limit: int
    ) -> tuple[list[tuple[TaskLine, Recorded]], TailPosition]:
        """Return events after a position, those of one task in their order, and where that ends.

        Fewer than `limit` means that there are no more yet.
        """
        events: list[tuple[TaskLine, Recorded]] = []
        seen = dict(position.seen)
        highest = position.highest
        with one_moment(self._connection):
            known = [
                row
                for number in seen
                for row in run(self._connection, _SQL["by_number"], (number,))
            ]
            fresh = run(
                self._connection, _SQL["after"], (highest, wanted.agent, wanted.agent, limit)
            )
            gone = seen.keys() - {row[0] for row in known}
            for line in map(task_line, [*known, *fresh]):
                room = limit - len(events)
                if not room:
                    # A task that was not looked at keeps its place.
                    break
                seq = seen.get(line.number, 0)
                if wanted.takes(line):
                    batch = self._events(line.number, seq, room)
                    events += [(line, one) for one in batch]
                    seq = batch[-1].seq if batch else seq
                else:
                    seq = line.last_seq
                highest = max(highest, line.number)
                seen[line.number] = seq
                if seq == line.last_seq and line.state.is_terminal:
                    del seen[line.number]
        for number in gone:
            # Old enough to be forgotten.
            del seen[number]
        return events, TailPosition(highest, seen)

    def _events(self, number: int, after: int, limit: int) -> list[Recorded]:
        first = number << SEQ_BITS
        values = (first | min(after, MAX_SEQ), first | MAX_SEQ)
        with contextlib.closing(rows_of(self._connection, _SQL["events"], values)) as rows:
            return unpacked(rows, after=after, limit=limit, size=_EVERYTHING)

    # The two reads of a store by which a task is folded from its log.

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
        found = self._events(number, after, limit)
        return [one for one in found if artifacts or not one.body.startswith(_CHUNK)]

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = run(self._connection, _SQL["snapshot"], (number,))
        return Snapshot(*rows[0]).reading(artifacts=artifacts) if rows else None
