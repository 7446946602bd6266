"""Ledger and trust of one database."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dragoman.stores.interface.effects import Effect
from dragoman.stores.postgres.connections import DatabaseConnections
from dragoman.stores.postgres.deeds import do
from dragoman.stores.postgres.ledger.effects import apply, moves_money
from dragoman.stores.postgres.ledger.ledger import PostgresLedger
from dragoman.stores.postgres.ledger.rows import TRUST
from dragoman.stores.postgres.ledger.sealing import Sealer
from dragoman.stores.postgres.ledger.trust import PostgresTrust
from dragoman.stores.postgres.scopes import Scopes


class PostgresAccounting:
    """Ledger and trust of a database."""

    def __init__(
        self,
        connections: DatabaseConnections,
        scopes: Scopes,
        leads: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`leads` tells whether this process seals what others left; None: it is no worker, and
        seals only what it reads."""
        self._connections = connections
        self.sealer = Sealer(connections) if leads is None else Sealer(connections, leads)
        self.ledger = PostgresLedger(connections, scopes, self.sealer)
        self.trust = PostgresTrust(connections)

    async def apply(self, effects: Sequence[Effect]) -> None:
        """Apply effects in one transaction."""
        if moves_money(effects):
            # In portions before, so that the transaction itself has few to seal.
            await self.sealer.catch_up()
        await do(self._connections, lambda connection: apply(connection, effects))

    async def registered(self) -> dict[str, tuple[str, int]]:
        """Return name and time of registration of every agent, by id."""
        rows = await self._connections.rows(TRUST["registered"])
        return {
            id: (name, int(msgspec.json.decode(body).get("created_at", 0)))
            for id, name, body in rows
        }
