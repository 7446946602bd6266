"""Which tasks of an agent a new version of it does, or does besides. Pure but for the table, which
follows the rollouts that are stored.

Whether a task is in the share follows from its id and the rollout's: every process decides the
same, at any time.
"""

import hashlib
from collections.abc import Iterable

import msgspec


class Canary(msgspec.Struct, frozen=True):
    """A new version that does a share of an agent's tasks."""

    rollout: str
    agent: str
    candidate: str
    # Above 0, up to 1.
    share: float


class Canaries:
    """The new versions that do tasks at present, by the agents they may replace."""

    def __init__(self) -> None:
        self._of: dict[str, Canary] = {}

    def follow(self, found: Iterable[Canary]) -> None:
        """Replace the table."""
        self._of = {one.agent: one for one in found}

    def has(self, agent: str) -> bool:
        """Tell whether a new version does tasks of an agent."""
        return agent in self._of

    def candidate(self, agent: str, task_id: str) -> str:
        """Return the id of the version that does a task in the agent's place; empty: none does."""
        found = self._of.get(agent)
        if found is None or not in_share(found.rollout, task_id, found.share):
            return ""
        return found.candidate


def in_share(rollout: str, task_id: str, share: float) -> bool:
    """Tell whether a task is one of the share that a rollout is about."""
    digest = hashlib.blake2b(f"{rollout} {task_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
