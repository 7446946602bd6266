"""What a gateway works on: the engine's store, and what the gateway keeps beside the tasks."""

from typing import Protocol

from dragoman.stores.interface.agent_keys import AgentKeyStore
from dragoman.stores.interface.agents import AgentStore
from dragoman.stores.interface.effects import AccountingStore
from dragoman.stores.interface.rollouts import RolloutStore
from dragoman.stores.interface.store import Store
from dragoman.stores.interface.triggers import TriggerStore
from dragoman.stores.interface.workflows import WorkflowStore


class GatewayStore(Store, Protocol):
    """A store with everything that a gateway needs, one part per group."""

    @property
    def agents(self) -> AgentStore:
        """The registered agents."""
        ...

    @property
    def agent_keys(self) -> AgentKeyStore:
        """The keys of registered agents."""
        ...

    @property
    def accounting(self) -> AccountingStore:
        """The ledger and trust."""
        ...

    @property
    def workflows(self) -> WorkflowStore:
        """The workflows that were defined."""
        ...

    @property
    def triggers(self) -> TriggerStore:
        """What begins tasks by itself."""
        ...

    @property
    def rollouts(self) -> RolloutStore:
        """New versions of agents that are tried."""
        ...
