"""Registered agents in the database: their rows, credentials and addresses, and what changed."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.stores.interface.agents import (
    AgentAddress,
    AgentCredential,
    AgentHealthRow,
    AgentRow,
    AgentRowChanges,
    CircuitRow,
    CredentialLabel,
)
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.deeds import do
from dragoman.stores.postgres.registry.agent_keys import PostgresAgentKeys
from dragoman.stores.postgres.seals import Seals

# Milliseconds for which other processes may not have noticed that an agent was removed.
_REMEMBER_MS = 24 * 3600 * 1000
_SQL = statements("dragoman.stores.postgres", "registry/agents.sql")
_decode_label = msgspec.json.Decoder(CredentialLabel).decode


class PostgresAgents:
    """The agents of a gateway."""

    def __init__(
        self,
        connections: DatabaseConnections,
        seals: Seals,
        keys: PostgresAgentKeys,
        changed: Callable[[int], None],
    ) -> None:
        """`changed` hears the version of every change that was committed."""
        self._connections = connections
        self._seals = seals
        self._keys = keys
        self._changed = changed

    async def changes(self, after: int) -> AgentRowChanges:
        """Return what changed after a version."""
        ((version,),) = await self._connections.rows(_SQL["version"])
        if version == after:
            return AgentRowChanges((), (), version)

        async def read(connection: Connection) -> AgentRowChanges:
            version = await connection.fetchval(_SQL["version"])
            agents = [AgentRow(*row) for row in await connection.fetch(_SQL["changed"], after)]
            removed = [(id, one) for id, one in await connection.fetch(_SQL["removed"], after)]
            circuits = [CircuitRow(*row) for row in await connection.fetch(_SQL["circuits"], after)]
            return AgentRowChanges(agents, removed, version, circuits)

        return await self._connections.at_one_moment(read)

    async def find(self, id: str) -> AgentRow | None:
        """Return an agent as it is stored at this moment."""
        rows = await self._connections.rows(_SQL["find"], id)
        return AgentRow(*rows[0]) if rows else None

    async def former(self, address: AgentAddress) -> str:
        """Return the id of an agent that was at an address and was removed."""
        rows = await self._connections.rows(_SQL["former"], *address)
        return rows[0][0] if rows else ""

    async def put(
        self,
        row: AgentRow,
        *,
        address: AgentAddress | None = None,
        credential: AgentCredential | UnsetType | None = UNSET,
    ) -> AgentRow | None:
        """Store an agent unless it changed meanwhile."""

        async def put(connection: Connection) -> AgentRow | None:
            # Read before the version is raised, so that a write that is refused changes nothing;
            # and again under its lock.
            if await _version_of(connection, row.id) != row.version:
                return None
            version = await _next_versions(connection)
            if await _version_of(connection, row.id) != row.version:
                raise _Late
            name = await _free_name(connection, row.name, row.id)
            columns = row._replace(name=name, version=version)
            stored = await connection.fetchrow(_SQL["put"], *columns)
            if address is not None:
                await _put_address(connection, row.id, address)
            if credential is None:
                await connection.execute(_SQL["drop_credential"], row.id)
            elif not isinstance(credential, UnsetType):
                await self._put_credential(connection, credential)
            return AgentRow(*stored)

        try:
            stored = await do(self._connections, put)
        except _Late:
            return None
        if stored is not None:
            self._changed(stored.version)
        return stored

    async def _put_credential(self, connection: Connection, credential: AgentCredential) -> None:
        shown = msgspec.json.encode(credential.label)
        body = await self._seals.credential(connection, shown, credential.secret)
        await connection.execute(_SQL["put_credential"], credential.label.agent, shown, body)

    async def put_health(self, rows: Sequence[AgentHealthRow]) -> list[int]:
        """Store the health of agents."""
        if not rows:
            return []

        async def put(connection: Connection) -> list[int]:
            last = await _next_versions(connection, len(rows))
            versions = list(range(last - len(rows) + 1, last + 1))
            columns = [list(column) for column in zip(*rows, strict=True)]
            await connection.execute(_SQL["put_health"], *columns, versions)
            return versions

        versions = await do(self._connections, put)
        self._changed(versions[-1])
        return versions

    async def put_circuits(self, rows: Sequence[CircuitRow]) -> None:
        """Tell other workers of circuits that opened or closed."""

        async def put(connection: Connection) -> int:
            version = await _next_versions(connection)
            await connection.execute(_SQL["forget_circuits"])
            columns = [list(column) for column in zip(*rows, strict=True)]
            await connection.execute(_SQL["put_circuits"], *columns, version)
            return version

        if rows:
            self._changed(await do(self._connections, put))

    async def remove(self, id: str, now: int, address: AgentAddress | None = None) -> int:
        """Remove an agent and its credential, and revoke its keys."""

        async def remove(connection: Connection) -> int:
            # First: the order of locks is that of every other write of an agent.
            version = await _next_versions(connection)
            await connection.execute(_SQL["remove"], id)
            if address is not None:
                await _put_address(connection, id, address)
            if not await connection.fetchval(_SQL["is_referred_to"], id):
                await connection.execute(_SQL["forget_addresses"], id)
            await self._keys.revoke_all(connection, id, now)
            await connection.execute(_SQL["drop_credential"], id)
            await connection.execute(_SQL["drop_circuits"], id)
            await connection.execute(_SQL["forget_removed"], now - _REMEMBER_MS)
            await connection.execute(_SQL["note_removed"], id, now, version)
            return version

        version = await do(self._connections, remove)
        self._changed(version)
        await self._keys.tell()
        return version

    async def credential(self, id: str) -> AgentCredential | None:
        """Return the credential for an agent."""
        for shown, body in await self._connections.rows(_SQL["credential"], id):
            return AgentCredential(_decode_label(shown), self._seals.credentialed(shown, body))
        return None


class _Late(Exception):
    """Another write came first."""


async def _version_of(connection: Connection, id: str) -> int:
    return await connection.fetchval(_SQL["version_of"], id) or 0


async def _next_versions(connection: Connection, count: int = 1) -> int:
    return await connection.fetchval(_SQL["next_versions"], count)


async def _free_name(connection: Connection, wanted: str, id: str) -> str:
    """Return a name that no other agent has: the wanted one, or that with a number after it."""
    name, number = wanted, 1
    while await connection.fetchval(_SQL["is_taken"], name, id):
        number += 1
        name = f"{wanted}-{number}"
    return name


async def _put_address(connection: Connection, id: str, address: AgentAddress) -> None:
    values = (address.owner, address.origin, id, address.url)
    await connection.execute(_SQL["put_address"], *values)
