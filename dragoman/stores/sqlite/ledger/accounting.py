"""Ledger and trust of one file, for a running store and for commands that look into a file."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from dragoman.errors import ConfigError
from dragoman.stores.interface.effects import Effect
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.ledger.effects import apply
from dragoman.stores.sqlite.ledger.ledger import SQLiteLedger
from dragoman.stores.sqlite.ledger.rows import TRUST
from dragoman.stores.sqlite.ledger.transactions import DirectTransactions
from dragoman.stores.sqlite.ledger.trust import SQLiteTrust
from dragoman.stores.sqlite.schema import connect, run
from dragoman.stores.sqlite.transactions import FileTransactions

# The first schema with all tables of ledger and trust.
_SCHEMA = 9


class SQLiteAccounting:
    """Ledger and trust of a file."""

    def __init__(self, file: FileTransactions) -> None:
        self._file = file
        self.ledger = SQLiteLedger(file)
        self.trust = SQLiteTrust(file)

    async def apply(self, effects: Sequence[Effect]) -> None:
        """Apply effects in one transaction."""
        await self._file.write_tx(lambda connection: apply(connection, effects))

    async def registered(self) -> dict[str, tuple[str, int]]:
        """Return name and time of registration of every agent, by id."""
        rows = await self._file.read_tx(lambda connection: run(connection, TRUST["registered"]))
        return {
            id: (name, int(msgspec.json.decode(body).get("created_at", 0)))
            for id, name, body in rows
        }


@contextmanager
def accounting_file(path: Path) -> Generator[SQLiteAccounting]:
    """Open a file to read ledger and trust as of one moment, also while processes write to it.

    Raises `ConfigError` where there is no such file, or an older release made it."""
    connection = open_to_read(path)
    try:
        ((schema,),) = run(connection, "PRAGMA user_version")
        if schema < _SCHEMA:
            raise ConfigError(f"{path}: no gateway of this release has used it; start one on it")
        run(connection, "BEGIN")
        yield SQLiteAccounting(DirectTransactions(connection))
    finally:
        connection.close()


@contextmanager
def writable_accounting_file(path: Path) -> Generator[SQLiteAccounting]:
    """Open a file that has ledger and trust to change it."""
    connection: apsw.Connection = connect(str(path))
    try:
        yield SQLiteAccounting(DirectTransactions(connection))
    finally:
        connection.close()
