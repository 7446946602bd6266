"""Keys of agents in the file.

The functions work on a connection inside a transaction of their caller: the removal of an agent
revokes its keys in the same one, and the command line works on a file without a store.
"""

from collections.abc import Sequence
from pathlib import Path

import apsw

from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.interface.agent_keys import REMEMBER_MS, KeyStored
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import connect, queries, run, transaction
from dragoman.stores.sqlite.transactions import StoreTransactions

_SQL = queries("registry/agent_keys.sql")
# The first schema with keys of agents.
_FIRST_SCHEMA = 11


class SQLiteAgentKeys:
    """The keys of a gateway's agents."""

    def __init__(self, store: StoreTransactions) -> None:
        self._store = store

    def version(self) -> int:
        """Return how often keys have changed."""
        return self._store.read_now(lambda c: run(c, _SQL["version"])[0][0])

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that were made or ended after a version."""
        return self._store.read_now(lambda c: _rows(c, "changed", (after,)))

    async def refresh(self) -> None:
        """Nothing is remembered: every look is at the file."""

    async def of_agent(self, agent: str) -> Sequence[AgentKeyRow]:
        """Return the keys of an agent, in the order they were made."""
        return await self._store.read_tx(lambda c: _rows(c, "of_agent", (agent,)))

    async def put(self, row: AgentKeyRow, *, most: int) -> KeyStored:
        """Store a key, unless its agent was removed or has enough."""

        def put(connection: apsw.Connection) -> KeyStored:
            if not run(connection, _SQL["agent_exists"], (row.agent,)):
                return "no_agent"
            run(connection, _SQL["forget"], (row.made_at - REMEMBER_MS,))
            ((count,),) = run(connection, _SQL["count_valid"], (row.agent, row.made_at))
            if count >= most:
                return "full"
            run(connection, _SQL["put"], (*row, _next_version(connection)))
            return "stored"

        return await self._store.write_tx(put)

    async def revoke(self, id: str, now: int) -> bool:
        """End a key; return whether it was not revoked before."""
        return await self._store.write_tx(lambda c: revoke(c, id, now))


def keys_in_file(path: Path) -> Sequence[AgentKeyRow]:
    """Return the keys in a store's file, in the order they were made; none if it is older."""
    connection = open_to_read(path)
    try:
        ((schema,),) = run(connection, "PRAGMA user_version")
        return every(connection) if schema >= _FIRST_SCHEMA else []
    finally:
        connection.close()


def revoke_in_file(path: Path, id: str, now: int) -> None:
    """End a key in a store's file, also while a gateway works on it."""
    connection = connect(str(path))
    try:
        with transaction(connection):
            revoke(connection, id, now)
    finally:
        connection.close()


def every(connection: apsw.Connection) -> Sequence[AgentKeyRow]:
    """Return all keys, in the order they were made."""
    return _rows(connection, "all")


def revoke(connection: apsw.Connection, id: str, now: int) -> bool:
    """End a key; return whether it was not revoked before."""
    return bool(run(connection, _SQL["revoke"], (now, _next_version(connection), id)))


def revoke_all(connection: apsw.Connection, agent: str, now: int) -> None:
    """End the keys of an agent."""
    run(connection, _SQL["revoke_all"], (now, _next_version(connection), agent))


def _rows(
    connection: apsw.Connection, name: str, values: tuple[object, ...] = ()
) -> list[AgentKeyRow]:
    return [AgentKeyRow(*row) for row in run(connection, _SQL[name], values)]


def _next_version(connection: apsw.Connection) -> int:
    return run(connection, _SQL["next_version"])[0][0]
