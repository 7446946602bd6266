"""What the parts of a SQLite store need of the store: its transactions and its seals.

A part never keeps a connection: it is given one for the time of a transaction.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import apsw

from dragoman.stores.sqlite.seals import Seals

T = TypeVar("T")


class FileTransactions(Protocol):
    """Runs functions on the connections to a file."""

    async def read_tx(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Run a function that reads; it does not keep the event loop waiting."""
        ...

    async def write_tx(self, deed: Callable[[apsw.Connection], T]) -> T:
        """Run a function in a write transaction of its own; raises `StoreConflict` where the file
        refuses what it writes."""
        ...


class StoreTransactions(FileTransactions, Protocol):
    """The same on an open store, which is one of the workers on its file."""

    # The number of this process among the workers, and whether no other process writes.
    worker: int
    knows_all: bool

    @property
    def seals(self) -> Seals:
        """Seals and opens secrets."""
        ...

    def read_now(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Run a function that reads a few rows, on the event loop."""
        ...
