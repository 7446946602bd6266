"""A change of key: everything that is sealed is sealed anew, while servers use the database.

The first step names the key to seal with from there on, once no transaction is under way that
writes under another. Then the rows follow in small transactions, each readable before and after.
The keys that were there before leave the list last. Wherever it is cut off, both keys open
everything, and doing it again goes on.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dragoman.errors import ConfigError
from dragoman.stores.interface import Sealing
from dragoman.stores.interface.sealing import Rotated
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Addresses, Connection, DatabaseConnections
from dragoman.stores.postgres.schema import check_present
from dragoman.stores.postgres.seals import keys_of, reseal, tables

_SQL = statements("dragoman.stores.postgres", "seals.sql")


async def sealed_with(addresses: Addresses) -> list[bytes]:
    """Return the keys a database is sealed with, the one to seal with first."""
    async with _connected(addresses) as connection:
        return await keys_of(connection)


async def rotate(addresses: Addresses, sealing: Sealing, key: bytes) -> Rotated:
    """Seal everything with a key, then take the others off the list."""
    async with _connected(addresses) as connection:
        if not await connection.fetchval(_SQL["lock_alone"]):
            raise ConfigError("store: another change of this store's key is under way")
        async with connection.transaction():
            await connection.execute(_SQL["lock"])
            await connection.execute(_SQL["retire_keys"])
            await connection.execute(_SQL["name_key"], key)
        values = damaged = 0
        for table in await tables(connection):
            some, others = await reseal(connection, sealing, key, table)
            values += some
            damaged += others
        if not damaged:
            await connection.execute(_SQL["drop_retired_keys"])
        # What was overwritten is in dead rows until VACUUM, and in the log of writes.
        return Rotated(values, damaged, is_cleared=False)


@asynccontextmanager
async def _connected(addresses: Addresses) -> AsyncGenerator[Connection]:
    """Use a session of a database that has the present schema."""
    connections = DatabaseConnections(addresses)
    await connections.open()
    try:
        session = await connections.session()
        try:
            await check_present(session)
            yield session
        finally:
            session.terminate()
    finally:
        await connections.close()
