"""How many second tries an agent is worth: a share of what it is asked anyway.

When an agent fails, everyone who calls it wants to try again at once, and the tries alone can keep
it down. A budget counts what one agent was asked in the last seconds and grants tries in
proportion, so that a dead agent sees hardly more than what was meant for it.

    budget.requested()            # with every first attempt
    if not budget.may_retry():    # takes one of the tries, if there is one
        await turn.sleep(budget.retry_in())
"""

import time
from collections.abc import Callable

# Seconds that are looked back on, in steps of one: what is counted leaves a whole step at a time.
WINDOW = 10
SHARE = 0.1
# Tries in a window that are granted to an agent that is hardly ever asked.
FLOOR = 3


class Window:
    """Counts what happened in the last seconds, in memory that does not grow."""

    def __init__(self, now: Callable[[], float], seconds: int = WINDOW) -> None:
        self._now = now
        self._counts = [0] * seconds
        self._second = int(now())
        self._total = 0

    def add(self) -> None:
        """Count one."""
        self._advance()
        self._counts[self._second % len(self._counts)] += 1
        self._total += 1

    def total(self) -> int:
        """Return how many there were."""
        self._advance()
        return self._total

    def clear(self) -> None:
        """Forget them all."""
        self._counts = [0] * len(self._counts)
        self._total = 0

    def eases_in(self) -> float:
        """Return the seconds until the oldest of them no longer count; 0: there are none."""
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
        # A step at a time, but never more of them than there are places.
        for passed in range(max(self._second + 1, second - size + 1), second + 1):
            self._total -= self._counts[passed % size]
            self._counts[passed % size] = 0
        self._second = max(self._second, second)


class RetryBudget:
    """The second tries of one agent."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._requests = Window(now)
        self._retries = Window(now)

    def requested(self) -> None:
        """Count a first attempt; second ones are counted as they are granted."""
        self._requests.add()

    def may_retry(self) -> bool:
        """Take one try if there is one left."""
        # Not the sum of both: the floor would then be on top of the share of a busy agent.
        if self._retries.total() >= max(FLOOR, int(SHARE * self._requests.total())):
            return False
        self._retries.add()
        return True

    def retry_in(self) -> float:
        """Return after how many seconds there may be another try, if none is granted at present."""
        return self._retries.eases_in()
