"""Triggers in the file."""

from collections.abc import Sequence
from typing import Any

import apsw

from dragoman.model.identity import Principal
from dragoman.stores.interface.triggers import TriggerRow
from dragoman.stores.sqlite.schema import queries, run
from dragoman.stores.sqlite.transactions import FileTransactions

_SQL = queries("registry/triggers.sql")


class SQLiteTriggers:
    """The triggers of all owners."""

    def __init__(self, store: FileTransactions) -> None:
        self._store = store

    async def put(self, row: TriggerRow, *, most: int) -> bool:
        """Store a new trigger, unless its owner has enough."""
        id, owner, *rest = row
        values = (id, owner.tenant, owner.owner, *rest, most)
        return bool(await self._write("put", *values))

    async def one(self, id: str) -> TriggerRow | None:
        """Return a trigger."""
        found = await self._store.read_tx(lambda c: run(c, _SQL["one"], (id,)))
        return _row(*found[0]) if found else None

    async def page(
        self, owner: Principal | None, *, limit: int, after: str = ""
    ) -> tuple[Sequence[TriggerRow], int]:
        """Return some triggers of an owner or of all, newest first, and how many there are."""
        whose = () if owner is None else (owner.tenant, owner.owner)
        of = "_of_all" if owner is None else ""

        def read(connection: apsw.Connection) -> tuple[Sequence[TriggerRow], int]:
            rows = run(connection, _SQL[f"page{of}"], (*whose, after, limit))
            ((total,),) = run(connection, _SQL[f"total{of}"], whose)
            return [_row(*row) for row in rows], total

        return await self._store.read_tx(read)

    async def change(self, row: TriggerRow) -> bool:
        """Replace a trigger that still has the row's version."""
        return bool(await self._write("change", row.definition, row.due_at, row.id, row.version))

    async def remove(self, id: str) -> bool:
        """Remove a trigger."""
        return bool(await self._write("remove", id))

    async def due(self, until: int, limit: int) -> Sequence[TriggerRow]:
        """Return triggers that are due, the longest overdue first."""
        found = await self._store.read_tx(lambda c: run(c, _SQL["due"], (until, limit)))
        return [_row(*row) for row in found]

    async def _write(self, name: str, *values: Any) -> Any:
        return await self._store.write_tx(lambda c: run(c, _SQL[name], values))


def _row(id: str, tenant: str, owner: str, *rest: Any) -> TriggerRow:
    return TriggerRow(id, Principal(tenant, owner), *rest)
