"""Workflows in the file: what was defined, and by which owner."""

from collections.abc import Sequence

import apsw

from dragoman.model.identity import Principal
from dragoman.stores.interface.workflows import WorkflowRow
from dragoman.stores.sqlite.schema import queries, run
from dragoman.stores.sqlite.transactions import FileTransactions

_SQL = queries("registry/workflows.sql")


class SQLiteWorkflows:
    """The workflows of all owners."""

    def __init__(self, store: FileTransactions) -> None:
        self._store = store

    async def put(self, owner: Principal, row: WorkflowRow, *, most: int) -> bool:
        """Store a workflow, unless its owner has enough."""
        values = (row.id, owner.tenant, owner.owner, row.made_at, row.definition, most)
        return bool(await self._store.write_tx(lambda c: run(c, _SQL["put"], values)))

    async def one(self, owner: Principal, id: str) -> WorkflowRow | None:
        """Return a workflow of an owner."""
        values = (id, owner.tenant, owner.owner)
        found = await self._store.read_tx(lambda c: run(c, _SQL["one"], values))
        return WorkflowRow(*found[0]) if found else None

    async def page(
        self, owner: Principal, *, limit: int, after: str = ""
    ) -> tuple[Sequence[WorkflowRow], int]:
        """Return some workflows of an owner, newest first, and how many there are."""
        whose = (owner.tenant, owner.owner)

        def read(connection: apsw.Connection) -> tuple[Sequence[WorkflowRow], int]:
            rows = run(connection, _SQL["page"], (*whose, after, limit))
            ((total,),) = run(connection, _SQL["total"], whose)
            return [WorkflowRow(*row) for row in rows], total

        return await self._store.read_tx(read)
