"""Rollouts in the database."""

from collections.abc import Sequence
from typing import Any

from dragoman.model.identity import Principal
from dragoman.stores.interface.rollouts import RolloutRow
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.deeds import do

_SQL = statements("dragoman.stores.postgres", "registry/rollouts.sql")


class PostgresRollouts:
    """The rollouts of all owners."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections

    async def put(self, row: RolloutRow, *, keep: int) -> bool:
        """Store a new rollout, unless one of the same agent is running."""
        id, owner, *rest = row
        whose = (owner.tenant, owner.owner)

        async def put(connection: Connection) -> bool:
            is_put = await connection.fetchval(_SQL["put"], id, *whose, *rest) is not None
            if is_put:
                await connection.execute(_SQL["forget"], *whose, keep)
            return is_put

        return await do(self._connections, put)

    async def one(self, id: str) -> RolloutRow | None:
        """Return a rollout."""
        found = await self._connections.rows(_SQL["one"], id)
        return _row(*found[0]) if found else None

    async def page(
        self, owner: Principal | None, agent: str, *, limit: int, after: str = ""
    ) -> tuple[Sequence[RolloutRow], int]:
        """Return some rollouts, newest first, and how many there are."""
        which = (agent,) if owner is None else (owner.tenant, owner.owner, agent)
        of = "_of_all" if owner is None else ""

        async def read(connection: Connection) -> tuple[Sequence[RolloutRow], int]:
            rows = await connection.fetch(_SQL[f"page{of}"], *which, after, limit)
            total = await connection.fetchval(_SQL[f"total{of}"], *which)
            return [_row(*row) for row in rows], total

        return await self._connections.at_one_moment(read)

    async def change(self, row: RolloutRow) -> bool:
        """Replace a rollout that still has the row's version."""
        values = (row.definition, row.is_running, row.id, row.version)

        async def change(connection: Connection) -> bool:
            return await connection.fetchval(_SQL["change"], *values) is not None

        return await do(self._connections, change)

    async def running(self) -> Sequence[RolloutRow]:
        """Return the rollouts that are running, the oldest first."""
        return [_row(*row) for row in await self._connections.rows(_SQL["running"])]


def _row(id: str, tenant: str, owner: str, *rest: Any) -> RolloutRow:
    return RolloutRow(id, Principal(tenant, owner), *rest)
