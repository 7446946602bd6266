"""The values of a choice among agents: the request, the candidates, the turns, the outcome."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from dragoman.gateway.routing.performance import Figures
from dragoman.model.card import AgentSkill

PolicyName = Literal["trust", "cheapest", "fastest", "round-robin", "learning"]
POLICIES: tuple[PolicyName, ...] = ("trust", "cheapest", "fastest", "round-robin", "learning")

_MOST_SKILLS = 10_000


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a requester wants."""

    # Id or name.
    agent: str = ""
    skill: str = ""
    text: str = ""
    # All of them, of the agent or of its skills.
    tags: frozenset[str] = frozenset()
    min_trust: int = 0
    # Micro-credits; None: whatever it costs.
    max_price: int | None = None
    policy: str = ""
    # Ids of agents that are not considered.
    exclude: frozenset[str] = frozenset()


class Candidate(NamedTuple):
    """What a choice needs to know of an agent."""

    id: str
    name: str
    skills: Sequence[AgentSkill] = ()
    tags: Sequence[str] = ()
    description: str = ""
    status: str = "online"
    trust: int = 50
    # Micro-credits for a completed task.
    price: int = 0
    # At the requested skill, or at all its skills.
    figures: Figures = Figures()
    in_flight: int = 0
    is_default: bool = False
    # No other agent could get the task.
    is_only: bool = False
    # Its circuit is open: it is not called until a probe or a trial call succeeds.
    is_open: bool = False
    # If it is not available: the seconds until that may change.
    retry_in: float = 0.0

    @property
    def is_available(self) -> bool:
        """Tell whether it may be chosen without being named."""
        return self.status != "offline" and not self.is_open


class Choice(NamedTuple):
    """The ids of agents, best first. A task takes as many as it needs; the others are substitutes
    in that order."""

    order: list[str]
    why: str
    # The requested skill, or the one that fits the text.
    skill: str = ""


class RoutingMemory:
    """Which agent had the last turn, by skill."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}

    def take(self, key: str, agent: str) -> None:
        """Note which agent had the last turn."""
        self.last.pop(key, None)
        self.last[key] = agent
        if len(self.last) > _MOST_SKILLS:
            del self.last[next(iter(self.last))]
