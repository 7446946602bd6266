"""What counts of the log of trust, pure: outcomes and ratings of requesters that ever paid another,
or of the local user; not of the agent's own owner; of each requester and day only so much."""

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from dragoman.gateway.trust.scores import ACTIVE_DAYS, MOST_VIOLATIONS, RECENT_DAYS, Facts
from dragoman.stores.interface.trust import (
    DAY_MS,
    UNIT,
    DayKey,
    SumWindow,
    TrustDay,
    TrustEventRow,
    TrustSums,
)

OUTCOMES = ("task_completed", "task_failed", "task_timeout")


class Folded(NamedTuple):
    """What a log says, before it is weighed."""

    days: dict[DayKey, TrustDay]
    payers: set[str]
    # When, by agent.
    violations: dict[str, list[int]]


def fold(events: Iterable[TrustEventRow]) -> Folded:
    """Return what events say, in whatever order and however often they come."""
    found: dict[DayKey, TrustDay] = {}
    payers: set[str] = set()
    violations: dict[str, dict[int, int]] = {}
    seen: dict[tuple[int, str], TrustEventRow] = {}

    def add(key: DayKey, more: TrustDay) -> None:
        found[key] = found.get(key, TrustDay()).plus(more)

    for event in events:
        if event.task:
            seen[event.task, event.type] = event
        elif event.type == "violation":
            # The number tells repetitions from violations of the same moment.
            violations.setdefault(event.agent, {})[event.number] = event.at
    for event in seen.values():
        key = (event.agent, event.requester, event.is_own, event.at // DAY_MS)
        if event.type == "task_paid":
            payers.add(event.requester)
        elif event.type == "rating_received":
            add(key, TrustDay(ratings=1, rating_sum=event.rating))
        elif event.type in OUTCOMES:
            resolved = seen.get((event.task, "dispute_resolved"))
            is_upheld = resolved is not None and resolved.outcome == "upheld"
            if event.type == "task_completed" and event.charged > 0 and not event.is_own:
                payers.add(event.requester)
            if event.type == "task_completed" and not is_upheld:
                add(key, TrustDay(completed=1, response_ms=event.response_ms))
            else:
                add(key, TrustDay(failed=1))
    return Folded(found, payers, {agent: sorted(at.values()) for agent, at in violations.items()})


def facts_of(sums: TrustSums | None, violations: Iterable[int], created_at: int, at: int) -> Facts:
    """Return the facts about an agent at a time, for a policy."""
    today = at // DAY_MS
    age = max(at - created_at, 0) // DAY_MS if created_at else 0
    times = sorted(one for one in violations if one // DAY_MS > today - RECENT_DAYS)
    last = zip(times, times[MOST_VIOLATIONS - 1 :], strict=False)
    is_blacklisted = any(late - early < DAY_MS for early, late in last)
    if sums is None:
        return Facts(age_days=age, violations=len(times), is_blacklisted=is_blacklisted)
    return Facts(
        completed=Fraction(sums.completed, UNIT),
        failed=Fraction(sums.failed, UNIT),
        response_ms=Fraction(sums.response_ms),
        ratings=Fraction(sums.ratings, UNIT),
        rating_sum=Fraction(sums.rating_sum, UNIT),
        age_days=age,
        recent_completed=Fraction(sums.recent_completed, UNIT),
        recent_failed=Fraction(sums.recent_failed, UNIT),
        active=Fraction(sums.active, UNIT),
        idle_days=max(today - sums.last_day, 0),
        violations=len(times),
        is_blacklisted=is_blacklisted,
    )


def sum_window(cap: int, at: int) -> SumWindow:
    """Return how sums are made at a time."""
    today = at // DAY_MS
    return SumWindow(cap, today - RECENT_DAYS, today - ACTIVE_DAYS)
