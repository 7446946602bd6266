"""Registered agents: their rows, their credentials, where they are and were, and what changed.

What a row's body says is the gateway's affair. Every change has a version, which grows over all
agents: a process reads what changed after the version it knows. Every promise is a test in
`dragoman.testing.promises.agents`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType


class AgentRow(NamedTuple):
    """An agent as a store has it."""

    id: str
    name: str
    body: bytes
    status: str
    last_seen_at: int
    beat_at: int
    # Of its last change; 0: it is not stored yet.
    version: int = 0


class AgentHealthRow(NamedTuple):
    """The part of an agent that changes often."""

    id: str
    status: str
    last_seen_at: int
    beat_at: int


class CircuitRow(NamedTuple):
    """A circuit of an agent: whether calls may go to one of its addresses."""

    agent: str
    url: str
    # Whom it stops: one principal, by its text; None: every caller.
    caller: str | None
    # For how many milliseconds from now it is open; 0: the time is over, and one call may try it.
    open_for: int
    # How often it opened in a row; 0: it is closed.
    opened: int


class AgentRowChanges(NamedTuple):
    """What happened after a version."""

    agents: Sequence[AgentRow]
    # Ids and versions.
    removed: Sequence[tuple[str, int]]
    version: int
    circuits: Sequence[CircuitRow] = ()


class AgentAddress(NamedTuple):
    """Where an owner's agent is: by it an agent that was removed is recognised."""

    owner: str
    origin: str
    url: str


class CredentialLabel(msgspec.Struct, frozen=True, rename="camel"):
    """What of a credential is in clear: its agent, its kind, and the only places it may go to."""

    agent: str
    kind: str
    header: str = ""
    to: list[str] = []


class AgentCredential(NamedTuple):
    """A credential for an agent. The secret is sealed together with the label."""

    label: CredentialLabel
    secret: bytes

    def __repr__(self) -> str:
        return f"AgentCredential(label={self.label!r}, secret='***')"


class AgentStore(Protocol):
    """The agents of a gateway."""

    async def changes(self, after: int) -> AgentRowChanges:
        """Return what changed after a version."""
        ...

    async def find(self, id: str) -> AgentRow | None:
        """Return an agent as it is stored at this moment."""
        ...

    async def former(self, address: AgentAddress) -> str:
        """Return the id of an agent of the same owner that was at this origin and was removed;
        empty: there is none. Of several: the one of the very URL, then the first registered."""
        ...

    async def put(
        self,
        row: AgentRow,
        *,
        address: AgentAddress | None = None,
        credential: AgentCredential | UnsetType | None = UNSET,
    ) -> AgentRow | None:
        """Store an agent, with its address and its credential if they are given, in one
        transaction. `credential=None` removes the one it has.

        `row.version` is the version that the caller read, 0 for a new agent. Returns None, and
        changes nothing, if the stored one is another. A name that another agent has gets a number
        at its end. The health of an agent that is stored stays as it is. Returns the row with its
        name and its version."""
        ...

    async def put_health(self, rows: Sequence[AgentHealthRow]) -> list[int]:
        """Store the health of agents in one transaction; return the versions."""
        ...

    async def put_circuits(self, rows: Sequence[CircuitRow]) -> None:
        """Tell other workers of circuits that opened or closed. A store whose workers are all on
        one machine may keep none of it: then each worker finds out by itself."""
        ...

    async def remove(self, id: str, now: int, address: AgentAddress | None = None) -> int:
        """Remove an agent and its credential, and revoke its keys; return the version. Its
        addresses stay only if an event or an order refers to it."""
        ...

    async def credential(self, id: str) -> AgentCredential | None:
        """Return the credential for an agent; raises `StoreUnavailable` if it cannot be opened."""
        ...
