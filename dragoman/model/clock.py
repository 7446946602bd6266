"""The time of day, and waiting for it. Tests bring their own."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where code that waits for hours gets its time from."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    async def wait_until(self, at: int) -> None:
        """Return once it is so late."""
        ...


class SystemClock:
    """The machine's."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def wait_until(self, at: int) -> None:
        """Return once it is so late; at once if it is."""
        await asyncio.sleep(max(0, at - self.now()) / 1000)
