"""Registered agents in the file: their rows, credentials and addresses, and what changed."""

from collections.abc import Sequence

import apsw
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
from dragoman.stores.sqlite.registry import agent_keys
from dragoman.stores.sqlite.schema import queries, run
from dragoman.stores.sqlite.transactions import StoreTransactions

# Milliseconds for which other processes may not have noticed that an agent was removed.
_REMEMBER_MS = 24 * 3600 * 1000
_SQL = queries("registry/agents.sql")
_decode_label = msgspec.json.Decoder(CredentialLabel).decode


class SQLiteAgents:
    """The agents of a gateway."""

    def __init__(self, store: StoreTransactions) -> None:
        self._store = store

    async def changes(self, after: int) -> AgentRowChanges:
        """Return what changed after a version."""

        def read(connection: apsw.Connection) -> AgentRowChanges:
            # First: what is written meanwhile is read once more, and never missed.
            ((version,),) = run(connection, _SQL["version"])
            if version == after:
                return AgentRowChanges((), (), version)
            agents = [AgentRow(*row) for row in run(connection, _SQL["changed"], (after,))]
            removed = [(id, number) for id, number in run(connection, _SQL["removed"], (after,))]
            return AgentRowChanges(agents, removed, version)

        return await self._store.read_tx(read)

    async def find(self, id: str) -> AgentRow | None:
        """Return an agent as it is stored at this moment."""
        rows = await self._store.read_tx(lambda c: run(c, _SQL["find"], (id,)))
        return AgentRow(*rows[0]) if rows else None

    async def former(self, address: AgentAddress) -> str:
        """Return the id of an agent that was at an address and was removed."""
        rows = await self._store.read_tx(lambda c: run(c, _SQL["former"], address))
        return rows[0][0] if rows else ""

    async def put(
        self,
        row: AgentRow,
        *,
        address: AgentAddress | None = None,
        credential: AgentCredential | UnsetType | None = UNSET,
    ) -> AgentRow | None:
        """Store an agent unless it changed meanwhile."""

        def put(connection: apsw.Connection) -> AgentRow | None:
            found = run(connection, _SQL["version_of"], (row.id,))
            if (found[0][0] if found else 0) != row.version:
                return None
            name = _free_name(connection, row.name, row.id)
            stored = row._replace(name=name, version=_next_version(connection))
            run(connection, _SQL["put"], stored)
            if address is not None:
                _put_address(connection, row.id, address)
            if credential is None:
                run(connection, _SQL["drop_credential"], (row.id,))
            elif not isinstance(credential, UnsetType):
                self._put_credential(connection, credential)
            return stored

        return await self._store.write_tx(put)

    def _put_credential(self, connection: apsw.Connection, credential: AgentCredential) -> None:
        clear = msgspec.json.encode(credential.label)
        body = self._store.seals.credential(connection, clear, credential.secret)
        run(connection, _SQL["put_credential"], (credential.label.agent, clear, body))

    async def put_health(self, rows: Sequence[AgentHealthRow]) -> list[int]:
        """Store the health of agents."""

        def put(connection: apsw.Connection) -> list[int]:
            versions: list[int] = []
            for id, *health in rows:
                versions.append(_next_version(connection))
                run(connection, _SQL["put_health"], (*health, versions[-1], id))
            return versions

        return await self._store.write_tx(put)

    async def put_circuits(self, rows: Sequence[CircuitRow]) -> None:
        """Nothing is kept: the processes are on one machine, and each finds out by itself."""

    async def remove(self, id: str, now: int, address: AgentAddress | None = None) -> int:
        """Remove an agent and its credential, and revoke its keys."""

        def remove(connection: apsw.Connection) -> int:
            if address is not None:
                _put_address(connection, id, address)
            if not run(connection, _SQL["is_referred_to"], {"agent": id})[0][0]:
                run(connection, _SQL["forget_addresses"], (id,))
            version = _next_version(connection)
            agent_keys.revoke_all(connection, id, now)
            run(connection, _SQL["remove"], (id,))
            run(connection, _SQL["drop_credential"], (id,))
            run(connection, _SQL["forget_removed"], (now - _REMEMBER_MS,))
            run(connection, _SQL["note_removed"], (id, now, version))
            return version

        return await self._store.write_tx(remove)

    async def credential(self, id: str) -> AgentCredential | None:
        """Return the credential for an agent."""
        seals = self._store.seals

        def read(connection: apsw.Connection) -> AgentCredential | None:
            for label, body in run(connection, _SQL["credential"], (id,)):
                secret = seals.credentialed(bytes(label), bytes(body))
                return AgentCredential(_decode_label(label), secret)
            return None

        return await self._store.read_tx(read)


def _next_version(connection: apsw.Connection) -> int:
    return run(connection, _SQL["next_version"])[0][0]


def _free_name(connection: apsw.Connection, wanted: str, id: str) -> str:
    """Return a name that no other agent has: the wanted one, or that with a number after it."""
    name, number = wanted, 1
    while run(connection, _SQL["is_taken"], (name, id)):
        number += 1
        name = f"{wanted}-{number}"
    return name


def _put_address(connection: apsw.Connection, id: str, address: AgentAddress) -> None:
    run(connection, _SQL["put_address"], (address.owner, address.origin, id, address.url))
