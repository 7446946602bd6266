"""A SQLite file as one side of a copy. Nothing is waited for: a copy has the file to itself."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec

from dragoman.errors import ConfigError, StoreRefused
from dragoman.stores.copying.tables import TABLES, Key, Marks, Place, Row, Table
from dragoman.stores.named_sql import statements
from dragoman.stores.sqlite.files.generations import renew_generation
from dragoman.stores.sqlite.inspection import Inspection, check_schema, open_to_read
from dragoman.stores.sqlite.schema import (
    connect,
    inserter,
    migrate,
    run,
    transaction,
)
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS

# How what is under way is called until it is a store.
_PART = ".copying"
_decode_place = msgspec.msgpack.Decoder(Place).decode
_SQL = statements("dragoman.stores.copying", "file.sql")
_STATE = ("tasks", "transfers", "trust_events", "agents_version", "agent_keys_version", "secrets")


class FileReader:
    """Reads a file."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    async def living(self) -> int:
        """Return how many processes serve from it."""
        with_others = open_to_read(self._path)
        try:
            workers = await Inspection(with_others, self._path, 0).workers()
        finally:
            with_others.close()
        return sum(worker.state != "dead" for worker in workers)

    async def identity(self) -> str:
        """Return what tells this store, as it is now, from others and from itself later."""
        found = [run(self._connection, _SQL[name]) for name in _STATE]
        return sha256(msgspec.json.encode(found)).hexdigest()

    async def marks(self) -> Marks:
        """Return what is no row of a table."""
        sequences = dict(run(self._connection, _SQL["sequences"]))
        ((task,),) = run(self._connection, _SQL["last_task"])
        ((agents,),) = run(self._connection, _SQL["agents_version"])
        ((keys,),) = run(self._connection, _SQL["agent_keys_version"])
        push, note = (int(sequences.get(name, 0)) for name in ("pushes", "notes"))
        return Marks(task, push, note, agents, keys)

    async def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        sql = _reading("count", table, where=table.where)
        return int(run(self._connection, sql)[0][0])

    async def rows(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return the rows that follow a key."""
        if table.name == "events":
            return self._events(table, after)
        key = ", ".join(table.key)
        follows, values = "true", ()
        if after is not None:
            marks = ", ".join("?" * len(table.key))
            follows, values = f"({key}) > ({marks})", tuple(after)
        where = f"{table.where} AND {follows}"
        sql = _reading("rows", table, where=where, key=key, most=table.at_once)
        return run(self._connection, sql, values)

    def _events(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return rows of events, whose key is one number in a file."""
        place = -1 if after is None else after[0] << SEQ_BITS | after[1]
        return run(self._connection, _SQL["events"], (SEQ_BITS, MAX_SEQ, place, table.at_once))


class FileWriter(FileReader):
    """Writes a file that has another name until it is finished."""

    def __init__(self, connection: apsw.Connection, part: Path, path: Path) -> None:
        super().__init__(connection, part)
        self._target = path

    async def living(self) -> int:
        """Return 0: no server starts on half a copy."""
        return 0

    async def place(self) -> Place | None:
        """Return how far an earlier copy came."""
        if not run(self._connection, _SQL["is_begun"]):
            return None
        return _decode_place(run(self._connection, _SQL["place"])[0][0])

    async def is_empty(self) -> bool:
        """Tell whether there is nothing: a file of the target's own name is never touched."""
        return not self._target.exists()

    async def begin(self, place: Place) -> None:
        """Empty the file, and say that a copy is under way."""
        connection = self._connection
        with transaction(connection):
            # Transfers are final, which half a copy is not.
            triggers = run(connection, _SQL["triggers"])
            for name, _ in triggers:
                run(connection, _SQL["drop_trigger"].format(name=name))
            for table in TABLES:
                run(connection, _SQL["empty"].format(table=table.file_name))
            for _, sql in triggers:
                run(connection, sql)
            run(connection, _SQL["make_place"])
            run(connection, _SQL["forget_place"])
            run(connection, _SQL["add_place"], (msgspec.msgpack.encode(place),))

    async def write(self, table: Table, rows: Sequence[Row], place: Place) -> None:
        """Write rows, and how far the copy is with them."""
        with transaction(self._connection):
            if rows:
                self._insert(table, rows)
            run(self._connection, _SQL["set_place"], (msgspec.msgpack.encode(place),))

    def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        insert = inserter(self._connection)
        if table.name == "events":
            found = [(task << SEQ_BITS | last, *rest) for task, last, *rest in rows]
            insert(_SQL["add_events"], found)
            return
        names = [*table.columns, *(name for name, _ in table.fixed)]
        fixed = tuple(value for _, value in table.fixed)
        sql = _SQL["add_rows"].format(
            table=table.file_name, columns=", ".join(names), values=", ".join("?" * len(names))
        )
        insert(sql, [(*row, *fixed) for row in rows])

    async def finish(self, marks: Marks) -> None:
        """Make it a store that can be served, under its own name."""
        connection = self._connection
        with transaction(connection):
            run(connection, _SQL["forget_counts"])
            run(connection, _SQL["count_tasks"])
            agents, keys = marks.agents_version, marks.agent_keys_version
            run(connection, _SQL["set_agents_version"], (agents,))
            run(connection, _SQL["set_agent_keys_version"], (keys,))
            run(connection, _SQL["set_last_task"], (marks.task,))
            for name, last in (("pushes", marks.push), ("notes", marks.note)):
                run(connection, _SQL["forget_sequence"], (name,))
                run(connection, _SQL["add_sequence"], (name, last))
            run(connection, _SQL["drop_place"])
            renew_generation(connection)
        found = [str(line) for (line,) in run(connection, "PRAGMA integrity_check(5)")]
        if found != ["ok"]:
            raise StoreRefused(f"the copy is damaged: {found[0]}")
        # The file is to be whole by itself.
        run(connection, "PRAGMA wal_checkpoint(truncate)")
        connection.close()
        for place in (self._path, self._path.parent):
            _sync(place)
        # A link never replaces a file that another process made meanwhile.
        os.link(self._path, self._target)
        self._path.unlink()
        _sync(self._path.parent)


def _reading(name: str, table: Table, **more: object) -> str:
    """Return the statement of this name that reads a table, or two with rows of one kind."""
    sql = _SQL[f"{name}_in_two" if table.also_in_file else name]
    columns, other = ", ".join(table.columns), table.also_in_file
    return sql.format(columns=columns, table=table.file_name, other=other, **more)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@asynccontextmanager
async def file_reader(path: Path) -> AsyncGenerator[FileReader]:
    """Read a file as of one moment; raises `ConfigError`."""
    connection = open_to_read(path)
    try:
        check_schema(connection, path)
        run(connection, "BEGIN")
        yield FileReader(connection, path)
    finally:
        connection.close()


def _check_target(path: Path) -> None:
    if path.exists():
        raise StoreRefused(f"{path}: exists, and is not what a copy left there; name another")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: there is no such folder")


@asynccontextmanager
async def file_writer(path: Path) -> AsyncGenerator[FileWriter]:
    """Write a file; what is there after a copy was cut off is gone on with."""
    _check_target(path)
    part = path.with_name(path.name + _PART)
    os.close(os.open(part, os.O_RDWR | os.O_CREAT, 0o600))
    # Half a copy that a power cut shortens is gone on with; the whole is synced at the end.
    connection = connect(str(part), "normal")
    try:
        migrate(connection)
        yield FileWriter(connection, part, path)
    finally:
        connection.close()
