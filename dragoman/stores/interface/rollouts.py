"""Rollouts: new versions of agents that are tried beside the old ones.

All there is to know of a rollout is in one row: what is counted, and what is still to be compared.
So a change of it is whole or not made. Every promise is a test in
`dragoman.testing.promises.rollouts`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dragoman.model.identity import Principal


class RolloutRow(NamedTuple):
    """A rollout as a store has it. What the definition says is the gateway's affair."""

    id: str
    owner: Principal
    # The id of the agent that gets another version.
    agent: str
    # Milliseconds since the epoch.
    made_at: int
    definition: bytes
    is_running: bool = True
    # How often it was changed.
    version: int = 0


class RolloutStore(Protocol):
    """The rollouts of all owners."""

    async def put(self, row: RolloutRow, *, keep: int) -> bool:
        """Store a new rollout, unless one of the same agent is running; return whether it was
        stored. Of those of its owner that ended, the newest `keep` stay."""
        ...

    async def one(self, id: str) -> RolloutRow | None:
        """Return a rollout."""
        ...

    async def page(
        self, owner: Principal | None, agent: str, *, limit: int, after: str = ""
    ) -> tuple[Sequence[RolloutRow], int]:
        """Return some rollouts of an owner, or of all (None), of one agent, or of all (empty), and
        how many there are. They are in the order of their ids, which is that of time, newest first;
        those after an id, which may be gone."""
        ...

    async def change(self, row: RolloutRow) -> bool:
        """Replace definition and state of a rollout that still has the row's version, and count the
        version up; return whether it did."""
        ...

    async def running(self) -> Sequence[RolloutRow]:
        """Return the rollouts that are running, the oldest first."""
        ...
