"""Which agent gets a task, and why: a pure choice among candidates.

The agent that was named; else one with the skill that was named; else the one whose skills fit the
text best; else the default agent. Among equals a policy decides, and every choice is explained in
one sentence. A trust score only ranks; that it must be so high is the requester's own wish.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from dragoman.errors import (
    A2AError,
    AgentOffline,
    InsufficientCredits,
    InvalidParams,
    NoAgentAvailable,
    TrustTooLow,
)
from dragoman.gateway.matching import match, profile, words_of
from dragoman.gateway.performance import Figures
from dragoman.model.card import AgentSkill
from dragoman.model.money import MICRO, credits_text

PolicyName = Literal["trust", "cheapest", "fastest", "round-robin", "learning"]
POLICIES: tuple[PolicyName, ...] = ("trust", "cheapest", "fastest", "round-robin", "learning")

# Milliseconds, and micro-credits, at which an agent loses half of what speed, and price, can take.
_SLOW_MS = 1_000
_DEAR = MICRO
# How much failing, waiting and paying weigh against each other; and the pull of the unknown.
_WAIT_WEIGHT, _PRICE_WEIGHT, _CURIOSITY = 0.2, 0.1, 0.35
_MOST_TURNS = 10_000


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a requester wants."""

    # Id or name.
    agent: str = ""
    skill: str = ""
    text: str = ""
    # All of them.
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
    # Nobody calls it at present, since calls failed: probes find out when that is over.
    is_open: bool = False

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


class _Fit(NamedTuple):
    candidate: Candidate
    # How well it fits; equal unless a text decides.
    match: int
    skill: str
    because: str


def choose(
    wish: Wish, candidates: Sequence[Candidate], policy: str = "", memory: Memory | None = None
) -> Choice:
    """Return who does it. Depends on nothing but the arguments; `memory` notes whose turn it was.

    Raises `NoAgentAvailable`, `TrustTooLow`, `InsufficientCredits` and `AgentOffline`.
    """
    policy = wish.policy or policy or "trust"
    if policy not in POLICIES:
        raise InvalidParams(f"must be one of {', '.join(POLICIES)}", field="policy")
    left = [one for one in candidates if one.id not in wish.exclude]
    if wish.agent:
        named = [one for one in left if wish.agent in (one.id, one.name)]
        if not named:
            raise NoAgentAvailable(f"No agent available: {wish.agent} is not registered")
        return _only(_affordable(wish, named)[0], wish.skill)
    fits = _fits(wish, left)
    _affordable(wish, [fit.candidate for fit in fits])
    fits = [fit for fit in fits if _refusal(wish, fit.candidate) is None]
    if not any(fit.candidate.is_available for fit in fits):
        names = ", ".join(sorted(fit.candidate.name for fit in fits)[:5])
        raise AgentOffline(f"Nobody who could do it answers at present: {names}; try again later")
    fits = [fit for fit in fits if fit.candidate.is_available]
    return _ranked(fits, policy, wish, memory or Memory())


def _only(named: Candidate, skill: str) -> Choice:
    at_present = "" if named.is_available else ", which does not answer at present"
    return Choice([named.id], f"{_about(named, '')}; it was asked for by name{at_present}", skill)


def _refusal(wish: Wish, one: Candidate) -> type[A2AError] | None:
    if one.trust < wish.min_trust:
        return TrustTooLow
    if wish.max_price is not None and one.price > wish.max_price:
        return InsufficientCredits
    return None


def _affordable(wish: Wish, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Refuse if nobody is trusted enough, or nobody who is does it for so little."""
    trusted = [one for one in candidates if one.trust >= wish.min_trust]
    if not trusted:
        best = max(one.trust for one in candidates)
        raise TrustTooLow(
            f"No agent for it is trusted {wish.min_trust} of 100; the most trusted has {best}"
        )
    if all(_refusal(wish, one) for one in trusted):
        least = min(one.price for one in trusted)
        raise InsufficientCredits(
            f"It costs {credits_text(least)} credits at least, more than the "
            f"{credits_text(wish.max_price or 0)} that were allowed"
        )
    return candidates


def _fits(wish: Wish, candidates: Sequence[Candidate]) -> list[_Fit]:
    """Return who may do it; raises `NoAgentAvailable`."""
    tagged = [one for one in candidates if wish.tags <= {*one.tags, *_skill_tags(one)}]
    found: list[_Fit] = []
    if wish.skill:
        found = [
            _Fit(one, 0, wish.skill, f"skill {wish.skill}")
            for one in tagged
            if any(wish.skill in (skill.id, skill.name) for skill in one.skills)
        ]
    elif wish.text:
        words = words_of(wish.text)
        found = [fit for one in tagged if (fit := _match(one, words)) is not None]
    if not found and not wish.skill and wish.tags:
        found = [_Fit(one, 0, "", f"tagged {', '.join(sorted(wish.tags))}") for one in tagged]
    if not found:
        found = [_Fit(one, 0, "", "the default agent") for one in candidates if one.is_default]
    if not found:
        asked = f" for the skill {wish.skill}" if wish.skill else ""
        raise NoAgentAvailable(f"No agent available{asked}: name one, or register one")
    return found


def _skill_tags(one: Candidate) -> list[str]:
    return [tag for skill in one.skills for tag in skill.tags]


def _match(one: Candidate, words: frozenset[str]) -> _Fit | None:
    known = profile(one.id, one.name, one.tags, one.description, one.skills)
    found = match(known, words)
    if found is None:
        return None
    because = f"fits the words {', '.join(sorted(found.words)[:5])}"
    if found.skill:
        because = f"skill {found.skill}, {because}"
    return _Fit(one, found.score, found.skill, because)


def _ranked(fits: list[_Fit], policy: PolicyName, wish: Wish, memory: Memory) -> Choice:
    key = wish.skill or max(fits, key=lambda fit: fit.match).skill
    if policy == "round-robin":
        last = memory.last.get(key, "")
        # Whoever comes after the one before, in the order of ids; then from the beginning again.
        fits.sort(key=lambda fit: (-fit.match, fit.candidate.id <= last, fit.candidate.id))
    else:
        rank = _learned(fits) if policy == "learning" else _RANKS[policy]
        # One that is unwell comes after all that are well, whatever else speaks for it.
        fits.sort(
            key=lambda fit: (
                -fit.match,
                fit.candidate.status != "online",
                *rank(fit.candidate),
                fit.candidate.id,
            )
        )
    memory.take(key, fits[0].candidate.id)
    first = fits[0]
    why = _about(first.candidate, first.because)
    if len(fits) > 1:
        why += f"; preferred over {_over(first, fits[1], policy)}"
        if len(fits) > 2:
            why += f" and {len(fits) - 2} more"
    return Choice([fit.candidate.id for fit in fits], why, first.skill)


Rank = Callable[[Candidate], tuple[float, ...]]


def _speed(one: Candidate) -> float:
    return one.figures.p50_ms or math.inf


_RANKS: dict[str, Rank] = {
    "trust": lambda one: (-one.trust, one.in_flight, _speed(one), one.price),
    "cheapest": lambda one: (one.price, -one.trust, one.in_flight),
    "fastest": lambda one: (_speed(one), one.in_flight, -one.trust),
}


def _learned(fits: Sequence[_Fit]) -> Rank:
    total = sum(fit.candidate.figures.observed for fit in fits)

    def rank(one: Candidate) -> tuple[float, ...]:
        return (-promise(one, total), -one.trust)

    return rank


def promise(one: Candidate, total: float) -> float:
    """Return what an agent may give at best, judged by what it gave: success, less waiting and
    price, more the less it was tried. What is under way counts as tried."""
    tried = one.figures.observed + one.in_flight
    curious = _CURIOSITY * math.sqrt(math.log(total + math.e) / (tried + 1))
    waiting = one.figures.p50_ms / (one.figures.p50_ms + _SLOW_MS)
    price = one.price / (one.price + _DEAR)
    return one.figures.success_rate - _WAIT_WEIGHT * waiting - _PRICE_WEIGHT * price + curious


def _about(one: Candidate, because: str) -> str:
    facts = [because] if because else []
    facts.append(f"trust {one.trust}")
    if one.figures.tasks:
        plural = "" if one.figures.tasks == 1 else "s"
        if one.figures.p50_ms:
            facts.append(
                f"{one.figures.p50_ms:.0f} ms median over {one.figures.tasks} task{plural}"
            )
        else:
            facts.append(f"none of {one.figures.tasks} task{plural} completed")
    facts.append(f"{credits_text(one.price)} credits" if one.price else "free")
    return f"{one.name}: {', '.join(facts)}"


def _over(first: _Fit, second: _Fit, policy: PolicyName) -> str:
    one = second.candidate
    if second.match < first.match:
        return f"{one.name}, which fits less"
    if one.status != first.candidate.status:
        return f"{one.name} ({one.status})"
    speed = f"{one.figures.p50_ms:.0f} ms" if one.figures.p50_ms else "speed unknown"
    told = {
        "trust": f"trust {one.trust}",
        "cheapest": f"{credits_text(one.price)} credits",
        "fastest": speed,
        "round-robin": "whose turn is next",
        "learning": f"{one.figures.success_rate * 100:.0f} % successful, {speed}, "
        f"{credits_text(one.price)} credits",
    }
    return f"{one.name} ({told[policy]})"
