"""Clocks that are moved by hand.

`dragoman.testing.clock.ManualClock` is the one for code that waits; these are for code that reads.
"""

import time


class Clock:
    """Seconds that stand still until a test moves them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class SkippingClock:
    """The time of day and of the machine, and the seconds that a test skipped."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed

    now = __call__

    def monotonic(self) -> float:
        return 1000.0 + self.passed
