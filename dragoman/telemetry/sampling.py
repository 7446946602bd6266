"""Figures of the last minutes: what was counted between two looks, in a ring in memory.

The counts are those of the page of metrics, so all workers on one port are in them. A sample costs
what a scrape costs, and is taken whether or not a console is open.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dragoman.telemetry.metrics import BucketCounts, Family, Labels

EVERY = 5.0
_MINUTES = 15
KEPT = int(_MINUTES * 60 / EVERY)
_SENDS = ("SendMessage", "StreamMessage")
_GOOD = "ok"


class AgentFigures(NamedTuple):
    """What one agent did between two looks; milliseconds of its code."""

    started: float
    ended: float
    failed: float
    p50: float
    p99: float


class SampledFigures(NamedTuple):
    """What happened between two looks, and how it was at the second."""

    number: int
    # Milliseconds since the epoch, and seconds since the look before.
    at: int
    seconds: float
    started: float
    ended: float
    failed: float
    # Tasks that work, and those that wait for people: the operator API fills them in, from the
    # store.
    running: float
    waiting: float
    streams: float
    requests: float
    errors: float
    refused: float
    # Milliseconds from a request that sends a message to its answer.
    p50: float
    p99: float
    memory: float
    agents: Mapping[str, AgentFigures]


class SampleRing:
    """The last samples."""

    def __init__(self, read: Callable[[], Sequence[Family]]) -> None:
        self._read = read
        self._before: dict[str, Family] | None = None
        self._seen_at = 0
        self._number = 0
        self.samples: deque[SampledFigures] = deque(maxlen=KEPT)

    def look(self, at: int) -> None:
        """Count what happened since the last look; the first one has nothing to compare with."""
        now = {family.name: family for family in self._read()}
        if self._before is not None:
            self._number += 1
            seconds = (at - self._seen_at) / 1000
            self.samples.append(_between(self._number, at, seconds, self._before, now))
        self._before, self._seen_at = now, at


def _between(
    number: int, at: int, seconds: float, before: dict[str, Family], now: dict[str, Family]
) -> SampledFigures:
    counts = _Counts(before, now)
    started = counts.grown("dragoman_tasks_started_total")
    ended = counts.grown("dragoman_tasks_ended_total")
    requests = counts.grown("dragoman_requests_total")
    send = counts.buckets("dragoman_request_seconds")
    sends = [found for labels, found in send.items() if labels[0] in _SENDS]
    bounds = counts.bounds("dragoman_request_seconds")
    return SampledFigures(
        number=number,
        at=at,
        seconds=seconds,
        started=sum(started.values()),
        ended=sum(ended.values()),
        failed=sum(count for labels, count in ended.items() if labels[1] == "failed"),
        running=0,
        waiting=0,
        streams=counts.value("dragoman_streams_open"),
        requests=sum(requests.values()),
        errors=sum(count for labels, count in requests.items() if labels[3] != _GOOD),
        refused=sum(counts.grown("dragoman_refusals_total").values()),
        p50=_quantile(bounds, sends, 0.5),
        p99=_quantile(bounds, sends, 0.99),
        memory=counts.value("process_resident_memory_bytes"),
        agents=_agents(counts, started, ended),
    )


def _agents(
    counts: "_Counts", started: Mapping[Labels, float], ended: Mapping[Labels, float]
) -> dict[str, AgentFigures]:
    turns = counts.buckets("dragoman_turn_seconds")
    bounds = counts.bounds("dragoman_turn_seconds")
    names = {labels[0] for labels in (*started, *ended, *turns)}
    return {
        name: AgentFigures(
            started=started.get((name,), 0),
            ended=sum(count for labels, count in ended.items() if labels[0] == name),
            failed=ended.get((name, "failed"), 0),
            p50=_quantile(bounds, [turns[name,]] if (name,) in turns else [], 0.5),
            p99=_quantile(bounds, [turns[name,]] if (name,) in turns else [], 0.99),
        )
        for name in sorted(names)
    }


class _Counts:
    """Counts of two looks."""

    def __init__(self, before: dict[str, Family], now: dict[str, Family]) -> None:
        self._before = before
        self._now = now

    def grown(self, name: str) -> dict[Labels, float]:
        """Return by how much each series grew; a worker that left took its counts along."""
        earlier = dict(self._before[name].values) if name in self._before else {}
        values = self._now[name].values if name in self._now else []
        grown = {labels: value - earlier.get(labels, 0) for labels, value in values}
        return {labels: value for labels, value in grown.items() if value > 0}

    def value(self, name: str) -> float:
        """Return the sum of a gauge."""
        return sum(value for _, value in self._now[name].values) if name in self._now else 0

    def bounds(self, name: str) -> tuple[float, ...]:
        """Return the bounds of a histogram."""
        return self._now[name].bounds if name in self._now else ()

    def buckets(self, name: str) -> dict[Labels, list[int]]:
        """Return what came into each bucket of each series."""
        earlier: dict[Labels, BucketCounts] = {}
        if name in self._before:
            earlier = dict(self._before[name].buckets)
        found: dict[Labels, list[int]] = {}
        for labels, now in self._now[name].buckets if name in self._now else []:
            then = earlier[labels].counts if labels in earlier else [0] * len(now.counts)
            grown = [max(0, a - b) for a, b in zip(now.counts, then, strict=True)]
            if any(grown):
                found[labels] = grown
        return found


def _quantile(bounds: Sequence[float], series: Sequence[Sequence[int]], share: float) -> float:
    """Return the milliseconds within which a share of what was counted lies, between the bounds of
    its bucket by proportion; 0: nothing was counted."""
    counts = [sum(bucket) for bucket in zip(*series, strict=True)]
    left = share * sum(counts)
    if not left:
        return 0.0
    lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if left <= count:
            return 1000 * (lower + (bound - lower) * left / count)
        left -= count
        lower = bound
    # Beyond the last bound nothing more is known.
    return 1000 * lower
