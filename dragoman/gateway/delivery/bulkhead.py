"""Slots at one agent: so many calls at once, so many waiting; further calls are refused.

Each agent has a bulkhead of its own and nothing is shared between them, so an agent that answers
slowly fills its own slots and no others.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from dragoman.errors import Overloaded


class Bulkhead:
    """The slots at one agent, given in the order in which they were requested."""

    def __init__(
        self,
        running: int = 64,
        waiting: int = 256,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_running = running
        self._most_waiting = waiting
        self._now = now
        self.running = 0
        # Ordered by links: of a plain dict, finding the first costs more the more have left.
        self._queue: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many calls wait for a slot."""
        return len(self._queue)

    async def acquire(self, deadline: float | None = None) -> None:
        """Take a slot; wait for one until the deadline, by the clock this was made with.

        Raises `Overloaded` if too many calls wait already, or no slot came free in time."""
        # A released slot is handed on: while any call waits, no slot is free.
        if self.running < self._most_running:
            self.running += 1
        else:
            await self._wait(deadline)

    async def _wait(self, deadline: float | None) -> None:
        if len(self._queue) >= self._most_waiting:
            raise Overloaded("Too many tasks wait for this agent, try again later", retryAfter=1)
        given = asyncio.get_running_loop().create_future()
        self._queue[given] = None
        left = None if deadline is None else max(0.0, deadline - self._now())
        try:
            async with asyncio.timeout(left):
                await given
        except BaseException as error:
            self._queue.pop(given, None)
            if given.done() and not given.cancelled():
                # The slot was handed over in the moment in which the caller went away.
                self.release()
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    "The agent had no slot for the task in time, try again later", retryAfter=1
                ) from None
            raise

    def release(self) -> None:
        """Hand the slot to the call that has waited longest; it stays taken meanwhile."""
        while self._queue:
            given, _ = self._queue.popitem(last=False)
            # A cancelled waiter stays in the queue until its task runs.
            if not given.done():
                given.set_result(None)
                return
        self.running -= 1
