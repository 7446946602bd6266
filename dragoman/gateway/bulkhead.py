"""Places at one agent: so many calls at once, so many waiting, and whoever comes then is told so.

Each agent has a bulkhead of its own and nothing is shared between them, so an agent that answers
slowly fills its own places and nobody else's.

    async with bulkhead.place(deadline):    # by `time.monotonic()`; None: whenever there is one
        ...                                 # the call
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from dragoman.errors import Overloaded


class Bulkhead:
    """The places at one agent, given in the order in which they were asked for."""

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
        """How many wait for a place."""
        return len(self._queue)

    def place(self, deadline: float | None = None) -> "_Place":
        """Hold a place; wait for one until the deadline, by the clock this was made with.

        Entering raises `Overloaded` if too many wait already, or none came free in time."""
        return _Place(self, deadline)

    async def enter(self, deadline: float | None) -> None:
        """Take a place."""
        # A place that comes free is handed on: while anybody waits, none is free.
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
                # It was given the place in the moment in which it went away.
                self.leave()
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    "The agent had no place for the task in time, try again later", retryAfter=1
                ) from None
            raise

    def leave(self) -> None:
        """Hand the place to whoever has waited longest; it stays taken meanwhile."""
        while self._queue:
            given, _ = self._queue.popitem(last=False)
            # One that was cancelled stays in the queue until its task has its turn.
            if not given.done():
                given.set_result(None)
                return
        self.running -= 1


class _Place:
    """A place, for as long as its context is open. A class, since every task comes by here."""

    __slots__ = ("_bulkhead", "_deadline")

    def __init__(self, bulkhead: Bulkhead, deadline: float | None) -> None:
        self._bulkhead = bulkhead
        self._deadline = deadline

    async def __aenter__(self) -> None:
        await self._bulkhead.enter(self._deadline)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bulkhead.leave()
