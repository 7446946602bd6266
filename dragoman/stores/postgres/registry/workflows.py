"""Workflows in the database: what was defined, and by which owner."""

from collections.abc import Sequence

from dragoman.model.identity import Principal
from dragoman.stores.interface.workflows import WorkflowRow
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.deeds import do

_SQL = statements("dragoman.stores.postgres", "registry/workflows.sql")


class PostgresWorkflows:
    """The workflows of all owners."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections

    async def put(self, owner: Principal, row: WorkflowRow, *, most: int) -> bool:
        """Store a workflow, unless its owner has enough."""
        whose = (owner.tenant, owner.owner)

        async def put(connection: Connection) -> bool:
            # Two at the same time would not see each other.
            await connection.execute(_SQL["lock_owner"], "\n".join(whose))
            values = (row.id, *whose, row.made_at, row.definition, most)
            return await connection.fetchval(_SQL["put"], *values) is not None

        return await do(self._connections, put)

    async def one(self, owner: Principal, id: str) -> WorkflowRow | None:
        """Return a workflow of an owner."""
        found = await self._connections.rows(_SQL["one"], id, owner.tenant, owner.owner)
        return WorkflowRow(*found[0]) if found else None

    async def page(
        self, owner: Principal, *, limit: int, after: str = ""
    ) -> tuple[Sequence[WorkflowRow], int]:
        """Return some workflows of an owner, newest first, and how many there are."""
        whose = (owner.tenant, owner.owner)

        async def read(connection: Connection) -> tuple[Sequence[WorkflowRow], int]:
            rows = await connection.fetch(_SQL["page"], *whose, after, limit)
            total = await connection.fetchval(_SQL["total"], *whose)
            return [WorkflowRow(*row) for row in rows], total

        return await self._connections.at_one_moment(read)
