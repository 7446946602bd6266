"""Whether a database is whole."""

from dragoman.stores.consistency import DATABASE_LOG, Inconsistency, inconsistencies
from dragoman.stores.postgres.connections import Addresses, DatabaseConnections
from dragoman.stores.postgres.schema import check_present


async def inconsistencies_of(addresses: Addresses) -> list[Inconsistency]:
    """Return what in a database should not be, as of one moment."""
    connections = DatabaseConnections(addresses, readers=1)
    await connections.open()
    try:
        await check_present(await connections.writer())
        return await connections.at_one_moment(
            lambda moment: inconsistencies(moment.fetch, DATABASE_LOG)
        )
    finally:
        await connections.close()
