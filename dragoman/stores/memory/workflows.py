"""Workflows in memory."""

from collections.abc import Sequence

from dragoman.model.identity import Principal
from dragoman.stores.interface.workflows import WorkflowRow


class MemoryWorkflows:
    """The workflows of all owners."""

    def __init__(self) -> None:
        # In the order they were made.
        self._rows: dict[Principal, dict[str, WorkflowRow]] = {}

    async def put(self, owner: Principal, row: WorkflowRow, *, most: int) -> bool:
        """Store a workflow, unless its owner has enough."""
        rows = self._rows.setdefault(owner, {})
        if len(rows) >= most:
            return False
        rows[row.id] = row
        return True

    async def one(self, owner: Principal, id: str) -> WorkflowRow | None:
        """Return a workflow of an owner."""
        return self._rows.get(owner, {}).get(id)

    async def page(
        self, owner: Principal, *, limit: int, after: str = ""
    ) -> tuple[Sequence[WorkflowRow], int]:
        """Return some workflows of an owner, newest first, and how many there are."""
        rows = self._rows.get(owner, {})
        found = sorted((id for id in rows if not after or id < after), reverse=True)
        return [rows[id] for id in found[:limit]], len(rows)
