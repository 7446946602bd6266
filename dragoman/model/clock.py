"""The time of day, and waiting for it. Tests bring their own."""

import asyncio
import time
from typing import Protocol

# The date may be set while we wait, so a long wait looks at it again.
_LOOK_AGAIN = 60.0


class Clock(Protocol):
    """Where code that waits for hours gets its time from."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    async def wait_until(self, at: int) -> None:
        """Return when that time has come."""
        ...


class SystemClock:
    """The time of this machine."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def wait_until(self, at: int) -> None:
        """Return when that time has come."""
        # The date is nobody's event: it can only be looked at.
        while (left := at - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left / 1000, _LOOK_AGAIN))
