"""A change of key: everything that is sealed is sealed anew, while servers use the file.

The first step names the key to seal with from there on, so that nothing is written under another
any more. Then the rows follow in small transactions, each readable before and after. The keys that
were there before leave the list last. Wherever it is cut off, both keys open everything, and doing
it again goes on.
"""

from pathlib import Path

import apsw

from dragoman.stores.interface import Sealing
from dragoman.stores.interface.sealing import Rotated
from dragoman.stores.sealed_values import SEALED_ROWS, SealedRows, resealed
from dragoman.stores.sqlite.inspection import check_schema, open_to_read
from dragoman.stores.sqlite.schema import connect, queries, run, transaction
from dragoman.stores.sqlite.seals import keys_of

# Rows per transaction: servers wait for none of them long.
_AT_ONCE = 100
# How long servers may be kept from writing until the log of writes is emptied.
_PATIENCE_MS = 2000
_SQL = queries("seals.sql")


def sealed_with(path: Path) -> list[bytes]:
    """Return the keys a file is sealed with, the one to seal with first."""
    connection = open_to_read(path)
    try:
        check_schema(connection, path)
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
            run(connection, _SQL["retire_keys"])
            run(connection, _SQL["name_key"], (key,))
        values = damaged = 0
        for table in SEALED_ROWS:
            place = (0, -1)
            while found := _step(connection, sealing, key, table, place):
                place = found[0]
                values += found[1]
                damaged += found[2]
        if not damaged:
            with transaction(connection):
                run(connection, _SQL["drop_retired_keys"])
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
    table: SealedRows,
    after: tuple[int, int],
) -> tuple[tuple[int, int], int, int] | None:
    """Seal some rows anew; return the place of the last one, or None if there are no more."""
    values = damaged = 0
    with transaction(connection):
        rows = run(connection, _SQL[table.rows], (*after, key, _AT_ONCE))
        for value, first, second, shown in rows:
            context = table.context(first, second, shown)
            fresh = resealed(sealing, key, bytes(value), context)
            if fresh is None:
                damaged += 1
                continue
            run(connection, _SQL[table.update], (fresh, first, second))
            values += 1
    return ((rows[-1][1], rows[-1][2]), values, damaged) if rows else None
