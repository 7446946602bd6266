"""What a choice among agents is made of: a wish, candidates, whose turn it is, and the outcome."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from dragoman.gateway.performance import Figures
from dragoman.model.card import AgentSkill

PolicyName = Literal["trust", "cheapest", "fastest", "round-robin", "learning"]
POLICIES: tuple[PolicyName, ...] = ("trust", "cheapest", "fastest", "round-robin", "learning")

_MOST_TURNS = 10_000


class Wish(msgspec.Struct, frozen=True, kw_only=True):
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
    # Ids of agents that were tried, or are not wanted.
    exclude: frozenset[str] = frozenset()
    # How many do it at once.
    count: int = 1


class Candidate(NamedTuple):
    """An agent, as far as a choice needs to know it."""

    id: str
    name: str
    skills: Sequence[AgentSkill] = ()
    tags: Sequence[str] = ()
    description: str = ""
    status: str = "online"
    trust: int = 50
    # Micro-credits for a completed task.
    price: int = 0
    # At the skill that was asked for, or at whatever it does.
    figures: Figures = Figures()
    in_flight: int = 0
    is_default: bool = False
    # There is nobody else whom it could be for.
    is_only: bool = False
    # Nobody calls it at present, since calls failed: probes find out when that is over.
    is_open: bool = False
    # Of one that is not available: the seconds until that may change.
    retry_in: float = 0.0

    @property
    def is_available(self) -> bool:
        """Tell whether it may be chosen without having been named."""
        return self.status != "offline" and not self.is_open


class Choice(NamedTuple):
    """Who does it: ids, the best first, of which a task takes as many as it wants. The others are
    who to turn to next."""

    order: list[str]
    why: str
    # What was asked for, or what fits the text.
    skill: str = ""


class Memory:
    """Whose turn it is, by what was asked for."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}

    def take(self, key: str, agent: str) -> None:
        """Note who had the last turn."""
        self.last.pop(key, None)
        self.last[key] = agent
        if len(self.last) > _MOST_TURNS:
            del self.last[next(iter(self.last))]
