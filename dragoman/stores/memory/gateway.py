"""A store in memory with all that a gateway keeps beside the tasks: a gateway without a file."""

from dragoman.stores.interface.effects import OrderRules
from dragoman.stores.memory.accounting import MemoryAccounting
from dragoman.stores.memory.agent_keys import MemoryAgentKeys
from dragoman.stores.memory.agents import MemoryAgents
from dragoman.stores.memory.rollouts import MemoryRollouts
from dragoman.stores.memory.store import MemoryStore
from dragoman.stores.memory.triggers import MemoryTriggers
from dragoman.stores.memory.workflows import MemoryWorkflows


class MemoryGatewayStore(MemoryStore):
    """The store of a gateway until the process ends."""

    def __init__(self, rules: OrderRules | None = None) -> None:
        """`rules` decide what the writes of a task mean to its order; None: there are no orders."""
        self.accounting = MemoryAccounting(rules)
        super().__init__(orders=self.accounting)
        self.agent_keys = MemoryAgentKeys(lambda id: id in self.agents.rows)
        self.agents = MemoryAgents(self.agent_keys.revoke_all, self.accounting.refers_to)
        self.workflows = MemoryWorkflows()
        self.triggers = MemoryTriggers()
        self.rollouts = MemoryRollouts()
