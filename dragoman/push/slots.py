"""How many posts may be on their way at once: in all, to one origin, and to those not known to
answer.

A receiver that never answers holds its place until the time is up. Those that did so last time
share places of their own, and those never heard from leave a quarter of the rest to receivers that
answered: however many they are, what works goes on.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

PER_ORIGIN = 16
# What is remembered of origins is bounded; who is forgotten is a stranger once more.
_MAX_KNOWN = 10_000


class Slots:
    """Places for posts on their way."""

    def __init__(self, limit: int) -> None:
        quarter = limit // 4
        self._all = asyncio.Semaphore(limit)
        self._for_strangers = asyncio.Semaphore(limit - quarter)
        self._for_silent = asyncio.Semaphore(max(1, quarter))
        self._origins: dict[str, asyncio.Semaphore] = {}
        self._using: Counter[str] = Counter()
        # Whether an origin answered last time, the latest at the end.
        self._answers: dict[str, bool] = {}

    @asynccontextmanager
    async def place(self, origin: str) -> AsyncGenerator[None]:
        """Hold a place while inside; wait for one first."""
        self._using[origin] += 1
        own = self._origins.setdefault(origin, asyncio.Semaphore(PER_ORIGIN))
        try:
            async with own, AsyncExitStack() as stack:
                for places in self._places(origin):
                    await stack.enter_async_context(places)
                yield
        finally:
            self._using[origin] -= 1
            if not self._using[origin]:
                del self._using[origin], self._origins[origin]

    def _places(self, origin: str) -> list[asyncio.Semaphore]:
        match self._answers.get(origin):
            case True:
                return [self._all]
            case False:
                return [self._for_silent]
            case None:
                return [self._for_strangers, self._all]

    def mark(self, origin: str, *, silent: bool) -> None:
        """Remember whether an origin answered."""
        self._answers.pop(origin, None)
        self._answers[origin] = not silent
        if len(self._answers) > _MAX_KNOWN:
            del self._answers[next(iter(self._answers))]
