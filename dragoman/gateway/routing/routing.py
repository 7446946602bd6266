"""Which agent gets a task, and why: a pure choice among candidates.

The named agent; else one with the named skill; else the one whose skills fit the text best; else
the default agent; else, where no skill was named, the only agent. Among equals a policy decides,
and every choice is explained in one sentence. A trust score only ranks, unless the requester set a
minimum.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dragoman.errors import (
    A2AError,
    AgentOffline,
    InsufficientCredits,
    InvalidParams,
    NoAgentAvailable,
    TrustTooLow,
)
from dragoman.gateway.routing.candidates import (
    POLICIES,
    Candidate,
    Choice,
    PolicyName,
    RoutingMemory,
    RoutingRequest,
)
from dragoman.gateway.routing.matching import match, profile, words_of
from dragoman.model.money import MICRO, credits_text

# Milliseconds, and micro-credits, at which half of the speed, and price, penalty applies.
_SLOW_MS = 1_000
_EXPENSIVE = MICRO
# Weights of latency and price against success, and of exploration.
_LATENCY_WEIGHT, _PRICE_WEIGHT, _EXPLORATION = 0.2, 0.1, 0.5


class _Fit(NamedTuple):
    candidate: Candidate
    # How well it fits; equal unless a text decides.
    match: int
    skill: str
    because: str


def choose(
    request: RoutingRequest,
    candidates: Sequence[Candidate],
    policy: str = "",
    memory: RoutingMemory | None = None,
) -> Choice:
    """Return the agents for a request. Depends on its arguments only; `memory` notes the turn.

    Raises `NoAgentAvailable`, `TrustTooLow`, `InsufficientCredits` and `AgentOffline`.
    """
    policy = request.policy or policy or "trust"
    if policy not in POLICIES:
        raise InvalidParams(f"must be one of {', '.join(POLICIES)}", field="policy")
    left = [one for one in candidates if one.id not in request.exclude]
    if request.agent:
        named = [one for one in left if request.agent in (one.id, one.name)]
        if not named:
            raise NoAgentAvailable(f"No agent available: {request.agent} is not registered")
        return choose_named(request, named[0])
    fits = _fits(request, left)
    _affordable(request, [fit.candidate for fit in fits])
    fits = [fit for fit in fits if _refusal(request, fit.candidate) is None]
    if not any(fit.candidate.is_available for fit in fits):
        names = ", ".join(sorted(fit.candidate.name for fit in fits)[:5])
        wait = min(fit.candidate.retry_in for fit in fits)
        raise AgentOffline(
            f"No agent that could do it answers at present: {names}; try again later",
            retryAfter=max(1, math.ceil(wait)),
        )
    fits = [fit for fit in fits if fit.candidate.is_available]
    return _ranked(fits, policy, request, memory or RoutingMemory())


def choose_named(request: RoutingRequest, named: Candidate) -> Choice:
    """Return the agent that a request names; raises `TrustTooLow` and `InsufficientCredits`."""
    if _refusal(request, named) is not None:
        _affordable(request, [named])
    at_present = "" if named.is_available else ", which does not answer at present"
    why = f"{_about(named, '')}; it was asked for by name{at_present}"
    return Choice([named.id], why, request.skill)


def _refusal(request: RoutingRequest, one: Candidate) -> type[A2AError] | None:
    if one.trust < request.min_trust:
        return TrustTooLow
    if request.max_price is not None and one.price > request.max_price:
        return InsufficientCredits
    return None


def _affordable(request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Refuse if no agent is trusted enough, or none of the trusted ones is cheap enough."""
    trusted = [one for one in candidates if one.trust >= request.min_trust]
    if not trusted:
        best = max(one.trust for one in candidates)
        raise TrustTooLow(
            f"No agent for it is trusted {request.min_trust} of 100; the most trusted has {best}"
        )
    if all(_refusal(request, one) for one in trusted):
        least = min(one.price for one in trusted)
        raise InsufficientCredits(
            f"It costs {credits_text(least)} credits at least, more than the "
            f"{credits_text(request.max_price or 0)} that were allowed"
        )
    return candidates


def _fits(request: RoutingRequest, candidates: Sequence[Candidate]) -> list[_Fit]:
    """Return the agents that may do it; raises `NoAgentAvailable`."""
    tagged = candidates
    if request.tags:
        tagged = [
            one
            for one in candidates
            if request.tags <= {*one.tags, *(tag for skill in one.skills for tag in skill.tags)}
        ]
    found: list[_Fit] = []
    if request.skill:
        found = [
            _Fit(one, 0, request.skill, f"skill {request.skill}")
            for one in tagged
            if _has(one, request.skill)
        ]
    elif request.text:
        words = words_of(request.text)
        found = [fit for one in tagged if (fit := _match(one, words)) is not None]
        # An agent that shares a word by chance does not stand in for one that fits.
        best = max((fit.match for fit in found), default=0)
        found = [fit for fit in found if 2 * fit.match >= best]
    if not found and not request.skill and request.tags:
        found = [_Fit(one, 0, "", f"tagged {', '.join(sorted(request.tags))}") for one in tagged]
    if not found:
        found = [_Fit(one, 0, "", "the default agent") for one in candidates if one.is_default]
    if not found and not request.skill and not request.tags:
        found = [_Fit(one, 0, "", "the only agent") for one in candidates if one.is_only]
    if not found:
        purpose = f" for the skill {request.skill}" if request.skill else ""
        raise NoAgentAvailable(
            f"No agent available{purpose}: name one, or register one with --default for tasks that"
            " match no other agent"
        )
    return found


def only(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the agent that gets a task without a match, among all that serve a requester: the only
    one, or the only one that answers. With several there is none."""
    available: list[Candidate] = []
    away: list[Candidate] = []
    for one in candidates:
        (available if one.is_available else away).append(one)
        if len(available) > 1:
            # There may be thousands more.
            return []
    found = available or away
    return [found[0]._replace(is_only=True)] if len(found) == 1 else []


def _has(one: Candidate, wanted_skill: str) -> bool:
    for skill in one.skills:  # noqa: SIM110 - runs for thousands; thrice as fast
        if wanted_skill in (skill.id, skill.name):
            return True
    return False


def _match(one: Candidate, words: frozenset[str]) -> _Fit | None:
    known = profile(one.id, one.name, one.tags, one.description, one.skills)
    found = match(known, words)
    if found is None:
        return None
    because = f"fits the words {', '.join(sorted(found.words)[:5])}"
    if found.skill:
        because = f"skill {found.skill}, {because}"
    return _Fit(one, found.score, found.skill, because)


def _ranked(
    fits: list[_Fit], policy: PolicyName, request: RoutingRequest, memory: RoutingMemory
) -> Choice:
    key = request.skill or min(fits, key=lambda fit: (-fit.match, fit.candidate.id)).skill
    if policy == "round-robin":
        last = memory.last.get(key, "")
        # The agent after the last one in the order of ids; then from the beginning again.
        fits.sort(key=lambda fit: (-fit.match, fit.candidate.id <= last, fit.candidate.id))
    else:
        rank = _learned(fits) if policy == "learning" else _RANKS[policy]
        # A degraded agent comes after all that are online.
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
    """Return the upper bound of an agent's value: its success rate, less latency and price, plus an
    exploration term that shrinks with every try. Tasks under way count as tries."""
    tried = one.figures.observed + one.in_flight
    exploration = _EXPLORATION * math.sqrt(math.log(total + math.e) / (tried + 1))
    latency = one.figures.p50_ms / (one.figures.p50_ms + _SLOW_MS)
    price = one.price / (one.price + _EXPENSIVE)
    return (
        one.figures.success_rate - _LATENCY_WEIGHT * latency - _PRICE_WEIGHT * price + exploration
    )


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
    if policy in _RANKS and _RANKS[policy](one)[0] == _RANKS[policy](first.candidate)[0]:
        return f"{one.name}, its equal"
    reasons = {
        "trust": f"trust {one.trust}",
        "cheapest": f"{credits_text(one.price)} credits",
        "fastest": speed,
        "round-robin": "whose turn is next",
        "learning": f"{one.figures.success_rate * 100:.0f} % successful, {speed}, "
        f"{credits_text(one.price)} credits",
    }
    return f"{one.name} ({reasons[policy]})"
