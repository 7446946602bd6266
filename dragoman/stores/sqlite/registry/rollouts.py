"""Rollouts in the file."""

from collections.abc import Sequence
from typing import Any

import apsw

from dragoman.model.identity import Principal
from dragoman.stores.interface.rollouts import RolloutRow
from dragoman.stores.sqlite.schema import queries, run
from dragoman.stores.sqlite.transactions import FileTransactions

_SQL = queries("registry/rollouts.sql")


class SQLiteRollouts:
    """The rollouts of all owners."""

    def __init__(self, store: FileTransactions) -> None:
        self._store = store

    async def put(self, row: RolloutRow, *, keep: int) -> bool:
        """Store a new rollout, unless one of the same agent is running."""
        id, owner, *rest = row
        whose = (owner.tenant, owner.owner)

        def put(connection: apsw.Connection) -> bool:
            is_put = bool(run(connection, _SQL["put"], (id, *whose, *rest)))
            if is_put:
                run(connection, _SQL["forget"], (*whose, keep))
            return is_put

        return await self._store.write_tx(put)

    async def one(self, id: str) -> RolloutRow | None:
        """Return a rollout."""
        found = await self._store.read_tx(lambda c: run(c, _SQL["one"], (id,)))
        return _row(*found[0]) if found else None

    async def page(
        self, owner: Principal | None, agent: str, *, limit: int, after: str = ""
    ) -> tuple[Sequence[RolloutRow], int]:
        """Return some rollouts, newest first, and how many there are."""
        which = (agent,) if owner is None else (owner.tenant, owner.owner, agent)
        of = "_of_all" if owner is None else ""

        def read(connection: apsw.Connection) -> tuple[Sequence[RolloutRow], int]:
            rows = run(connection, _SQL[f"page{of}"], (*which, after, limit))
            ((total,),) = run(connection, _SQL[f"total{of}"], which)
            return [_row(*row) for row in rows], total

        return await self._store.read_tx(read)

    async def change(self, row: RolloutRow) -> bool:
        """Replace a rollout that still has the row's version."""
        values = (row.definition, row.is_running, row.id, row.version)
        return bool(await self._store.write_tx(lambda c: run(c, _SQL["change"], values)))

    async def running(self) -> Sequence[RolloutRow]:
        """Return the rollouts that are running, the oldest first."""
        found = await self._store.read_tx(lambda c: run(c, _SQL["running"], ()))
        return [_row(*row) for row in found]


def _row(id: str, tenant: str, owner: str, *rest: Any) -> RolloutRow:
    agent, made_at, definition, is_running, version = rest
    whose = Principal(tenant, owner)
    return RolloutRow(id, whose, agent, made_at, definition, bool(is_running), version)
