"""Changes that are not writes of tasks: each is a transaction of its own, on any connection."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dragoman.errors import StoreConflict, StoreUnavailable
from dragoman.stores.interface.effects import CHANGED
from dragoman.stores.postgres.connections import (
    Connection,
    DatabaseConnections,
    ServerError,
    plain,
    state_of,
)

T = TypeVar("T")
Deed = Callable[[Connection], Awaitable[T]]

# Rolled back for another's sake: a deadlock, a row that another changed first, or we stood still.
_AGAIN = ("40P01", "40001", "25P03")
# A process that is frozen in the midst of a deed must not keep its locks.
_BOUND = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
# A row that exists, or one that a check or a trigger of ours does not take.
_REFUSED = ("23505", "23514", "23502")
LOCKED = "55P03"
_TRIES = 20
_BETWEEN_TRIES = 0.02


def storable(text: str) -> str:
    """Return a text as the server takes it: its texts have no NUL, and those of callers may."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


async def do(connections: DatabaseConnections, deed: Deed[T], *, is_repeatable: bool = False) -> T:
    """Do something in one transaction; again if it was rolled back for the sake of another one.

    Raises `StoreConflict` where the database refuses a row, and `StoreUnavailable` where the
    connection was lost: then it is unknown whether it happened. One that `is_repeatable` is done
    again on another connection instead, for as long as a read would be."""
    for tried in range(1, _TRIES + 1):
        try:
            if is_repeatable:
                return await connections.patiently(lambda one: _in_transaction(one, deed))
            async with connections.transaction() as connection:
                return await _bounded(connection, deed)
        except ServerError as error:
            if state_of(error) in _REFUSED:
                raise StoreConflict(str(error)) from None
            if state_of(error) not in _AGAIN:
                raise
            if tried == _TRIES:
                raise StoreUnavailable(f"PostgreSQL: {plain(error)}") from error
            await asyncio.sleep(_BETWEEN_TRIES * tried)
    raise AssertionError("the last try returns or raises")


async def _in_transaction(connection: Connection, deed: Deed[T]) -> T:
    async with connection.transaction():
        return await _bounded(connection, deed)


async def _bounded(connection: Connection, deed: Deed[T]) -> T:
    await connection.execute(_BOUND)
    return await deed(connection)


async def changed(connection: Connection, sql: str, *values: Any, rows: int = 1) -> None:
    """Run a statement that has to change so many rows."""
    done = str(await connection.execute(sql, *values))
    if int(done.rpartition(" ")[2]) != rows:
        raise StoreConflict(CHANGED)
