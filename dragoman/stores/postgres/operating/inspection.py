"""What tools read of a database besides its tasks: facts for an operator, judged elsewhere.

The reader is no worker, so servers that use the database neither wait nor notice. Time is the
server's. Contents of messages are never read.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from dragoman.stores.columns import dead_letter, receiver_line
from dragoman.stores.interface import DeadLetter, Push
from dragoman.stores.interface.inspection import NoteFacts, OrphanFacts, ReceiverFacts, WorkerFacts
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Addresses, Connection, DatabaseConnections, Row
from dragoman.stores.postgres.schema import check_present

# Seconds after the end of a lease within which another worker takes over.
GRACE = 5.0
_SQL = statements("dragoman.stores.postgres.operating", "inspection.sql")


@asynccontextmanager
async def inspecting(
    addresses: Addresses, lease: float = 30.0
) -> AsyncGenerator["DatabaseInspection"]:
    """Look into a database; refuse one that is not ours in the words a server would use."""
    connections = DatabaseConnections(addresses, readers=2)
    await connections.open()
    try:
        await check_present(await connections.writer())
        yield DatabaseInspection(connections, lease)
    finally:
        await connections.close()


class DatabaseInspection:
    """One look into a database."""

    def __init__(self, connections: DatabaseConnections, lease: float) -> None:
        self._connections = connections
        self._lease = lease

    async def tasks(self) -> int:
        """Return how many tasks there are."""
        return (await self._one("tasks"))[0]

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers that were not marked gone, dead or alive."""
        found: list[WorkerFacts] = []
        for number, is_late, has_session, is_due, tasks in await self._rows("workers", GRACE):
            if has_session and not is_late:
                found.append(WorkerFacts(number, "live", is_due=False, tasks=tasks))
            else:
                state = "frozen" if has_session else "dead"
                found.append(WorkerFacts(number, state, is_due, tasks))
        return found

    async def orphans(self) -> OrphanFacts:
        """Return unfinished tasks that a worker should have taken over by now."""

        async def read(moment: Connection) -> OrphanFacts:
            values = (await self._before(moment), await _held(moment))
            number, unfinished = await moment.fetchrow(_SQL["unfinished"], *values)
            agents: list[Row] = []
            if number:
                agents = await moment.fetch(_SQL["orphaned_agents"], *values)
            return OrphanFacts(number, [agent for (agent,) in agents], unfinished)

        return await self._connections.at_one_moment(read)

    async def notes(self) -> NoteFacts:
        """Return how many messages and cancels wait in notes."""

        async def read(moment: Connection) -> NoteFacts:
            return NoteFacts(*await moment.fetchrow(_SQL["notes"], await _held(moment)))

        return await self._connections.at_one_moment(read)

    async def overdue(self) -> int:
        """Return how many tasks should have ended by their deadline."""

        async def read(moment: Connection) -> int:
            return await moment.fetchval(_SQL["overdue"], await self._before(moment))

        return await self._connections.at_one_moment(read)

    async def receivers(self) -> ReceiverFacts:
        """Return how many receivers do not get their posts."""

        async def read(moment: Connection) -> ReceiverFacts:
            values = (await self._before(moment), await _held(moment))
            return ReceiverFacts(*await moment.fetchrow(_SQL["pushes"], *values))

        return await self._connections.at_one_moment(read)

    async def dead_letters(self) -> tuple[int, int]:
        """Return how many events no receiver took, and when the latest was given up."""
        number, at = await self._one("dead_letters")
        return number, at

    async def stuck(self, before: int) -> int:
        """Return how many receivers of ended tasks a live worker should have posted to before a
        time. The last event of an ended task is posted in every version."""
        live = [worker.number for worker in await self.workers() if worker.state == "live"]
        return (await self._one("stuck", before, live))[0]

    async def pushes(self) -> list[tuple[Push, int]]:
        """Return all receivers without their secrets, each with the last event of its task."""
        return [receiver_line(row) for row in await self._rows("all_pushes")]

    async def letters(self) -> list[DeadLetter]:
        """Return all dead letters by receiver and event."""
        return [dead_letter(row) for row in await self._rows("letters")]

    async def newest(self) -> int:
        """Return when a task's status last changed, in milliseconds; 0: never."""
        return (await self._one("newest"))[0] or 0

    async def _rows(self, name: str, *values: Any) -> list[Row]:
        return await self._connections.rows(_SQL[name], *values)

    async def _one(self, name: str, *values: Any) -> Row:
        return (await self._rows(name, *values))[0]

    async def _before(self, moment: Connection) -> int:
        return await moment.fetchval(_SQL["before"], self._lease + GRACE)


async def _held(moment: Connection) -> list[int]:
    """Return the workers whose tasks are not to be taken over (yet)."""
    return [number for (number,) in await moment.fetch(_SQL["held"], GRACE)]
