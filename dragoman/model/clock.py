"""The wall clock, waiting for a time of day (tests use a manual one), and times on the wire."""

import asyncio
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

# The date may be changed during a wait, so a long wait checks it again.
_CHECK_EVERY = 60.0


class Clock(Protocol):
    """The clock of code that waits for hours."""

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
        # No event reports a changed date: it has to be polled.
        while (left := at - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left / 1000, _CHECK_EVERY))


def stamp(microseconds: int) -> str:
    """Return microseconds since the epoch as an RFC 3339 time: UTC, milliseconds, a `Z`."""
    return stamp_ms(microseconds // 1000)


# The events of a short task share a millisecond.
@lru_cache(maxsize=16)
def stamp_ms(milliseconds: int) -> str:
    """Return milliseconds since the epoch as the same."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Thousands of events share a second, and formatting it is the slow part."""
    # Not strftime: its years before 1000 are too short to be valid.
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
