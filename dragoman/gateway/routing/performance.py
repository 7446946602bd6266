"""Recent performance of agents, by skill: successes, failures, latency, cost.

All counts halve in a day, so the figures follow an agent that changes. What was counted stays as it
is and a later outcome weighs more, which comes to the same and touches nothing else. Latencies are
counted in buckets that are a fifth wider each: a quantile is exact within that. The number of pairs
of agent and skill is limited; the pair that was not updated for longest is dropped.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

HALF_LIFE_MS = 24 * 3600 * 1000
MOST_PAIRS = 20_000
_GROWTH = math.log(1.2)
_LAST_BUCKET = 128
# Half-lives after which the weights begin anew, and counts below this are dropped.
_RENEWED_AFTER = 20.0
_NEGLIGIBLE = 1e-3


class Figures(NamedTuple):
    """The performance of an agent at a skill. Counts fade, so they are not whole numbers."""

    successes: float = 0.0
    failures: float = 0.0
    # Milliseconds; 0: unknown.
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    # Average micro-credits of a completed task.
    cost: float = 0.0
    # All tasks; this count does not fade.
    tasks: int = 0

    @property
    def observed(self) -> float:
        """Return the number of observations."""
        return self.successes + self.failures

    @property
    def success_rate(self) -> float:
        """Return the share of successes; one half without observations."""
        return (self.successes + 1) / (self.observed + 2)


_UNKNOWN = Figures()


class _Pair:
    __slots__ = (
        "at", "buckets", "cached", "cost", "failures", "since", "successes", "tasks", "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        # All of these as weighed: one outcome at the time `at` counts `weight`, and at the time
        # `since` it counted 1.
        self.successes = self.failures = self.cost = 0.0
        self.weight = 1.0
        self.since = 0
        self.buckets: dict[int, float] = {}
        self.tasks = 0
        self.at = 0
        # Cached until the next outcome: routing reads thousands at a time.
        self.cached: Figures | None = None

    def fade(self, at: int) -> None:
        if at <= self.at:
            # The clock was set back, or the outcome came late: nothing fades.
            return
        if not self.at:
            self.since = at
        self.at = at
        passed = (at - self.since) / HALF_LIFE_MS
        if passed > _RENEWED_AFTER:
            self._renew(0.5**passed)
        else:
            self.weight = 2.0**passed

    def _renew(self, left: float) -> None:
        """Have an outcome count 1 again; so much is left of what one counted then."""
        self.since, self.weight = self.at, 1.0
        self.successes *= left
        self.failures *= left
        self.cost *= left
        faded = {bucket: count * left for bucket, count in self.buckets.items()}
        self.buckets = {bucket: count for bucket, count in faded.items() if count > _NEGLIGIBLE}

    def quantile(self, part: float) -> float:
        left = part * sum(self.buckets.values())
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                # The middle of the bucket.
                return math.exp((bucket + 0.5) * _GROWTH) - 1
        return 0.0

    def figures(self) -> Figures:
        if self.cached is None:
            cost = self.cost / self.successes if self.successes else 0.0
            p50, p95 = self.quantile(0.5), self.quantile(0.95)
            counts = self.successes / self.weight, self.failures / self.weight
            self.cached = Figures(*counts, p50, p95, cost, self.tasks)
        return self.cached


class Performance:
    """The performance of all agents."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        self._most = most
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()

    def observe(
        self, agent: str, skill: str, *, is_success: bool, ms: int, cost: int, at: int
    ) -> None:
        """Add an outcome: for the skill, and for the agent as a whole."""
        for key in {(agent, skill), (agent, "")}:
            pair = self._pairs.get(key)
            if pair is None:
                pair = self._pairs[key] = _Pair()
            self._pairs.move_to_end(key)
            pair.fade(at)
            pair.cached = None
            pair.tasks += 1
            if is_success:
                pair.successes += pair.weight
                pair.cost += cost * pair.weight
                bucket = min(int(math.log(max(ms, 0) + 1) / _GROWTH), _LAST_BUCKET)
                pair.buckets[bucket] = pair.buckets.get(bucket, 0.0) + pair.weight
            else:
                pair.failures += pair.weight
        while len(self._pairs) > self._most:
            self._pairs.popitem(last=False)

    def figures(self, agent: str, skill: str = "") -> Figures:
        """Return the figures of an agent at a skill; without one, of the agent as a whole."""
        pair = self._pairs.get((agent, skill))
        return _UNKNOWN if pair is None else pair.figures()

    def forget(self, agent: str) -> None:
        """Drop an agent that was removed."""
        for key in [key for key in self._pairs if key[0] == agent]:
            del self._pairs[key]

    def __len__(self) -> int:
        return len(self._pairs)
