"""A PostgreSQL store with all that a gateway keeps beside the tasks, in the same database.

Apart from `store.py`, so that a server without a gateway loads none of it.
"""

from typing import Any

from dragoman.stores.interface import Duty, Heard, Rung
from dragoman.stores.interface.effects import OrderRules
from dragoman.stores.postgres.connections import Addresses
from dragoman.stores.postgres.ledger.accounting import PostgresAccounting
from dragoman.stores.postgres.ledger.task_orders import TaskOrders
from dragoman.stores.postgres.registry.agent_keys import PostgresAgentKeys
from dragoman.stores.postgres.registry.agents import PostgresAgents
from dragoman.stores.postgres.registry.changes import RegistryChanges
from dragoman.stores.postgres.registry.rollouts import PostgresRollouts
from dragoman.stores.postgres.registry.triggers import PostgresTriggers
from dragoman.stores.postgres.registry.workflows import PostgresWorkflows
from dragoman.stores.postgres.store import PostgresStore


class PostgresGatewayStore(PostgresStore):
    """The store of a gateway. Besides its rules it takes the arguments of `PostgresStore`."""

    def __init__(
        self, addresses: Addresses, rules: OrderRules | None = None, **options: Any
    ) -> None:
        """`rules` decide what the writes of a task mean to its order; None: there are no orders."""
        super().__init__(addresses, **options)
        self._rules = rules
        self.accounting = PostgresAccounting(
            self._connections, self._scopes, lambda: self.lead(Duty.SEAL)
        )
        self.agent_keys = PostgresAgentKeys(self._connections, self._keys_changed)
        self.agents = PostgresAgents(
            self._connections, self._seals, self.agent_keys, self._agents_changed
        )
        self.workflows = PostgresWorkflows(self._connections)
        self.triggers = PostgresTriggers(self._connections)
        self.rollouts = PostgresRollouts(self._connections)
        self._listeners: list[Heard] = []
        self._changes = RegistryChanges(self._connections, self._tell)
        for heard in (self._changes.heard, self.agent_keys.heard):
            self.listen(heard)

    async def open(self) -> None:
        """Open the store, read the keys of agents, and begin to seal transfers."""
        await super().open()
        if self._rules is not None:
            sealer = self.accounting.sealer
            self._writer.orders = TaskOrders(self._rules, self._connections, sealer)
        await self.agent_keys.refresh()
        self._changes.start()
        if not self.is_read_only:
            self.accounting.sealer.start()

    async def close(self) -> None:
        """Close the store. What is not sealed yet is sealed by the next process."""
        await self._stop()
        await super().close()

    async def vanish(self) -> None:
        """End as a crash would. For tests."""
        await self._stop()
        await super().vanish()

    async def _stop(self) -> None:
        await self.accounting.sealer.stop()
        await self._changes.stop()
        await self.agent_keys.stop()

    # Changes of the registry

    def listen(self, heard: Heard) -> None:
        """Have a function called when another worker wrote, also where its ring was lost."""
        super().listen(heard)
        self._listeners.append(heard)

    def _tell(self, rung: Rung) -> None:
        for heard in self._listeners:
            heard(rung)

    def _keys_changed(self, version: int) -> None:
        self.ring(Rung(agent_keys=version))

    def _agents_changed(self, version: int) -> None:
        self.ring(Rung(agents=version))
