"""Loads what no start needs, such as libraries, modules and templates that draw pages.

It is loaded piece by piece in a thread soon after the start, while the process has little to do, so
that the first request for it does not wait. One that comes earlier has the rest loaded at once.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator

# Seconds after the start, and between two pieces.
AFTER = 1.5
_PAUSE = 0.02
# A process is busy while it takes more than this part of a processor; it is asked again later.
_BUSY, _ASKED_AGAIN = 0.25, 0.5


class Preloading:
    """What of it is loaded."""

    def __init__(self, pieces: Iterator[None]) -> None:
        """Each step of `pieces` loads one."""
        self.is_loaded = False
        self._rest = pieces
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Load everything while there is time."""
        await asyncio.sleep(AFTER)
        pause = _PAUSE
        while not self.is_loaded:
            began, worked = time.monotonic(), time.process_time()
            await asyncio.sleep(pause)
            is_busy = time.process_time() - worked > _BUSY * (time.monotonic() - began)
            pause = _ASKED_AGAIN if is_busy else _PAUSE
            if not is_busy:
                await self._load(1)

    async def finish(self) -> None:
        """Load what is not loaded yet."""
        if not self.is_loaded:
            await self._load()

    async def _load(self, most: int | None = None) -> None:
        async with self._one_at_a_time:
            self.is_loaded = await asyncio.to_thread(_load, self._rest, most)


def _load(pieces: Iterator[None], most: int | None) -> bool:
    """Load so many more pieces; return whether there are none left."""
    loaded = sum(1 for _ in itertools.islice(pieces, most))
    return most is None or loaded < most
