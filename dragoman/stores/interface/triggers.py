"""Triggers: what begins tasks by itself, at a time or when another program posts something.

Every promise is a test in `dragoman.testing.promises.triggers`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dragoman.model.identity import Principal


class TriggerRow(NamedTuple):
    """A trigger as a store has it. What the definition says is the gateway's affair."""

    id: str
    owner: Principal
    # Milliseconds since the epoch.
    made_at: int
    definition: bytes
    # When it is due next, in milliseconds since the epoch; None: it is not.
    due_at: int | None
    # How often it was changed.
    version: int = 0


class TriggerStore(Protocol):
    """The triggers of all owners."""

    async def put(self, row: TriggerRow, *, most: int) -> bool:
        """Store a new trigger, unless its owner has `most` already; return whether it was
        stored."""
        ...

    async def one(self, id: str) -> TriggerRow | None:
        """Return a trigger."""
        ...

    async def page(
        self, owner: Principal | None, *, limit: int, after: str = ""
    ) -> tuple[Sequence[TriggerRow], int]:
        """Return some triggers of an owner, or of all (None), and how many there are. They are in
        the order of their ids, which is that of time, newest first; those after an id, which may
        be gone."""
        ...

    async def change(self, row: TriggerRow) -> bool:
        """Replace definition and due time of a trigger that still has the row's version, and count
        the version up; return whether it did."""
        ...

    async def remove(self, id: str) -> bool:
        """Remove a trigger; return whether it was there."""
        ...

    async def due(self, until: int, limit: int) -> Sequence[TriggerRow]:
        """Return triggers that are due at a time or before, the longest overdue first."""
        ...
