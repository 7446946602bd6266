"""A clock that a test moves, for schedules of days."""

import asyncio
import heapq
import itertools


class ManualClock:
    """Time stands still until it is moved."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return self._now

    async def wait_until(self, at: int) -> None:
        """Return when the clock has been moved that far."""
        if at <= self._now:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (at, next(self._order), future))
        self._arrived.set()
        await future

    @property
    def waiting(self) -> int:
        """How many tasks wait for a later time."""
        return sum(not future.done() for _, _, future in self._waiting)

    @property
    def next_at(self) -> int | None:
        """The earliest time that a task waits for."""
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def move_to(self, at: int) -> None:
        """Move the clock, and wake the waiting tasks in the order of their times."""
        self._now = max(self._now, at)
        while (first := self.next_at) is not None and first <= self._now:
            _, _, future = heapq.heappop(self._waiting)
            future.set_result(None)

    async def leap(self, within: float = 10.0) -> int:
        """Wait until a task waits, move to the earliest time, and return it."""
        async with asyncio.timeout(within):
            while (at := self.next_at) is None:
                self._arrived.clear()
                await self._arrived.wait()
        self.move_to(at)
        return at
