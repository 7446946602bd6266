"""The file's schema: numbered migrations, and the named queries of `queries.sql`."""

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, cast

import apsw

from dragoman.errors import ConfigError
from dragoman.stores.sqlite.opening import explaining, later, of_another

# Marks the file as ours ("drag"), so that another program's database is not taken for a store.
APPLICATION_ID = 0x64726167
_PACKAGE = "dragoman.stores.sqlite"
_LEVELS = {"off": 0, "normal": 1, "full": 2}
_PATIENCE_MS = 10_000


def queries() -> dict[str, str]:
    """Return the statements of `queries.sql` by name."""
    text = resources.files(_PACKAGE).joinpath("queries.sql").read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(blocks[1::2], (block.strip() for block in blocks[2::2]), strict=True))


def migrations() -> list[tuple[int, str]]:
    """Return the migrations in order."""
    folder = resources.files(_PACKAGE).joinpath("migrations")
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        (int(name.split("_")[0]), folder.joinpath(name).read_text(encoding="utf-8"))
        for name in scripts
    ]


# Rows per statement: few statements per group, few texts for SQLite to keep compiled.
_STRIDES = (64, 16, 4, 1)
# What a row holds is the schema's affair; its readers give it types.
Row = tuple[Any, ...]


def run(
    connection: apsw.Connection, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[Row]:
    """Run a statement and return all its rows. The one door to apsw, whose own types say too
    little for a strict checker."""
    execute = cast("Callable[..., Any]", connection.execute)  # pyright: ignore[reportUnknownMemberType]
    return execute(sql, values).fetchall()


def insert(connection: apsw.Connection, into: str, rows: Sequence[Row]) -> None:
    """Insert rows of one width, many with a statement."""
    place = 0
    for stride in _STRIDES:
        while len(rows) - place >= stride:
            chunk = rows[place : place + stride]
            values = "(" + ",".join("?" * len(chunk[0])) + ")"
            statement = f"{into} VALUES {','.join([values] * stride)}"
            run(connection, statement, [column for row in chunk for column in row])
            place += stride


def check(path: str) -> None:
    """Refuse a file that is not ours, before anything in it is changed."""
    with explaining(path):
        connection = apsw.Connection(path)
        try:
            connection.set_busy_timeout(_PATIENCE_MS)
            # One moment for all three: another process may be making the file.
            run(connection, "BEGIN")
            ((done,),) = run(connection, "PRAGMA user_version")
            ((marked,),) = run(connection, "PRAGMA application_id")
            ((tables,),) = run(connection, "SELECT count(*) FROM sqlite_schema")
            run(connection, "COMMIT")
        finally:
            connection.close()
    if marked != APPLICATION_ID and tables:
        raise ConfigError(of_another(path))
    if done > migrations()[-1][0]:
        raise ConfigError(later(path, done))


def rows_of(
    connection: apsw.Connection, sql: str, values: Sequence[Any]
) -> Generator[Row, None, None]:
    """Run a statement and yield its rows as they are asked for; close it to stop early."""
    execute = cast("Callable[..., Any]", connection.execute)  # pyright: ignore[reportUnknownMemberType]
    cursor = execute(sql, values)
    try:
        yield from cursor
    finally:
        cursor.close()


def connect(path: str, synchronous: str = "full") -> apsw.Connection:
    """Open a connection with the settings every one of ours has."""
    with explaining(path):
        connection = apsw.Connection(path)
        connection.set_busy_timeout(_PATIENCE_MS)
        if _use_wal(connection) != [("wal",)]:
            raise ConfigError(f"{path}: the file system cannot hold a write-ahead log")
        # FULL: a commit is on disk before anyone hears of it. NORMAL loses commits on power cuts.
        run(connection, f"PRAGMA synchronous = {synchronous}")
        if run(connection, "PRAGMA synchronous") != [(_LEVELS[synchronous],)]:
            raise ConfigError(f"{path}: SQLite does not take synchronous = {synchronous}")
        run(connection, "PRAGMA cache_size = -1024")
        # Plans that do not depend on values: otherwise each new value compiles the statement again.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def close(connection: apsw.Connection, *, keeps_log: bool = False) -> None:
    """Close a connection. `keeps_log`: should it be the last, it neither brings its log into the
    file nor deletes what has the log's name."""
    if keeps_log:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()


def _use_wal(connection: apsw.Connection) -> list[Row]:
    """Ask for a write-ahead log. While another process does so SQLite refuses without waiting."""
    until = time.monotonic() + _PATIENCE_MS / 1000
    while True:
        try:
            return run(connection, "PRAGMA journal_mode = wal")
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


def migrate(connection: apsw.Connection) -> None:
    """Bring the file to the present schema, one transaction per step."""
    for number, script in migrations():
        with transaction(connection):
            # Looked up within: another process may be at the same step.
            ((done,),) = run(connection, "PRAGMA user_version")
            if number > done:
                run(connection, script)
                run(connection, f"PRAGMA application_id = {APPLICATION_ID}")
                run(connection, f"PRAGMA user_version = {number}")


@contextmanager
def transaction(connection: apsw.Connection) -> Generator[None]:
    """Do what follows whole or not at all, and nobody else in between."""
    run(connection, "BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        run(connection, "ROLLBACK")
        raise
    run(connection, "COMMIT")
