"""What a copy reads from and writes to."""

from collections.abc import Sequence
from typing import Protocol

from dragoman.stores.copying.tables import Key, Marks, Place, Row, Table


class CopySource(Protocol):
    """A store that is read, as of one moment."""

    async def living(self) -> int:
        """Return how many processes serve from it."""
        ...

    async def identity(self) -> str:
        """Return what tells this store, as it is now, from others and from itself later."""
        ...

    async def marks(self) -> Marks:
        """Return what is no row of a table."""
        ...

    async def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        ...

    async def rows(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return the rows that follow a key in the order of keys; none: there are no more."""
        ...


class CopyTarget(CopySource, Protocol):
    """A store that is written, and is of no use until it is finished."""

    async def place(self) -> Place | None:
        """Return how far an earlier copy came; None: there is none."""
        ...

    async def is_empty(self) -> bool:
        """Tell whether there is nothing in it."""
        ...

    async def begin(self, place: Place) -> None:
        """Take what an earlier copy left out of it, and say that a copy is under way."""
        ...

    async def write(self, table: Table, rows: Sequence[Row], place: Place) -> None:
        """Write rows, and how far the copy is with them."""
        ...

    async def finish(self, marks: Marks) -> None:
        """Make it a store that can be served."""
        ...
