"""Triggers in the database."""

from collections.abc import Sequence
from typing import Any

from dragoman.model.identity import Principal
from dragoman.stores.interface.triggers import TriggerRow
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.deeds import do

_SQL = statements("dragoman.stores.postgres", "registry/triggers.sql")


class PostgresTriggers:
    """The triggers of all owners."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections

    async def put(self, row: TriggerRow, *, most: int) -> bool:
        """Store a new trigger, unless its owner has enough."""
        id, owner, *rest = row
        whose = (owner.tenant, owner.owner)

        async def put(connection: Connection) -> bool:
            # Two at the same time would not see each other.
            await connection.execute(_SQL["lock_owner"], "\n".join(whose))
            return await connection.fetchval(_SQL["put"], id, *whose, *rest, most) is not None

        return await do(self._connections, put)

    async def one(self, id: str) -> TriggerRow | None:
        """Return a trigger."""
        found = await self._connections.rows(_SQL["one"], id)
        return _row(*found[0]) if found else None

    async def page(
        self, owner: Principal | None, *, limit: int, after: str = ""
    ) -> tuple[Sequence[TriggerRow], int]:
        """Return some triggers of an owner or of all, newest first, and how many there are."""
        whose = () if owner is None else (owner.tenant, owner.owner)
        of = "_of_all" if owner is None else ""

        async def read(connection: Connection) -> tuple[Sequence[TriggerRow], int]:
            rows = await connection.fetch(_SQL[f"page{of}"], *whose, after, limit)
            total = await connection.fetchval(_SQL[f"total{of}"], *whose)
            return [_row(*row) for row in rows], total

        return await self._connections.at_one_moment(read)

    async def change(self, row: TriggerRow) -> bool:
        """Replace a trigger that still has the row's version."""
        values = (row.definition, row.due_at, row.id, row.version)
        return await self._done("change", *values)

    async def remove(self, id: str) -> bool:
        """Remove a trigger."""
        return await self._done("remove", id)

    async def due(self, until: int, limit: int) -> Sequence[TriggerRow]:
        """Return triggers that are due, the longest overdue first."""
        found = await self._connections.rows(_SQL["due"], until, limit)
        return [_row(*row) for row in found]

    async def _done(self, name: str, *values: Any) -> bool:
        async def deed(connection: Connection) -> bool:
            return await connection.fetchval(_SQL[name], *values) is not None

        return await do(self._connections, deed)


def _row(id: str, tenant: str, owner: str, *rest: Any) -> TriggerRow:
    return TriggerRow(id, Principal(tenant, owner), *rest)
