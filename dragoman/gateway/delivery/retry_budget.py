"""How many retries an agent gets: a share of its other requests.

When an agent fails, all its callers want to retry at once, and the retries alone can keep it down.
A budget counts the requests to one agent in the last seconds and grants retries in proportion, so
that a dead agent sees hardly more requests than its callers made.

    budget.requested()            # with every first attempt
    if not budget.may_retry():    # takes one retry, if one is left
        await turn.sleep(budget.retry_in())
"""

import time
from collections.abc import Callable

# Seconds that count, in steps of one: what is counted expires a whole step at a time.
WINDOW = 10
SHARE = 0.1
# Retries in a window that are granted to an agent with few requests.
FLOOR = 3


class Window:
    """Counts what happened in the last seconds, in memory that does not grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts = [0] * WINDOW
        self._second = int(now())
        self._total = 0

    def add(self) -> None:
        """Count one."""
        if int(self._now()) != self._second:
            self._advance()
        self._counts[self._second % WINDOW] += 1
        self._total += 1

    def total(self) -> int:
        """Return how many are in the window."""
        self._advance()
        return self._total

    def clear(self) -> None:
        """Forget them all."""
        self._counts = [0] * len(self._counts)
        self._total = 0

    def eases_in(self) -> float:
        """Return the seconds until the oldest expire; 0: there are none."""
        self._advance()
        size = len(self._counts)
        for age in range(size - 1, -1, -1):
            if self._counts[(self._second - age) % size]:
                return self._second - age + size - self._now()
        return 0.0

    def _advance(self) -> None:
        second = int(self._now())
        if second == self._second:
            return
        size = len(self._counts)
        # A step at a time, but never more steps than the window has.
        for passed in range(max(self._second + 1, second - size + 1), second + 1):
            self._total -= self._counts[passed % size]
            self._counts[passed % size] = 0
        self._second = max(self._second, second)


class RetryBudget:
    """The retries of one agent."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._requests = Window(now)
        self._retries = Window(now)

    def requested(self) -> None:
        """Count a first attempt; retries are counted when they are granted."""
        self._requests.add()

    def may_retry(self) -> bool:
        """Take one retry if one is left."""
        if not self.left():
            return False
        self._retries.add()
        return True

    def left(self) -> int:
        """Return how many retries are left at present."""
        return max(0, self._granted() - self._retries.total())

    def _granted(self) -> int:
        # Not the sum of both: the floor would then be on top of the share of a busy agent.
        return max(FLOOR, int(SHARE * self._requests.total()))

    def retry_in(self) -> float:
        """Return after how many seconds a retry may be granted, if none is at present."""
        return self._retries.eases_in()
