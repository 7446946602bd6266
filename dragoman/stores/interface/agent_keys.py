"""Keys of registered agents: hashes only. What a key opens is not decided here.

Every promise is a test in `dragoman.testing.promises.agent_keys`.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from dragoman.model.agent_key import AgentKeyRow

# What became of a key that was to be stored.
KeyStored = Literal["stored", "no_agent", "full"]


# How long a key that ended is shown, in milliseconds.
REMEMBER_MS = 90 * 24 * 3600 * 1000


class AgentKeyStore(Protocol):
    """The keys of a gateway's agents. A key that ended is still shown for 90 days."""

    def version(self) -> int:
        """Return how often keys have changed. Called on the event loop for every caller, so it
        must be quick.

        What this worker changed counts at once. A store that others share over a network may know
        of what those changed a second later: it has the keys in memory and follows."""
        ...

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that were made or ended after a version. Called on the event loop."""
        ...

    async def refresh(self) -> None:
        """Know of everything that others changed before this moment."""
        ...

    async def of_agent(self, agent: str) -> Sequence[AgentKeyRow]:
        """Return the keys of an agent, in the order they were made."""
        ...

    async def put(self, row: AgentKeyRow, *, most: int) -> KeyStored:
        """Store a key, unless its agent was removed or has `most` keys that are valid."""
        ...

    async def revoke(self, id: str, now: int) -> bool:
        """End a key; return whether it was not revoked before."""
        ...
