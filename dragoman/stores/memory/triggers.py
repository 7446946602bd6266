"""Triggers in memory."""

from collections.abc import Sequence

from dragoman.model.identity import Principal
from dragoman.stores.interface.triggers import TriggerRow


class MemoryTriggers:
    """The triggers of all owners."""

    def __init__(self) -> None:
        # In the order they were made.
        self._rows: dict[str, TriggerRow] = {}

    async def put(self, row: TriggerRow, *, most: int) -> bool:
        """Store a new trigger, unless its owner has enough."""
        if sum(one.owner == row.owner for one in self._rows.values()) >= most:
            return False
        self._rows[row.id] = row
        return True

    async def one(self, id: str) -> TriggerRow | None:
        """Return a trigger."""
        return self._rows.get(id)

    async def page(
        self, owner: Principal | None, *, limit: int, after: str = ""
    ) -> tuple[Sequence[TriggerRow], int]:
        """Return some triggers of an owner or of all, newest first, and how many there are."""
        rows = [one for one in self._rows.values() if owner is None or one.owner == owner]
        found = [one for one in rows if not after or one.id < after]
        found.sort(key=lambda one: one.id, reverse=True)
        return found[:limit], len(rows)

    async def change(self, row: TriggerRow) -> bool:
        """Replace a trigger that still has the row's version."""
        known = self._rows.get(row.id)
        if known is None or known.version != row.version:
            return False
        self._rows[row.id] = known._replace(
            definition=row.definition, due_at=row.due_at, version=row.version + 1
        )
        return True

    async def remove(self, id: str) -> bool:
        """Remove a trigger."""
        return self._rows.pop(id, None) is not None

    async def due(self, until: int, limit: int) -> Sequence[TriggerRow]:
        """Return triggers that are due, the longest overdue first."""
        found = [(one.due_at, one) for one in self._rows.values() if one.due_at is not None]
        found.sort(key=lambda pair: pair[0])
        return [one for due_at, one in found if due_at <= until][:limit]
