"""Tasks and their logs as tools read them from the database: no worker, and no write.

Numbers of tasks come in blocks, one to a worker: they are in order of time within a block and not
across blocks. A reader of all tasks therefore also keeps how far it is in each block that a living
worker may still fill. All of one look is of one moment.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from dragoman.model.record import Recorded, TaskReading
from dragoman.stores.columns import STATE_NUMBERS, task_line
from dragoman.stores.interface import READ_BYTES
from dragoman.stores.interface.inspection import TailFilter, TailPosition, TaskFilter, TaskLine
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Addresses, Connection, DatabaseConnections, Row
from dragoman.stores.postgres.reads import TaskReads, read_events
from dragoman.stores.postgres.schema import check_present
from dragoman.stores.postgres.scopes import Scopes

_SQL = statements("dragoman.stores.postgres.operating", "reading.sql")
_EVERYTHING = (1 << 62) - 1
_BLOCK = 4096
Events = list[tuple[TaskLine, Recorded]]


@asynccontextmanager
async def reading_tasks(addresses: Addresses) -> AsyncGenerator["DatabaseReading"]:
    """Open a database to read its tasks, also while servers use it."""
    connections = DatabaseConnections(addresses, readers=2)
    await connections.open()
    try:
        await check_present(await connections.writer())
        yield DatabaseReading(connections)
    finally:
        await connections.close()


class DatabaseReading:
    """The tasks of a database that was opened to be read."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections
        self._reads = TaskReads(connections, Scopes(connections))

    async def version(self) -> int:
        """Return a number that changes when another process wrote."""
        ((version,),) = await self._connections.rows(_SQL["version"])
        return version

    async def page(
        self, wanted: TaskFilter, limit: int, after: tuple[int, int] | None = None
    ) -> list[TaskLine]:
        """Return the tasks whose status changed last, after a time and number."""
        rows = await self._connections.rows(
            _SQL["page"],
            *(after or (_EVERYTHING, _EVERYTHING)),
            wanted.since,
            None if wanted.state is None else STATE_NUMBERS[wanted.state],
            wanted.context_id,
            limit,
            wanted.agent,
        )
        return [task_line(row) for row in rows]

    async def find(self, task_id: str, agent: str = "") -> list[TaskLine]:
        """Return the tasks of an id: one, unless agents or owners share it."""
        return [
            task_line(row) for row in await self._connections.rows(_SQL["by_id"], task_id, agent)
        ]

    async def here(self, agent: str = "") -> TailPosition:
        """Return the position of a reader that has seen everything."""

        async def read(connection: Connection) -> TailPosition:
            highest = await connection.fetchval(_SQL["highest"])
            live = [task_line(row) for row in await connection.fetch(_SQL["live"], agent)]
            blocks = dict(await connection.fetch(_SQL["open_blocks"]))
            return TailPosition(highest, {line.number: line.last_seq for line in live}, blocks)

        return await self._connections.at_one_moment(read)

    async def follow(
        self, position: TailPosition, wanted: TailFilter, limit: int
    ) -> tuple[Events, TailPosition]:
        """Return events after a position, those of one task in their order, and where that ends.

        Fewer than `limit` means that there are no more yet.
        """

        async def read(connection: Connection) -> tuple[Events, TailPosition]:
            blocks = dict(await connection.fetch(_SQL["open_blocks"]))
            known = await connection.fetch(_SQL["by_number"], list(position.seen))
            ranges = _unseen(position)
            fresh = await connection.fetch(_SQL["within"], *ranges, wanted.agent, limit)
            tail = _Tail(position)
            is_cut = len(fresh) == limit
            for line in _lines(known, fresh):
                if len(tail.events) == limit:
                    # A task that was not looked at keeps its place.
                    is_cut = True
                    break
                await tail.take(connection, line, wanted, limit - len(tail.events))
            gone = position.seen.keys() - {row[0] for row in known}
            return tail.events, tail.position(blocks, gone, is_cut=is_cut)

        return await self._connections.at_one_moment(read)

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
        return await self._reads.read(
            number, after=after, limit=limit, artifacts=artifacts, size=size
        )

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        return await self._reads.snapshot(number, artifacts=artifacts)


class _Tail:
    """A reader of all tasks in the midst of one look."""

    def __init__(self, position: TailPosition) -> None:
        self.events: Events = []
        self._before = position
        self._seen = dict(position.seen)
        self._highest = position.highest
        # How far we came in each block.
        self._reached = dict(position.blocks)

    async def take(
        self,
        connection: Connection,
        line: TaskLine,
        wanted: TailFilter,
        room: int,
    ) -> None:
        """Read on in a task's log, as far as there is room."""
        number, seq = line.number, self._seen.get(line.number, 0)
        if wanted.takes(line):
            batch = await read_events(connection, number, after=seq, limit=room, size=_EVERYTHING)
            self.events += [(line, one) for one in batch]
            seq = batch[-1].seq if batch else seq
        else:
            seq = line.last_seq
        self._highest = max(self._highest, number)
        block = number // _BLOCK * _BLOCK
        self._reached[block] = max(self._reached.get(block, 0), number)
        self._seen[number] = seq
        if seq == line.last_seq and line.state.is_terminal:
            del self._seen[number]

    def position(
        self, still_open: Iterable[int], gone: Iterable[int], *, is_cut: bool
    ) -> TailPosition:
        """Return where this ends. `gone` are tasks old enough to be forgotten."""
        for number in gone:
            del self._seen[number]
        # What is not open any more has been seen whole, unless there was no room for it.
        kept = set(still_open)
        if is_cut:
            kept.update(self._before.blocks)
        blocks = {
            block: self._reached.get(block, block - 1)
            for block in sorted(kept)
            if block <= self._highest
        }
        return TailPosition(self._highest, self._seen, blocks)


def _unseen(position: TailPosition) -> tuple[list[int], list[int]]:
    """Return the ranges of numbers in which a reader has not seen everything."""
    afters, untils = [position.highest], [_EVERYTHING]
    for block, reached in position.blocks.items():
        afters.append(reached)
        untils.append(min(block + _BLOCK, position.highest + 1))
    return afters, untils


def _lines(*found: Iterable[Row]) -> list[TaskLine]:
    return [task_line(row) for rows in found for row in rows]
