"""How the parts of a gateway's store reach the file: a running store, or a command by itself."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import apsw

from dragoman.errors import StoreConflict
from dragoman.stores.sqlite.schema import run, transaction

T = TypeVar("T")


class DirectTransactions:
    """Runs everything at once on one connection: for commands, which keep no event loop waiting."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def read_tx(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read something."""
        return reading(self.connection)

    async def write_tx(self, deed: Callable[[apsw.Connection], T]) -> T:
        """Change something."""
        try:
            with transaction(self.connection):
                return deed(self.connection)
        except apsw.ConstraintError as error:
            raise StoreConflict(str(error)) from None


@contextmanager
def one_moment(connection: apsw.Connection) -> Generator[None]:
    """Have all readings within see the same moment of the file."""
    if connection.in_transaction:
        yield
        return
    run(connection, "BEGIN")
    try:
        yield
    finally:
        run(connection, "COMMIT")
