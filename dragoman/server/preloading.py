"""Loads what no start needs, such as libraries, modules and templates that draw pages.

It is loaded piece by piece in a thread soon after the start, while the process has little to do, so
that the first request for it does not wait. One that comes earlier has the rest loaded at once.
What could not be loaded, such as where no file can be opened at the moment, is tried again.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger("dragoman")

# Seconds after the start, and between two pieces.
AFTER = 1.5
_PAUSE = 0.02
# A process is busy while it takes more than this part of a processor; it is asked again later.
_BUSY, _ASKED_AGAIN = 0.25, 0.5


class Preloading:
    """What of it is loaded."""

    def __init__(self, pieces: Callable[[], Iterator[None]]) -> None:
        """Each step of `pieces` loads one, or does nothing if that was loaded before."""
        self.is_loaded = False
        self._pieces = pieces
        self._rest = pieces()
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
            if is_busy:
                continue
            try:
                await self._load(1)
            except Exception:
                logger.exception("could not be loaded; the first request for it tries again")
                return

    async def finish(self) -> None:
        """Load what is not loaded yet."""
        if not self.is_loaded:
            await self._load()

    async def _load(self, most: int | None = None) -> None:
        async with self._one_at_a_time:
            try:
                self.is_loaded = await asyncio.to_thread(_load, self._rest, most)
            except Exception:
                # What has failed has no further steps, as if it were at its end.
                self._rest = self._pieces()
                raise


def _load(pieces: Iterator[None], most: int | None) -> bool:
    """Load so many more pieces; return whether there are none left."""
    loaded = sum(1 for _ in itertools.islice(pieces, most))
    return most is None or loaded < most
