"""How many tasks one caller may begin.

It is counted where a task begins, in the engine, so every way to begin one counts: each binding and
dialect, runs of workflows and their steps, and what other agents of this process are called for. A
task that several agents race for counts once for each of them. A repetition of a message begins
nothing and does not count; nor does a task that the store refused.

Each serving process counts for itself, from its start.
"""

import math
import time
from collections.abc import Callable

from dragoman.config import Settings
from dragoman.errors import RateLimited
from dragoman.model.identity import Who
from dragoman.server.rates import Buckets, Rate, parse

USED_UP = "The quota of tasks is used up"


class Quota:
    """The tasks that all callers have begun."""

    def __init__(self, rate: Rate, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tasks = Buckets(rate)

    def begin(self, who: Who, count: int) -> None:
        """Count tasks that begin; raises `RateLimited` if there were enough, and counts none."""
        if wait := self._tasks.take(who, self._now(), count):
            raise RateLimited(USED_UP, retry_after=math.ceil(wait))

    def give_back(self, who: Who, count: int) -> None:
        """Count no more what came to nothing."""
        self._tasks.give_back(who, count)


def quota_of(settings: Settings, now: Callable[[], float] = time.monotonic) -> Quota | None:
    """Return the quota that the settings name; None: callers may begin any number of tasks."""
    rate = parse("quota", settings.quota)
    return None if rate is None else Quota(rate, now)
