"""How many posts may be on their way at once: in all, to one origin, and to the silent.

A receiver that never answers holds its place until the time is up. Those that did so last time
share places of their own, so that however many they are, the others do not wait for them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

PER_ORIGIN = 16
# What is remembered of origins is bounded; who is forgotten is taken for well once more.
_MAX_SILENT = 10_000


class Slots:
    """Places for posts on their way."""

    def __init__(self, limit: int) -> None:
        self._all = asyncio.Semaphore(limit)
        self._for_silent = asyncio.Semaphore(max(1, limit // 4))
        self._origins: dict[str, asyncio.Semaphore] = {}
        self._using: Counter[str] = Counter()
        self._silent: dict[str, None] = {}

    @asynccontextmanager
    async def place(self, origin: str) -> AsyncGenerator[None]:
        """Hold a place while inside; wait for one first."""
        self._using[origin] += 1
        own = self._origins.setdefault(origin, asyncio.Semaphore(PER_ORIGIN))
        try:
            async with own, self._for_silent if origin in self._silent else self._all:
                yield
        finally:
            self._using[origin] -= 1
            if not self._using[origin]:
                del self._using[origin], self._origins[origin]

    def mark(self, origin: str, *, silent: bool) -> None:
        """Remember whether an origin answered."""
        if not silent:
            self._silent.pop(origin, None)
            return
        self._silent[origin] = None
        if len(self._silent) > _MAX_SILENT:
            del self._silent[next(iter(self._silent))]
