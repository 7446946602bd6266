"""Clocks that are moved by hand.

`dragoman.testing.clock.ManualClock` is the one for code that waits; these are for code that reads.
"""

import asyncio
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


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers come due when a test skips seconds."""

    def __init__(self) -> None:
        self.skipped = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self.skipped

    async def skip(self, seconds: float) -> None:
        """Let seconds pass, and what came due run."""
        self.skipped += seconds
        # Timers are collected at the next turn of the loop and run at the one after it.
        for _ in range(3):
            await asyncio.sleep(0)
