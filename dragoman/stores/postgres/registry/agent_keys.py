"""Keys of agents in the database, and what this process knows of them.

Every request asks for the keys, so they are in memory. A change that another process makes is known
when that one rings, and after a second at the latest; our own are known when they are made.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from dragoman.errors import StoreUnavailable
from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.interface import Rung
from dragoman.stores.interface.agent_keys import REMEMBER_MS, KeyStored
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.deeds import do, storable

logger = logging.getLogger("dragoman")

# Seconds until what could not be read is read again.
_AGAIN_AFTER = 1.0
_SQL = statements("dragoman.stores.postgres", "registry/agent_keys.sql")


class PostgresAgentKeys:
    """The keys of a gateway's agents."""

    def __init__(self, connections: DatabaseConnections, changed: Callable[[int], None]) -> None:
        """`changed` hears the version of every change that was committed."""
        self._connections = connections
        self._changed = changed
        # By id, with the version of their last change.
        self._known: dict[str, tuple[AgentKeyRow, int]] = {}
        self._version = 0
        self._reading = asyncio.Lock()
        self._is_news = False
        self._following: asyncio.Task[None] | None = None

    # What this process knows

    def version(self) -> int:
        """Return how often keys have changed, as far as we know."""
        return self._version

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that were made or ended after a version."""
        found = [(version, row) for row, version in self._known.values() if version > after]
        return [row for _, row in sorted(found, key=lambda one: one[0])]

    async def refresh(self) -> None:
        """Read what changed since the last time."""

        async def read(connection: Connection) -> tuple[int, list[Row]]:
            version = await connection.fetchval(_SQL["version"])
            # A lower one: another database, or one that was restored.
            after = self._version if version >= self._version else 0
            is_news = version != self._version
            return version, await connection.fetch(_SQL["changed"], after) if is_news else []

        async with self._reading:
            version, rows = await self._connections.at_one_moment(read)
            if version < self._version:
                self._known = {}
            for *columns, changed in rows:
                row = AgentKeyRow(*columns)
                self._known[row.id] = (row, changed)
            self._version = version

    def heard(self, rung: Rung | None) -> None:
        """Read soon what another process changed, if it did."""
        if rung is not None and rung.agent_keys in (0, self._version):
            return
        self._is_news = True
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        """Read until there is no news that was not read: a key that was revoked is good here until
        then, and no other wake-up comes for it."""
        try:
            while self._is_news:
                self._is_news = False
                try:
                    await self.refresh()
                except Exception as error:
                    if not isinstance(error, StoreUnavailable):
                        logger.exception("keys of agents could not be read; trying again")
                    self._is_news = True
                    await asyncio.sleep(_AGAIN_AFTER)
        finally:
            self._following = None

    # What is stored

    async def of_agent(self, agent: str) -> Sequence[AgentKeyRow]:
        """Return the keys of an agent, in the order they were made."""
        rows = await self._connections.rows(_SQL["of_agent"], agent)
        return [AgentKeyRow(*row) for row in rows]

    async def put(self, row: AgentKeyRow, *, most: int) -> KeyStored:
        """Store a key, unless its agent was removed or has enough."""

        async def put(connection: Connection) -> KeyStored:
            if not await connection.fetchval(_SQL["agent_exists"], row.agent):
                return "no_agent"
            # The row of the version is locked from here on: keys are counted one by one.
            version = await connection.fetchval(_SQL["next_version"])
            await connection.execute(_SQL["forget"], row.made_at - REMEMBER_MS)
            if await connection.fetchval(_SQL["count_valid"], row.agent, row.made_at) >= most:
                return "full"
            columns = row._replace(label=storable(row.label))
            await connection.execute(_SQL["put"], *columns, version)
            return "stored"

        stored = await do(self._connections, put)
        await self.tell()
        return stored

    async def revoke(self, id: str, now: int) -> bool:
        """End a key; return whether it was not revoked before."""

        async def revoke(connection: Connection) -> bool:
            version = await connection.fetchval(_SQL["next_version"])
            return await connection.fetchval(_SQL["revoke"], now, version, id) is not None

        is_ended = await do(self._connections, revoke)
        await self.tell()
        return is_ended

    async def revoke_all(self, connection: Connection, agent: str, now: int) -> None:
        """End the keys of an agent, in the transaction of its removal."""
        version = await connection.fetchval(_SQL["next_version"])
        await connection.execute(_SQL["revoke_all"], now, version, agent)

    async def tell(self) -> None:
        """Know of a change that was just committed, and tell the others."""
        await self.refresh()
        self._changed(self._version)
