"""Rollouts in memory."""

from collections.abc import Sequence

from dragoman.model.identity import Principal
from dragoman.stores.interface.rollouts import RolloutRow


class MemoryRollouts:
    """The rollouts of all owners."""

    def __init__(self) -> None:
        # In the order they were made.
        self._rows: dict[str, RolloutRow] = {}

    async def put(self, row: RolloutRow, *, keep: int) -> bool:
        """Store a new rollout, unless one of the same agent is running."""
        if any(one.agent == row.agent for one in await self.running()):
            return False
        ended = [
            id for id, one in self._rows.items() if one.owner == row.owner and not one.is_running
        ]
        for id in ended[: len(ended) - keep]:
            del self._rows[id]
        self._rows[row.id] = row
        return True

    async def one(self, id: str) -> RolloutRow | None:
        """Return a rollout."""
        return self._rows.get(id)

    async def page(
        self, owner: Principal | None, agent: str, *, limit: int, after: str = ""
    ) -> tuple[Sequence[RolloutRow], int]:
        """Return some rollouts, newest first, and how many there are."""
        rows = [
            one
            for one in self._rows.values()
            if owner in (None, one.owner) and agent in ("", one.agent)
        ]
        found = [one for one in rows if not after or one.id < after]
        found.sort(key=lambda one: one.id, reverse=True)
        return found[:limit], len(rows)

    async def change(self, row: RolloutRow) -> bool:
        """Replace a rollout that still has the row's version."""
        known = self._rows.get(row.id)
        if known is None or known.version != row.version:
            return False
        self._rows[row.id] = known._replace(
            definition=row.definition, is_running=row.is_running, version=row.version + 1
        )
        return True

    async def running(self) -> Sequence[RolloutRow]:
        """Return the rollouts that are running, the oldest first."""
        return [one for one in self._rows.values() if one.is_running]
