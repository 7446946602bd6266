"""How often something may happen: `100/60s`, and which caller has used how much of it; the quota of
tasks is such a rate.

A rate is a bucket that is full at first and fills evenly: so many at once, and that many in each
window from then on. What is kept of a caller is one number, when its bucket will be full again.
Each serving process counts for itself, from its start, unless its store lets all replicas take from
one bucket (`http/sharing/`).
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

from dragoman.config import Settings
from dragoman.config.formats import Rate, read_rate
from dragoman.errors import RateLimited
from dragoman.model.identity import Who
from dragoman.shares import Seats

USED_UP = "The quota of tasks is used up"
# Callers whose use is remembered, for each rate: some megabytes at most.
MAX_KEYS = 65_536
# How many of the oldest are compared when one must make way.
_LOOK_AT = 8


class BucketLevel(NamedTuple):
    """How many there are to take, and in how many seconds the bucket is full."""

    left: int
    seconds: float


class Bucketing(Protocol):
    """One bucket for each key: those of this process, or those that all replicas share."""

    rate: Rate

    async def prepare(self, key: Hashable, count: int = 1) -> None:
        """Have as many ready to take, if there are as many. What follows takes them at once,
        before anything else is awaited."""
        ...

    def take(self, key: Hashable, now: float, count: int = 1) -> float:
        """Take so many, or none; return 0, or the seconds until there are as many to take."""
        ...

    def count(self, key: Hashable, now: float) -> None:
        """Count something that has happened already."""
        ...

    def give_back(self, key: Hashable, count: int = 1) -> None:
        """Put back what was taken for nothing."""
        ...

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until there is one to take, and take none."""
        ...

    def mark(self, key: Hashable) -> float:
        """Return a number that changes as soon as one is taken."""
        ...

    def left(self, key: Hashable, now: float) -> BucketLevel:
        """Return how many there are to take, and in how many seconds the bucket is full."""
        ...


class Rates(Protocol):
    """Makes buckets for the limits of a service."""

    # Whether other replicas take from them too: then `prepare` comes before `take`.
    is_shared: bool

    def buckets(self, name: str, rate: Rate) -> Bucketing:
        """Return the buckets of a limit."""
        ...

    def seats(self, name: str, most: int) -> Seats | None:
        """Return the counts of something of which a caller may have so many at once; None: this
        process counts alone."""
        ...


class Buckets(Bucketing):
    """One bucket for each key, in bounded memory."""

    def __init__(self, rate: Rate, most: int = MAX_KEYS) -> None:
        self.rate = rate
        self._most = most
        # Seconds until what one takes is there again; and how much may be missing from a bucket
        # that still gives one (the sum of many such steps is not exact).
        self._step = rate.seconds / rate.count
        self._slack = rate.seconds - self._step + rate.seconds * 1e-9
        # When each bucket is full again. A key that is not here has a full one.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float, count: int = 1) -> float:
        """Take so many, or none; return 0, or the seconds until there are as many to take. More
        than the bucket holds are never there."""
        full_at = self._full_at.get(key)
        if full_at is None:
            full_at = self._make_room(now) if len(self._full_at) >= self._most else now
        if full_at < now:
            full_at = now
        more = self._step * (count - 1)
        wait = full_at - now - self._slack + more
        if wait > 0:
            # Kept also if nothing was taken: it may stand in for one that made way.
            self._full_at[key] = full_at
            return wait
        self._full_at[key] = full_at + self._step + more
        return 0.0

    async def prepare(self, key: Hashable, count: int = 1) -> None:
        """Do nothing: all there is, is here."""

    def count(self, key: Hashable, now: float) -> None:
        """Count something that has happened already."""
        self.take(key, now)

    def give_back(self, key: Hashable, count: int = 1) -> None:
        """Put back what was taken for nothing."""
        if key in self._full_at:
            self._full_at[key] -= self._step * count

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until there is one to take, and take none."""
        return max(0.0, self._full_at.get(key, now) - now - self._slack)

    def mark(self, key: Hashable) -> float:
        """Return a number that changes as soon as one is taken."""
        return self._full_at.get(key, 0.0)

    def left(self, key: Hashable, now: float) -> BucketLevel:
        """Return how full a bucket is."""
        missing = max(0.0, self._full_at.get(key, now) - now)
        return BucketLevel(int((self.rate.seconds - missing) / self._step + 1e-6), missing)

    def _make_room(self, now: float) -> float:
        """Forget the least used bucket among the oldest; return when it is full again.

        The key that takes its place goes on from there, so that endless new names do not make full
        buckets.
        """
        least, full_at = None, math.inf
        for _ in range(min(_LOOK_AT, len(self._full_at))):
            key = next(iter(self._full_at))
            self._full_at.move_to_end(key)
            if self._full_at[key] < full_at:
                least, full_at = key, self._full_at[key]
            if full_at <= now:
                break
        del self._full_at[least]
        return full_at


class OwnRates(Rates):
    """Buckets of this process."""

    is_shared = False

    def buckets(self, name: str, rate: Rate) -> Bucketing:
        """Return the buckets of a limit."""
        return Buckets(rate)

    def seats(self, name: str, most: int) -> None:
        """Return nothing: there are no others."""


class TaskQuota:
    """The tasks that all callers have begun.

    They are counted where a task begins, in the engine, so every way to begin one counts: each
    binding and dialect, runs of workflows and their steps, calls from other agents of this process.
    A task that several agents race for counts once for each. A repeated message begins nothing and
    does not count, nor does a task that the store refused.
    """

    def __init__(
        self,
        tasks: Bucketing,
        now: Callable[[], float] = time.monotonic,
        *,
        is_shared: bool = False,
    ) -> None:
        self._now = now
        self._tasks = tasks
        # Whether `prepare` comes before `begin`.
        self.is_shared = is_shared

    async def prepare(self, who: Who) -> None:
        """Have one ready to begin, if there is one left."""
        await self._tasks.prepare(who)

    def begin(self, who: Who, count: int) -> None:
        """Count tasks that begin; raises `RateLimited` if there were enough, and counts none."""
        if wait := self._tasks.take(who, self._now(), count):
            raise RateLimited(USED_UP, retry_after=math.ceil(wait))

    def give_back(self, who: Who, count: int) -> None:
        """Give back what was counted for tasks that did not begin."""
        self._tasks.give_back(who, count)


def quota_of(
    settings: Settings, now: Callable[[], float] = time.monotonic, rates: Rates | None = None
) -> TaskQuota | None:
    """Return the quota that the settings name; None: callers may begin any number of tasks."""
    rate = read_rate(settings.http.quota)
    if rate is None:
        return None
    rates = rates or OwnRates()
    return TaskQuota(rates.buckets("tasks", rate), now, is_shared=rates.is_shared)
