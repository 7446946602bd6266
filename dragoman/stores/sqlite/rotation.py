"""A change of key: everything that is sealed is sealed anew, while servers use the file.

The first step names the key to seal with from there on, so that nothing is written under another
any more. Then the rows follow in small transactions, each readable before and after. The keys that
were there before leave the list last. Wherever it is cut off, both keys open everything, and doing
it again goes on.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.stores.interface import Sealing
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import connect, migrations, run, transaction
from dragoman.stores.sqlite.seals import (
    MARK,
    SECRET,
    keys_of,
    of_answer,
    of_credential,
    of_note,
    of_push,
)

# Rows per transaction: servers wait for none of them long.
_AT_ONCE = 100
# How long servers may be kept from writing until the log of writes is emptied.
_PATIENCE_MS = 2000
_NAME_KEY = (
    "UPDATE vault_keys SET is_current = 0",
    "INSERT INTO vault_keys VALUES (?, 1) ON CONFLICT DO UPDATE SET is_current = 1",
)
_DROP_KEYS = "DELETE FROM vault_keys WHERE is_current = 0"


class _Table(NamedTuple):
    """Where sealed values are."""

    # Rows after a place that another key seals: the value, two numbers that are the row's place,
    # and what of it is in clear if that is part of where the value belongs.
    rows: str
    # Writes a value at a place.
    update: str
    context: Callable[[int, int, bytes], bytes]


def _of_secret(number: int, task: int, shown: bytes) -> bytes:
    return SECRET


def _of_push(number: int, task: int, shown: bytes) -> bytes:
    return of_push(task, shown)


def _of_note(number: int, task: int, shown: bytes) -> bytes:
    return of_note(task)


def _of_answer(task: int, seq: int, shown: bytes) -> bytes:
    return of_answer(task, seq)


def _of_credential(number: int, zero: int, shown: bytes) -> bytes:
    return of_credential(shown)


_TABLES = (
    _Table(
        "SELECT value, 1, 0, x'' FROM facts WHERE name = 'sealed_secret' AND (1, 0) > (?, ?) "
        "AND substr(value, 2, 8) <> ? LIMIT ?",
        "UPDATE facts SET value = ? WHERE name = 'sealed_secret' AND (1, 0) = (?, ?)",
        _of_secret,
    ),
    _Table(
        "SELECT sealed, number, task, config FROM pushes WHERE (number, task) > (?, ?) "
        "AND substr(sealed, 2, 8) <> ? ORDER BY number LIMIT ?",
        "UPDATE pushes SET sealed = ? WHERE number = ? AND task = ?",
        _of_push,
    ),
    _Table(
        "SELECT body, number, task, x'' FROM notes WHERE (number, task) > (?, ?) "
        "AND substr(body, 2, 8) <> ? ORDER BY number LIMIT ?",
        "UPDATE notes SET body = ? WHERE number = ? AND task = ?",
        _of_note,
    ),
    _Table(
        "SELECT body, task, seq, x'' FROM withheld WHERE (task, seq) > (?, ?) "
        "AND substr(body, 2, 8) <> ? ORDER BY task, seq LIMIT ?",
        "UPDATE withheld SET body = ? WHERE task = ? AND seq = ?",
        _of_answer,
    ),
    _Table(
        "SELECT body, number, 0, shown FROM agent_credentials WHERE (number, 0) > (?, ?) "
        "AND substr(body, 2, 8) <> ? ORDER BY number LIMIT ?",
        "UPDATE agent_credentials SET body = ? WHERE number = ? AND 0 = ?",
        _of_credential,
    ),
)


class Rotated(NamedTuple):
    """What was done."""

    # Values sealed anew, and those that no key at hand opens.
    values: int
    damaged: int
    # Whether what other keys sealed is gone from the file's log of writes too.
    is_cleared: bool


def sealed_with(path: Path) -> list[bytes]:
    """Return the keys a file is sealed with, the one to seal with first."""
    connection = open_to_read(path)
    try:
        ((schema,),) = run(connection, "PRAGMA user_version")
        if schema != migrations()[-1][0]:
            raise ConfigError(f"{path}: is of an earlier release; start a server on it once")
        return keys_of(connection)
    finally:
        connection.close()


def rotate(path: Path, sealing: Sealing, key: bytes) -> Rotated:
    """Seal everything with a key, then take the others off the list."""
    connection = connect(str(path))
    try:
        # What is overwritten would stay in its page.
        run(connection, "PRAGMA secure_delete = on")
        with transaction(connection):
            run(connection, _NAME_KEY[0])
            run(connection, _NAME_KEY[1], (key,))
        values = damaged = 0
        for table in _TABLES:
            place = (0, -1)
            while found := _step(connection, sealing, key, table, place):
                place = found[0]
                values += found[1]
                damaged += found[2]
        if not damaged:
            with transaction(connection):
                run(connection, _DROP_KEYS)
        return Rotated(values, damaged, _clear_log(connection))
    finally:
        connection.close()


def _clear_log(connection: apsw.Connection) -> bool:
    """Empty the log of writes into the file, unless readers keep us waiting."""
    connection.set_busy_timeout(_PATIENCE_MS)
    try:
        ((is_busy, _, _),) = run(connection, "PRAGMA wal_checkpoint(truncate)")
    except apsw.Error:
        # Everything is sealed anew all the same.
        return False
    return not is_busy


def _step(
    connection: apsw.Connection,
    sealing: Sealing,
    key: bytes,
    table: _Table,
    after: tuple[int, int],
) -> tuple[tuple[int, int], int, int] | None:
    """Seal some rows anew; return the place of the last one, or None if there are no more."""
    values = damaged = 0
    with transaction(connection):
        rows = run(connection, table.rows, (*after, key, _AT_ONCE))
        for value, first, second, shown in rows:
            sealed, context = bytes(value), table.context(first, second, shown)
            try:
                plain = sealing.open(sealed, context) if sealed.startswith(MARK) else sealed
            except StoreUnavailable:
                damaged += 1
                continue
            run(connection, table.update, (sealing.seal(plain, context, key), first, second))
            values += 1
    return ((rows[-1][1], rows[-1][2]), values, damaged) if rows else None
