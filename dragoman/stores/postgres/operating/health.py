"""Facts about the database for an operator, judged elsewhere: how it is set, and how full it is."""

from typing import NamedTuple

from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Addresses, DatabaseConnections

_SQL = statements("dragoman.stores.postgres.operating", "health.sql")
# The least a commit needs to be on disk, and what a standby needs to have it.
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
# What would break off a commit that waits for a standby: then it is on the primary alone.
TIMEOUTS = ("statement_timeout", "transaction_timeout", "idle_session_timeout")


class Standby(NamedTuple):
    """A server that copies this one."""

    name: str
    # Whether commits wait for it: `sync`, `quorum`, `potential` or `async`; empty: not to be seen.
    kind: str
    # Bytes that it has not written yet; None: not to be seen.
    behind: int | None


class DatabaseFacts(NamedTuple):
    """How a database is."""

    version: str
    schema: int
    size: int
    # By name: on, off, or another word.
    settings: dict[str, str]
    is_standby: bool
    standbys: list[Standby]
    # Whether commits wait for a standby.
    waits_for_standby: bool
    # Whether we may see what connections of other users do, and standbys.
    sees_others: bool
    connections: int
    most_connections: int
    # Commits that wait for a standby now, and milliseconds of the one that waits longest.
    waiting_commits: int
    waiting_ms: int
    # Dead rows in the tables that change most, for each living one, and the table.
    dead_share: float
    dead_table: str
    # Transactions until the server must stop to renumber them all.
    wraparound: int
    # Seconds of the oldest transaction that keeps rows from being cleaned up.
    oldest_transaction: int
    partitions: int
    # Bytes of write-ahead log that slots keep.
    kept_log: int
    # Transfers of the ledger that are not sealed, and milliseconds since the oldest was made.
    unsealed: int
    unsealed_ms: int

    @property
    def lacks_standby(self) -> bool:
        """Whether commits wait for a standby although there is none that answers."""
        answers = any(one.kind in ("sync", "quorum", "") for one in self.standbys)
        return self.waits_for_standby and not answers

    @property
    def behind(self) -> int | None:
        """How many bytes the last standby has not written yet; None: that is not to be seen."""
        known = [one.behind for one in self.standbys if one.behind is not None]
        return max(known, default=0 if self.sees_others else None)


async def database_facts(addresses: Addresses) -> DatabaseFacts:
    """Ask the server; raises `ConfigError` where it cannot be reached."""
    connections = DatabaseConnections(addresses, readers=1)
    await connections.open()
    try:
        settings = {
            name: value
            for name, value in await connections.rows(_SQL["settings"], [*_SETTINGS, *TIMEOUTS])
        }
        server = await connections.rows(_SQL["server"])
        ((version, is_standby, waits_for_standby, used, most, sees_others),) = server
        ((size, wraparound),) = await connections.rows(_SQL["database"])
        standbys = [Standby(*row) for row in await connections.rows(_SQL["standbys"])]
        ((waiting, waiting_ms, oldest),) = await connections.rows(_SQL["waits"])
        dead = await connections.rows(_SQL["dead_rows"])
        ((kept,),) = await connections.rows(_SQL["kept_log"])
        ((partitions,),) = await connections.rows(_SQL["partitions"])
        schema = await _schema(connections)
        unsealed, unsealed_ms = (0, 0)
        if schema:
            ((unsealed, unsealed_ms),) = await connections.rows(_SQL["unsealed"])
    finally:
        await connections.close()
    return DatabaseFacts(
        version=version,
        schema=schema,
        size=size,
        settings=settings,
        is_standby=is_standby,
        standbys=standbys,
        waits_for_standby=waits_for_standby,
        sees_others=sees_others,
        connections=used,
        most_connections=most,
        waiting_commits=waiting,
        waiting_ms=waiting_ms,
        dead_share=dead[0][1] if dead else 0.0,
        dead_table=dead[0][0] if dead else "",
        wraparound=wraparound,
        oldest_transaction=oldest,
        partitions=partitions,
        kept_log=kept,
        unsealed=unsealed,
        unsealed_ms=unsealed_ms,
    )


async def _schema(connections: DatabaseConnections) -> int:
    """Return the number of the last migration; 0: the database is not ours yet."""
    ((is_there,),) = await connections.rows(_SQL["has_schema"])
    if not is_there:
        return 0
    rows = await connections.rows(_SQL["schema"])
    return rows[0][0] if rows else 0
