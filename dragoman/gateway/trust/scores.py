"""How far an agent is trusted: a number from 0 to 100 as a pure function of observed facts.

A policy is such a function with a name. All arithmetic is exact and rounds half up once, at the
end, so the same facts give the same number, bit for bit. A score ranks agents and nothing else: it
grants no access. What counts as a fact, and how much of it, is decided in `counting`.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

# What an agent is registered with; the first outcome that counts replaces it.
REGISTERED = 50
_HALF = Fraction(50)
_WHOLE = Fraction(100)
_NONE = Fraction(0)

_BADGES = ((90, "Verified Elite"), (70, "Trusted"), (50, "Established"), (0, "New"))
LEVELS = ((90, "verified"), (70, "high"), (50, "medium"), (25, "low"), (0, "untrusted"))

# Violations within a day that end all trust.
MOST_VIOLATIONS = 3
# Days: how far back violations and completions matter, sessions matter, and until idleness does.
RECENT_DAYS = 90
ACTIVE_DAYS = 30
IDLE_DAYS = 30
_LONGEST_DECAY = 100


class Facts(NamedTuple):
    """What was observed of one agent. Counts may be fractions: of a requester that had very many
    tasks in a day, each counts less than one."""

    completed: Fraction = _NONE
    failed: Fraction = _NONE
    # Milliseconds that the completed ones took together.
    response_ms: Fraction = _NONE
    ratings: Fraction = _NONE
    # The sum of them, each from 1 to 5.
    rating_sum: Fraction = _NONE
    # Whole days since it was registered.
    age_days: int = 0
    # Of the last `RECENT_DAYS` days.
    recent_completed: Fraction = _NONE
    recent_failed: Fraction = _NONE
    # Tasks of the last `ACTIVE_DAYS` days.
    active: Fraction = _NONE
    # Whole days since the last outcome or rating.
    idle_days: int = 0
    # Of the last `RECENT_DAYS` days; and whether too many of them came at once.
    violations: int = 0
    is_blacklisted: bool = False
    # How it pays, from 0 to 100; not observed so far.
    credit: Fraction = _HALF

    @property
    def total(self) -> Fraction:
        """Return how many outcomes count."""
        return self.completed + self.failed

    @property
    def is_observed(self) -> bool:
        """Tell whether anything is known that counts."""
        return bool(self.total or self.ratings or self.violations)


class Component(NamedTuple):
    """One part of a score."""

    name: str
    # From 0 to 100, and how much of the score it makes.
    value: Fraction
    weight: Fraction
    # Why it has that value, as a sentence.
    why: str

    @property
    def points(self) -> Fraction:
        """Return what it adds to the score."""
        return self.value * self.weight


class Score(NamedTuple):
    """A number, and how it came about."""

    value: int
    badge: str
    components: tuple[Component, ...]
    # What was done to the sum of the components, if anything.
    note: str = ""


Policy = Callable[[Facts], Score]


def round_half_up(value: Fraction) -> int:
    """Return the nearest whole number; of two equally near, the higher."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def clamp(value: Fraction) -> Fraction:
    """Return the value, or the end of 0..100 that it is beyond."""
    return min(max(value, _NONE), _WHOLE)


def badge(score: int) -> str:
    """Return the word for a score of the default policy."""
    return next(word for least, word in _BADGES if score >= least)


def level(score: int) -> str:
    """Return the word for a score of the policy `corvid`."""
    return next(word for least, word in LEVELS if score >= least)


def nexus(facts: Facts) -> Score:
    """Weigh reliability, speed, quality and tenure: the default policy."""
    components = (
        _reliability(facts),
        _speed(facts),
        _quality(facts, Fraction(25, 100)),
        Component(
            "tenure",
            clamp(Fraction(max(facts.age_days, 0), 365) * 100),
            Fraction(15, 100),
            f"registered for {max(facts.age_days, 0)} days; 365 are all it can give",
        ),
    )
    value = _sum(components)
    return Score(value, badge(value), components)


def _reliability(facts: Facts) -> Component:
    weight = Fraction(40, 100)
    if not facts.total:
        return Component("reliability", _HALF, weight, "no outcome counts yet: half is assumed")
    value = clamp(facts.completed / facts.total * 100)
    why = f"{_text(facts.completed)} of {_text(facts.total)} tasks that count were completed"
    return Component("reliability", value, weight, why)


def _speed(facts: Facts) -> Component:
    weight = Fraction(20, 100)
    if not facts.completed:
        return Component("speed", _HALF, weight, "no completed task counts yet: half is assumed")
    seconds = facts.response_ms / facts.completed / 1000
    value = clamp(100 - seconds / 300 * 50)
    why = f"completed tasks took {_text(seconds)} s on average; 0 s would be 100, 600 s are 0"
    return Component("speed", value, weight, why)


def _quality(facts: Facts, weight: Fraction, name: str = "quality") -> Component:
    if not facts.ratings:
        return Component(name, _HALF, weight, "no rating counts yet: half is assumed")
    average = facts.rating_sum / facts.ratings
    why = f"rated {_text(average)} of 5 on average by {_text(facts.ratings)} ratings that count"
    return Component(name, clamp((average - 1) / 4 * 100), weight, why)


def corvid(facts: Facts) -> Score:
    """Weigh recent completion, ratings, credit, security and activity; let it fade when idle."""
    components = (
        _completion(facts),
        _quality(facts, Fraction(25, 100), "peerRating"),
        Component(
            "creditPattern",
            clamp(facts.credit),
            Fraction(15, 100),
            "how it pays is not observed: half is assumed",
        ),
        Component(
            "security",
            clamp(Fraction(100 - 20 * facts.violations)),
            Fraction(20, 100),
            f"{facts.violations} violations in {RECENT_DAYS} days, 20 off for each",
        ),
        Component(
            "activity",
            clamp(facts.active * 10),
            Fraction(10, 100),
            f"{_text(facts.active)} tasks in {ACTIVE_DAYS} days, 10 for each",
        ),
    )
    if facts.is_blacklisted:
        note = f"{MOST_VIOLATIONS} violations within 24 hours: blacklisted"
        return Score(0, level(0), components, note)
    fading, note = _fading(facts.idle_days)
    value = round_half_up(clamp(sum((one.points for one in components), _NONE) * fading))
    return Score(value, level(value), components, note)


def _completion(facts: Facts) -> Component:
    total = facts.recent_completed + facts.recent_failed
    weight = Fraction(30, 100)
    if total < 3:
        why = f"fewer than 3 tasks count in {RECENT_DAYS} days: half is assumed"
        return Component("completion", _HALF, weight, why)
    value = clamp(facts.recent_completed / total * 100)
    done, all_ = _text(facts.recent_completed), _text(total)
    return Component("completion", value, weight, f"{done} of {all_} tasks in {RECENT_DAYS} days")


def _fading(idle_days: int) -> tuple[Fraction, str]:
    weeks = (idle_days - IDLE_DAYS) // 7
    if weeks <= 0:
        return Fraction(1), ""
    # The floor is reached long before: without the bound, old dates would make huge numbers.
    left = max(Fraction(95, 100) ** min(weeks, _LONGEST_DECAY), Fraction(1, 10))
    return left, f"idle for {idle_days} days: {_text(left * 100)} % of it is left"


def _sum(components: tuple[Component, ...]) -> int:
    return round_half_up(clamp(sum((one.points for one in components), _NONE)))


def decimal(value: Fraction) -> float:
    """Return a number of two decimals for JSON, rounded half up: the same everywhere."""
    return round_half_up(value * 100) / 100


def _text(value: Fraction) -> str:
    return f"{decimal(value):g}" if value < 1_000_000 else str(round_half_up(value))


DEFAULT_POLICY = "nexus"
POLICIES: Mapping[str, Policy] = {"nexus": nexus, "corvid": corvid}
# What a policy calls a score.
WORDS: Mapping[str, Callable[[int], str]] = {"nexus": badge, "corvid": level}


def score(facts: Facts, policy: str = DEFAULT_POLICY) -> Score:
    """Return what the policy makes of the facts; an agent nothing is known of stays as it was
    registered, however old: so a new one never starts above it."""
    found = POLICIES[policy](facts)
    if facts.is_observed:
        return found
    note = f"nothing that counts was observed yet: every agent begins with {REGISTERED}"
    return Score(REGISTERED, WORDS[policy](REGISTERED), found.components, note)


class TrustRules(NamedTuple):
    """How events become a score."""

    policy: str = DEFAULT_POLICY
    # For how many tasks, and ratings, of an agent one requester's day counts at most.
    cap: int = 20
