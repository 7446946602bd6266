"""What other processes change in the registry: their rings tell it soon, a look every second tells
it for certain. A ring may be lost with its connection, and nothing else would be heard of it."""

from collections.abc import Callable

from dragoman.stores.interface import Rung
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.chores import Chore
from dragoman.stores.postgres.connections import DatabaseConnections

LOOK_EVERY = 1.0
_SQL = statements("dragoman.stores.postgres", "registry/agents.sql")


class RegistryChanges:
    """Looks for new versions of agents and of their keys."""

    def __init__(self, connections: DatabaseConnections, tell: Callable[[Rung], None]) -> None:
        """`tell` hears of a version that was not heard of before."""
        self._connections = connections
        self._tell = tell
        self._agents = self._keys = 0
        self._looking = Chore("changes of agents", self._look, every=LOOK_EVERY)
        self.start, self.stop = self._looking.start, self._looking.stop

    def heard(self, rung: Rung | None) -> None:
        """Note what was told already."""
        if rung is not None:
            self._agents = max(self._agents, rung.agents)
            self._keys = max(self._keys, rung.agent_keys)

    async def _look(self) -> None:
        (versions,) = await self._connections.rows(_SQL["versions"])
        agents, keys = versions
        # Lower versions are of a database that was restored.
        if (agents, keys) != (self._agents, self._keys):
            self._agents, self._keys = agents, keys
            self._tell(Rung(agents=agents, agent_keys=keys))
