"""A PostgreSQL database as one side of a copy."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

import msgspec

from dragoman.errors import StoreRefused
from dragoman.stores.copying.tables import TABLES, Key, Marks, Place, Row, Table
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import (
    LOST,
    Addresses,
    Connection,
    DatabaseConnections,
    ServerError,
    plain,
)
from dragoman.stores.postgres.operating.bookkeeping import accounting_database
from dragoman.stores.postgres.schema import check_same, check_server, migrate
from dragoman.stores.postgres.writer import BLOCK

_decode_place = msgspec.msgpack.Decoder(Place).decode
_SQL = statements("dragoman.stores.copying", "database.sql")
_STATE = ("tasks", "transfers", "trust_events", "agents_version", "agent_keys_version", "secrets")
# Tables that servers fill while they serve, and neither the schema nor a first start.
_USED = (
    *("tasks", "scopes", "keys", "orders", "agents", "agents_removed", "agent_keys"),
    *("workflows", "triggers", "rollouts"),
)
# Tables whose rows the database numbers.
_NUMBERED = (
    *("scopes", "pushes", "notes", "accounts", "agent_keys", "workflows", "triggers", "rollouts"),
)


class DatabaseReader:
    """Reads a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def living(self) -> int:
        """Return how many processes serve from it."""
        return await self._connection.fetchval(_SQL["living"])

    async def identity(self) -> str:
        """Return what tells this store, as it is now, from others and from itself later."""
        fetch = self._connection.fetch
        found = [[list(row) for row in await fetch(_SQL[name])] for name in _STATE]
        return sha256(msgspec.json.encode(found)).hexdigest()

    async def marks(self) -> Marks:
        """Return what is no row of a table."""
        row = await self._connection.fetchrow(_SQL["last_block"])
        block, is_used = row
        # Whole blocks: a worker may have had numbers that it gave to no task.
        task = (block + 1) * BLOCK if is_used else 0
        push, note = [await self._last(name) for name in ("pushes", "notes")]
        agents = await self._connection.fetchval(_SQL["agents_version"])
        keys = await self._connection.fetchval(_SQL["agent_keys_version"])
        return Marks(task, push, note, agents, keys)

    async def _last(self, table: str) -> int:
        sequence = await self._connection.fetchval(_SQL["sequence"], table)
        return await self._connection.fetchval(_SQL["last"].format(sequence=sequence))

    async def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        sql = _SQL["count"].format(table=table.name, where=table.where)
        return await self._connection.fetchval(sql)

    async def rows(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return the rows that follow a key."""
        columns = ", ".join(
            f"{name}::int" if name in table.switches else name for name in table.columns
        )
        key = ", ".join(table.key)
        follows, values = "true", []
        if after is not None:
            places = ", ".join(f"${n}" for n in range(1, len(table.key) + 1))
            follows = f"({key}) > ({places})"
            values = [
                bool(value) if name in table.switches else value
                for name, value in zip(table.key, after, strict=True)
            ]
        sql = _SQL["rows"].format(
            columns=columns,
            table=table.name,
            where=f"{table.where} AND {follows}",
            key=key,
            most=table.at_once,
        )
        found = await self._connection.fetch(sql, *values)
        return [tuple(row) for row in found]


class DatabaseWriter(DatabaseReader):
    """Writes a database that no server starts on until it is finished."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # Blocks of task numbers that have a place for their events.
        self._placed: set[int] = set()

    async def place(self) -> Place | None:
        """Return how far an earlier copy came."""
        if not await self._connection.fetchval(_SQL["is_begun"]):
            return None
        return _decode_place(await self._connection.fetchval(_SQL["place"]))

    async def is_empty(self) -> bool:
        """Tell whether no server was used on it yet."""
        for name in _USED:
            if await self._connection.fetchval(_SQL["has_rows"].format(table=name)):
                return False
        return not await self.living()

    async def begin(self, place: Place) -> None:
        """Empty the tables, and say that a copy is under way."""
        async with self._connection.transaction():
            names = ", ".join(table.name for table in TABLES)
            await self._connection.execute(_SQL["empty"].format(tables=names))
            await self._connection.execute(_SQL["make_place"])
            await self._connection.execute(_SQL["forget_place"])
            await self._connection.execute(_SQL["add_place"], msgspec.msgpack.encode(place))

    async def write(self, table: Table, rows: Sequence[Row], place: Place) -> None:
        """Write rows, and how far the copy is with them; raises `StoreRefused`."""
        try:
            async with self._connection.transaction():
                if rows:
                    await self._insert(table, rows)
                await self._connection.execute(_SQL["set_place"], msgspec.msgpack.encode(place))
        except LOST as error:
            raise StoreRefused(f"the database was lost ({plain(error)}); go on later") from error
        except (ServerError, ValueError) as error:
            between = f"{table.key_of(rows[0])} and {table.key_of(rows[-1])}" if rows else "its end"
            raise StoreRefused(
                f"{table.name}: a row between {between} is refused: {plain(error)}"
            ) from error

    async def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        if table.name in ("events", "snapshots"):
            await self._make_places({row[0] // BLOCK for row in rows})
        switches = [n for n, name in enumerate(table.columns) if name in table.switches]
        fixed = tuple(value for _, value in table.fixed)
        await self._connection.copy_records_to_table(
            table.name,
            records=[(*_switched(row, switches), *fixed) for row in rows],
            columns=[*table.columns, *(name for name, _ in table.fixed)],
        )

    async def _make_places(self, blocks: set[int]) -> None:
        """Make a place for the events of blocks, as workers do."""
        for block in sorted(blocks - self._placed):
            await self._connection.execute(_SQL["make_partition"], block * BLOCK)
            self._placed.add(block)

    async def finish(self, marks: Marks) -> None:
        """Make it a store that can be served."""
        run = self._connection.execute
        async with self._connection.transaction():
            await run(_SQL["forget_counts"])
            await run(_SQL["count_tasks"])
            await run(_SQL["set_agents_version"], marks.agents_version)
            await run(_SQL["set_agent_keys_version"], marks.agent_keys_version)
            # The words of what was copied are indexed anew.
            await run(_SQL["forget_unindexed"])
            await run(_SQL["set_block"], marks.task // BLOCK + 1)
            least = {"pushes": marks.push, "notes": marks.note}
            for name in _NUMBERED:
                await run(_SQL["set_last"].format(table=name), name, least.get(name, 0))
            await run(_SQL["drop_place"])
        # Plans of the first readers are as good as later ones.
        await run("ANALYZE")


def _switched(row: Row, switches: Sequence[int]) -> Row:
    if not switches:
        return row
    values = list(row)
    for n in switches:
        values[n] = bool(values[n])
    return tuple(values)


@asynccontextmanager
async def database_reader(addresses: Addresses) -> AsyncGenerator[DatabaseReader]:
    """Read a database as of one moment; raises `ConfigError`."""
    async with accounting_database(addresses) as accounting:
        # In a file there are none that have no number.
        await accounting.sealer.catch_up()
    async with _session(addresses) as session:
        await check_same(session)
        async with session.transaction(isolation="repeatable_read", readonly=True):
            yield DatabaseReader(session)


@asynccontextmanager
async def database_writer(addresses: Addresses) -> AsyncGenerator[DatabaseWriter]:
    """Write a database, made ready if it is empty; raises `ConfigError`."""
    async with _session(addresses) as session:
        await check_server(session)
        await migrate(session, is_copying=True)
        yield DatabaseWriter(session)


@asynccontextmanager
async def _session(addresses: Addresses) -> AsyncGenerator[Connection]:
    """Use a connection that no pooler shares."""
    connections = DatabaseConnections(addresses, readers=1)
    await connections.open()
    try:
        session = await connections.session()
        try:
            yield session
        finally:
            session.terminate()
    finally:
        await connections.close()
