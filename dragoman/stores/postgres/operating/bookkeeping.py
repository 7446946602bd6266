"""What commands use of a gateway's state in a database: ledger, trust, keys of agents, and the
store's secret. They are no workers."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.interface import Sealing
from dragoman.stores.postgres.connections import Addresses, DatabaseConnections
from dragoman.stores.postgres.ledger.accounting import PostgresAccounting
from dragoman.stores.postgres.registry.agent_keys import PostgresAgentKeys
from dragoman.stores.postgres.schema import check_present
from dragoman.stores.postgres.scopes import Scopes
from dragoman.stores.postgres.seals import Seals


@asynccontextmanager
async def accounting_database(addresses: Addresses) -> AsyncGenerator[PostgresAccounting]:
    """Open ledger and trust, also while gateways use them."""
    async with _connected(addresses) as connections:
        yield PostgresAccounting(connections, Scopes(connections))


async def keys_in_database(addresses: Addresses) -> Sequence[AgentKeyRow]:
    """Return the keys of agents, in the order they were made."""
    async with _connected(addresses) as connections:
        keys = PostgresAgentKeys(connections, _unheard)
        await keys.refresh()
        return sorted(keys.changed(0), key=lambda row: (row.made_at, row.id))


async def revoke_in_database(addresses: Addresses, id: str, now: int) -> None:
    """End a key of an agent; gateways find out within a second."""
    async with _connected(addresses) as connections:
        await PostgresAgentKeys(connections, _unheard).revoke(id, now)


async def secret_of(addresses: Addresses, sealing: Sealing) -> bytes:
    """Return the store's secret; raises `ConfigError`."""
    seals = Seals(sealing)
    async with _connected(addresses) as connections:
        try:
            await seals.prepare(await connections.writer())
            return await seals.secret(connections)
        except StoreUnavailable as error:
            raise ConfigError(str(error)) from None


def _unheard(version: int) -> None:
    """Ring for no other process: gateways look by themselves."""


@asynccontextmanager
async def _connected(addresses: Addresses) -> AsyncGenerator[DatabaseConnections]:
    connections = DatabaseConnections(addresses, readers=2)
    await connections.open()
    try:
        await check_present(await connections.writer())
        yield connections
    finally:
        await connections.close()
