"""Keys of agents in memory."""

from collections.abc import Callable, Sequence

from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.interface.agent_keys import REMEMBER_MS, KeyStored


class MemoryAgentKeys:
    """The keys of a gateway's agents."""

    def __init__(self, is_registered: Callable[[str], bool]) -> None:
        """`is_registered` tells whether there is an agent of an id."""
        self._is_registered = is_registered
        # By id, in the order they were made, with the version of their last change.
        self._keys: dict[str, tuple[AgentKeyRow, int]] = {}
        self._version = 0

    def version(self) -> int:
        """Return how often keys have changed."""
        return self._version

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that were made or ended after a version."""
        found = [(version, row) for row, version in self._keys.values() if version > after]
        return [row for _, row in sorted(found, key=lambda one: one[0])]

    async def refresh(self) -> None:
        """There is no other worker."""

    async def of_agent(self, agent: str) -> Sequence[AgentKeyRow]:
        """Return the keys of an agent, in the order they were made."""
        return [row for row, _ in self._keys.values() if row.agent == agent]

    async def put(self, row: AgentKeyRow, *, most: int) -> KeyStored:
        """Store a key, unless its agent was removed or has enough."""
        if not self._is_registered(row.agent):
            return "no_agent"
        oldest = row.made_at - REMEMBER_MS
        self._keys = {
            id: (key, version)
            for id, (key, version) in self._keys.items()
            if all(end is None or end >= oldest for end in (key.revoked_at, key.expires_at))
        }
        valid = sum(
            key.agent == row.agent
            and key.revoked_at is None
            and (key.expires_at is None or key.expires_at > row.made_at)
            for key, _ in self._keys.values()
        )
        if valid >= most:
            return "full"
        self._version += 1
        self._keys[row.id] = (row, self._version)
        return "stored"

    async def revoke(self, id: str, now: int) -> bool:
        """End a key; return whether it was not revoked before."""
        found = self._keys.get(id)
        return found is not None and self._revoke(found[0], now)

    def revoke_all(self, agent: str, now: int) -> None:
        """End the keys of an agent."""
        for row, _ in list(self._keys.values()):
            if row.agent == agent:
                self._revoke(row, now)

    def _revoke(self, row: AgentKeyRow, now: int) -> bool:
        if row.revoked_at is not None:
            return False
        self._version += 1
        self._keys[row.id] = (row._replace(revoked_at=now), self._version)
        return True
