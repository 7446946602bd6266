"""Workflows that were defined. Their runs are tasks like any other.

Every promise is a test in `dragoman.testing.promises.workflows`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dragoman.model.identity import Principal


class WorkflowRow(NamedTuple):
    """A workflow as a store has it. What the definition says is the gateway's affair."""

    id: str
    # Milliseconds since the epoch.
    made_at: int
    definition: bytes


class WorkflowStore(Protocol):
    """The workflows of all owners; each owner reads its own."""

    async def put(self, owner: Principal, row: WorkflowRow, *, most: int) -> bool:
        """Store a workflow, unless its owner has `most` already; return whether it was stored."""
        ...

    async def one(self, owner: Principal, id: str) -> WorkflowRow | None:
        """Return a workflow of an owner."""
        ...

    async def page(
        self, owner: Principal, *, limit: int, after: str = ""
    ) -> tuple[Sequence[WorkflowRow], int]:
        """Return some workflows of an owner, and how many there are. They are in the order of their
        ids, which is that of time, newest first; those after an id."""
        ...
