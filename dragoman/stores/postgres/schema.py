"""The schema of the database: numbered migrations, run by one process at a time.

A migration that older releases can live with begins with `-- compatible`. Any other is run only
while no worker of an older release lives; until then the newer process refuses to start, in words.
"""

from typing import NoReturn

from dragoman.errors import ConfigError
from dragoman.stores import named_sql
from dragoman.stores.postgres.connections import Connection, ServerError, plain, state_of

_PACKAGE = "dragoman.stores.postgres"
_SQL = named_sql.statements(_PACKAGE, "schema.sql")
COMPATIBLE = "-- compatible"
_OLDEST_SERVER = 140_000
# What a script may meet in a database of another program, and without rights.
_TAKEN = ("42P07", "42710", "42723")
_FORBIDDEN = "42501"
# What has to be on for a commit to be on disk, and what it would cost to lose it.
_DURABLE = {
    "fsync": "a power cut could damage the database",
    "full_page_writes": "a power cut could damage the database",
    "synchronous_commit": "a crash could lose what was acknowledged",
}


def migrations() -> tuple[tuple[int, str], ...]:
    """Return the migrations in order."""
    return named_sql.migrations(_PACKAGE)


def latest() -> int:
    """Return the number of the last migration of this release."""
    return migrations()[-1][0]


async def check_server(connection: Connection) -> None:
    """Refuse a server that would not keep what it acknowledges; raises `ConfigError`."""
    for name, harm in _DURABLE.items():
        if await connection.fetchval("SELECT current_setting($1)", name) == "off":
            raise ConfigError(f"store: PostgreSQL has {name} = off: {harm}; switch it on")
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise ConfigError("store: this PostgreSQL is a standby; give the address of the primary")
    if await connection.fetchval("SHOW transaction_read_only") == "on":
        raise ConfigError(
            "store: this user or database is set to read only (default_transaction_read_only); "
            "switch that off: ALTER ROLE … RESET default_transaction_read_only"
        )
    if await connection.fetchval("SELECT current_schema()") is None:
        raise ConfigError(
            "store: no schema of this user's search_path exists in the database; make one: CREATE "
            "SCHEMA …"
        )
    if await connection.fetchval("SHOW server_encoding") != "UTF8":
        raise ConfigError("store: the database is not in UTF8; make one: CREATE DATABASE … UTF8")
    number = int(await connection.fetchval("SHOW server_version_num"))
    if number < _OLDEST_SERVER:
        version = await connection.fetchval("SHOW server_version")
        raise ConfigError(
            f"store: this is PostgreSQL {version}; at least {_OLDEST_SERVER // 10_000} is needed"
        )


async def migrate(connection: Connection, *, is_copying: bool = False) -> None:
    """Bring the database to the present schema; raises `ConfigError` where that cannot be.

    Half a copy of another store is refused, but for who goes on with it (`is_copying`)."""
    async with connection.transaction():
        # Another process that migrates is waited for.
        await connection.execute(_SQL["lock"])
        if not is_copying and await connection.fetchval("SELECT to_regclass('copying')"):
            raise ConfigError(
                "store: a copy into this database was cut off; finish it: dragoman store copy"
            )
        await _run(connection, _SQL["make_versions"])
        row = await connection.fetchrow(_SQL["versions"])
        done, oldest = row or (0, 0)
        if oldest > latest():
            _refuse_newer(done)
        wanted = [(number, script) for number, script in migrations() if number > done]
        if not wanted:
            return
        breaking = [number for number, script in wanted if not script.startswith(COMPATIBLE)]
        if done and breaking and (living := await _living(connection)):
            raise ConfigError(
                f"store: the database has schema {done}, this release needs {latest()}, and "
                f"{living} process(es) of an older release still use it; stop them first"
            )
        if done and breaking:
            # One of them that is frozen must not wake up to write.
            await connection.execute(_SQL["dismiss_workers"])
        for _, script in wanted:
            await _run(connection, script)
        await connection.execute(_SQL["forget_versions"])
        await connection.execute(_SQL["add_versions"], latest(), max([oldest, *breaking]))


async def _living(connection: Connection) -> int:
    """Return how many workers may write; one that is dead was perhaps not marked so by any."""
    return await connection.fetchval(_SQL["living"])


async def _run(connection: Connection, script: str) -> None:
    """Run a script; say in words what keeps it from running."""
    try:
        await connection.execute(script)
    except ServerError as error:
        code = state_of(error)
        if code in _TAKEN:
            raise ConfigError(
                f"store: another program uses this database ({plain(error)}); give Dragoman a "
                "database of its own"
            ) from None
        if code == _FORBIDDEN:
            raise ConfigError(
                f"store: the user may not make tables ({plain(error)}); "
                "let it own the database: ALTER DATABASE … OWNER TO …"
            ) from None
        raise


async def check_present(connection: Connection) -> None:
    """Refuse a database whose tables are not what this release reads; raises `ConfigError`."""
    if await connection.fetchval("SELECT to_regclass('dragoman_schema') IS NULL"):
        raise ConfigError("store: this database has no tasks of ours; start a server on it once")
    version, oldest = await connection.fetchrow(_SQL["versions"])
    if version < latest():
        raise ConfigError(
            f"store: the database has schema {version}, this release needs {latest()}; dragoman "
            "store migrate brings it to that, as the next server to start does",
            remedy="dragoman store migrate --store <address>",
        )
    if oldest > latest():
        _refuse_newer(version)


async def check_same(connection: Connection) -> None:
    """Refuse a database that may have more than this release knows of; raises `ConfigError`."""
    await check_present(connection)
    version, _ = await connection.fetchrow(_SQL["versions"])
    if version > latest():
        _refuse_newer(version)


def _refuse_newer(version: int) -> NoReturn:
    raise ConfigError(
        f"store: a newer release made this database (schema {version}, this release knows "
        f"{latest()}); run a release that knows it"
    )
