"""Registered agents in memory."""

from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from dragoman.stores.interface.agents import (
    AgentAddress,
    AgentCredential,
    AgentHealthRow,
    AgentRow,
    AgentRowChanges,
    CircuitRow,
)


class MemoryAgents:
    """The agents of a gateway."""

    def __init__(
        self, revoke_keys: Callable[[str, int], None], is_referred_to: Callable[[str], bool]
    ) -> None:
        """`revoke_keys` ends the keys of an agent, by its id and the time; `is_referred_to` tells
        whether an event or an order names it."""
        self._revoke_keys = revoke_keys
        self._is_referred_to = is_referred_to
        self.rows: dict[str, AgentRow] = {}
        self._removed: dict[str, int] = {}
        self._credentials: dict[str, AgentCredential] = {}
        # URLs by owner, origin and agent.
        self._addresses: dict[tuple[str, str, str], str] = {}
        self._version = 0

    async def changes(self, after: int) -> AgentRowChanges:
        """Return what changed after a version."""
        agents = [row for row in self.rows.values() if row.version > after]
        agents.sort(key=lambda row: row.version)
        removed = [(id, version) for id, version in self._removed.items() if version > after]
        return AgentRowChanges(agents, removed, self._version)

    async def find(self, id: str) -> AgentRow | None:
        """Return an agent as it is stored at this moment."""
        return self.rows.get(id)

    async def former(self, address: AgentAddress) -> str:
        """Return the id of an agent that was at an address and was removed."""
        found = [
            (url != address.url, agent)
            for (owner, origin, agent), url in self._addresses.items()
            if (owner, origin) == address[:2] and agent not in self.rows
        ]
        return min(found, default=(False, ""))[1]

    async def put(
        self,
        row: AgentRow,
        *,
        address: AgentAddress | None = None,
        credential: AgentCredential | UnsetType | None = UNSET,
    ) -> AgentRow | None:
        """Store an agent unless it changed meanwhile."""
        before = self.rows.get(row.id)
        if (before.version if before else 0) != row.version:
            return None
        stored = row._replace(name=self._free_name(row.name, row.id), version=self._next())
        if before is not None:
            stored = stored._replace(
                status=before.status, last_seen_at=before.last_seen_at, beat_at=before.beat_at
            )
        self.rows[row.id] = stored
        self._put_address(row.id, address)
        if credential is None:
            self._credentials.pop(row.id, None)
        elif not isinstance(credential, UnsetType):
            self._credentials[row.id] = credential
        return stored

    async def put_health(self, rows: Sequence[AgentHealthRow]) -> list[int]:
        """Store the health of agents."""
        versions: list[int] = []
        for id, status, last_seen_at, beat_at in rows:
            versions.append(self._next())
            if id in self.rows:
                self.rows[id] = self.rows[id]._replace(
                    status=status,
                    last_seen_at=last_seen_at,
                    beat_at=beat_at,
                    version=versions[-1],
                )
        return versions

    async def put_circuits(self, rows: Sequence[CircuitRow]) -> None:
        """There is no other worker."""

    async def remove(self, id: str, now: int, address: AgentAddress | None = None) -> int:
        """Remove an agent and its credential, and revoke its keys."""
        self._put_address(id, address)
        if not self._is_referred_to(id):
            self._addresses = {key: url for key, url in self._addresses.items() if key[2] != id}
        self._revoke_keys(id, now)
        self.rows.pop(id, None)
        self._credentials.pop(id, None)
        self._removed[id] = self._next()
        return self._version

    async def credential(self, id: str) -> AgentCredential | None:
        """Return the credential for an agent."""
        return self._credentials.get(id)

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _free_name(self, wanted: str, id: str) -> str:
        taken = {row.name for row in self.rows.values() if row.id != id}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _put_address(self, id: str, address: AgentAddress | None) -> None:
        if address is not None:
            self._addresses[address.owner, address.origin, id] = address.url
