"""The file's schema: numbered migrations, and the named queries of `queries.sql`."""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw

from dragoman.errors import ConfigError
from dragoman.stores import named_sql
from dragoman.stores.named_sql import statements
from dragoman.stores.sqlite.files.opening import explaining, later, of_another

# Marks the file as ours ("drag"), so that another program's database is not taken for a store.
APPLICATION_ID = 0x64726167
_PACKAGE = "dragoman.stores.sqlite"
_LEVELS = {"off": 0, "normal": 1, "full": 2}
_PATIENCE_MS = 10_000
# What a tool that reads a file meets: any trouble with it, and the file being damaged.
FILE_ERRORS = (apsw.Error,)
DAMAGE = (apsw.CorruptError,)


def queries(file: str = "queries.sql") -> dict[str, str]:
    """Return the statements of a file of named queries, which is named from this folder."""
    return statements(_PACKAGE, file)


def library_versions() -> tuple[str, str]:
    """Return the versions of apsw and of SQLite."""
    return apsw.apsw_version(), apsw.sqlite_lib_version()


def durability_of(path: str) -> tuple[int, str]:
    """Return the synchronous level and the journal mode that our connections to a file get."""
    with contextlib.closing(connect(path)) as connection:
        ((level,),) = run(connection, "PRAGMA synchronous")
        ((journal,),) = run(connection, "PRAGMA journal_mode")
    return int(level), str(journal)


def migrations() -> Sequence[tuple[int, str]]:
    """Return the migrations in order."""
    return named_sql.migrations(_PACKAGE)


# What a row holds is the schema's affair; its readers give it types.
Row = tuple[Any, ...]


Execute = Callable[..., Any]


def executor(connection: apsw.Connection) -> Execute:
    """Return a connection's `execute`, whose own types say too little for a strict checker."""
    return cast(Execute, connection.execute)  # pyright: ignore[reportUnknownMemberType]


def run(
    connection: apsw.Connection, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[Row]:
    """Run a statement and return all its rows."""
    return executor(connection)(sql, values).fetchall()


def set_pragma(connection: apsw.Connection, name: str, value: str | int) -> None:
    """Set an option of a connection or a file."""
    cast("Callable[..., Any]", connection.pragma)(name, value)  # pyright: ignore[reportUnknownMemberType]


def inserter(connection: apsw.Connection) -> Execute:
    """Return what runs a statement for each of several rows, in one call."""
    return cast(Execute, connection.executemany)  # pyright: ignore[reportUnknownMemberType]


def create(path: Path) -> None:
    """Make an empty file that this user alone may read; raises FileExistsError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check(path: str) -> None:
    """Refuse a file that is not ours, before anything in it is changed."""
    with explaining(path):
        connection = apsw.Connection(path)
        try:
            connection.set_busy_timeout(_PATIENCE_MS)
            # One moment for all three: another process may be making the file.
            with one_moment(connection):
                ((done,),) = run(connection, "PRAGMA user_version")
                ((marked,),) = run(connection, "PRAGMA application_id")
                ((tables,),) = run(connection, queries()["tables"])
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
    cursor = executor(connection)(sql, values)
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
        # FULL: a commit is on disk before it is acknowledged. NORMAL loses commits on power cuts.
        set_pragma(connection, "synchronous", synchronous)
        if run(connection, "PRAGMA synchronous") != [(_LEVELS[synchronous],)]:
            raise ConfigError(f"{path}: SQLite does not take synchronous = {synchronous}")
        # KiB. A stream of a few megabytes fills it, and then it is what the process has grown by. A
        # larger one saves the writer little: new keys go anywhere in their index. With 20,000 tasks
        # a send reads 2.6 pages, with 1 MiB 2.1, and with 2 MiB no fewer.
        run(connection, "PRAGMA cache_size = -768")
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
            # No event tells that another process let go of the file; this runs at opening alone.
            time.sleep(0.005)


def migrate(connection: apsw.Connection) -> None:
    """Bring the file to the present schema: a new one at once, others one transaction per step."""
    # The version is looked up before the wait for others' writes, and within: another process may
    # be at the same step.
    if _version(connection) == 0:
        with transaction(connection):
            if _version(connection) == 0:
                for number, script in migrations():
                    _step(connection, number, script)
    for number, script in migrations():
        if number > _version(connection):
            with transaction(connection):
                if number > _version(connection):
                    _step(connection, number, script)


def _version(connection: apsw.Connection) -> int:
    return run(connection, "PRAGMA user_version")[0][0]


def _step(connection: apsw.Connection, number: int, script: str) -> None:
    run(connection, script)
    set_pragma(connection, "application_id", APPLICATION_ID)
    set_pragma(connection, "user_version", number)


@contextmanager
def one_moment(connection: apsw.Connection) -> Generator[None]:
    """Have all reads within be of the same moment."""
    run(connection, "BEGIN")
    try:
        yield
    finally:
        run(connection, "COMMIT")


@contextmanager
def transaction(connection: apsw.Connection) -> Generator[None]:
    """Do what follows whole or not at all, with no other write in between."""
    run(connection, "BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        run(connection, "ROLLBACK")
        raise
    run(connection, "COMMIT")
