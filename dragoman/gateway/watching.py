"""Looks after agents: each when it is due, few at a time, by one of the processes on a file.

What looking means is somebody else's affair; here is when and how many.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from dragoman.gateway.agents import Registered
from dragoman.gateway.liveness import Liveness
from dragoman.gateway.search import Index
from dragoman.model.clock import Clock

logger = logging.getLogger("dragoman")

# Looks at once.
AT_ONCE = 32
# Milliseconds between two words that it is us who look; after three without one another does.
TERM = 5_000


class Attend(Protocol):
    """Looks at one agent, and at its card if that is due."""

    def __call__(self, agent: Registered, *, refresh: bool) -> Awaitable[None]:
        """Do it."""
        ...


class Watch:
    """When which agent is looked at."""

    def __init__(
        self,
        index: Index,
        liveness: Liveness,
        clock: Clock,
        attend: Attend,
        may_watch: Callable[[int], Awaitable[bool]],
        noise: Callable[[], float],
    ) -> None:
        self._index = index
        self._liveness = liveness
        self._clock = clock
        self._attend = attend
        self._may_watch = may_watch
        self._noise = noise
        # When each agent is due; an entry of the heap that says otherwise is outdated.
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._refreshed: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._watches_until = 0

    def start(self) -> None:
        """Begin."""
        now = self._clock.now()
        for agent in self._index:
            # Cards were looked at some time in the last term of theirs.
            self._refreshed[agent.id] = now - int(agent.refresh * 1000 * self._noise())
            self._plan(agent, now)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; what is under way is given up."""
        if self._task is None:
            return
        tasks = [self._task, *self._looking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    def soon(self, id: str, at: int | None = None) -> None:
        """Look at an agent when it is due as it stands, or at a time."""
        agent = self._index.get(id)
        if agent is not None and self._task is not None and id not in self._looking:
            self._plan(agent, self._clock.now(), at)

    def due_at(self, id: str) -> int | None:
        """Return when an agent is looked at next; None: it is being looked at, or nobody does."""
        return self._due.get(id)

    def forget(self, id: str) -> None:
        """Look at an agent no longer."""
        self._due.pop(id, None)
        self._refreshed.pop(id, None)

    def _plan(self, agent: Registered, now: int, at: int | None = None) -> None:
        refresh_at = self._refreshed.setdefault(agent.id, now) + int(agent.refresh * 1000)
        if at is None:
            at = min(self._liveness.next_at(agent, now, self._noise), refresh_at)
        # Never later than was planned: who changes often would never be looked at.
        if at < self._due.get(agent.id, at + 1):
            self._due[agent.id] = at
            heapq.heappush(self._heap, (at, agent.id))
            self._changed.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception:
                logger.exception("agents could not be looked at; trying again")
                await self._pause(self._clock.now() + TERM)

    async def _step(self) -> None:
        """Look at whoever is due, then wait for the next one."""
        now = self._clock.now()
        if now >= self._watches_until:
            if not await self._may_watch(now + 3 * TERM):
                await self._clock.wait_until(now + TERM)
                return
            self._watches_until = now + TERM
        while self._heap and self._heap[0][0] <= now and len(self._looking) < AT_ONCE:
            at, id = heapq.heappop(self._heap)
            if self._due.get(id) == at:
                del self._due[id]
                self._begin(id, now)
        if len(self._looking) >= AT_ONCE:
            await asyncio.wait(self._looking.values(), return_when=asyncio.FIRST_COMPLETED)
            return
        await self._pause(min(self._heap[0][0], now + TERM) if self._heap else now + TERM)

    def _begin(self, id: str, now: int) -> None:
        agent = self._index.get(id)
        if agent is None:
            self.forget(id)
            return
        refresh = now >= self._refreshed.get(id, now) + int(agent.refresh * 1000)
        if refresh:
            self._refreshed[id] = now
        looking = asyncio.get_running_loop().create_task(self._look(agent, refresh))
        self._looking[id] = looking

    async def _look(self, agent: Registered, refresh: bool) -> None:
        try:
            await self._attend(agent, refresh=refresh)
        except Exception:
            logger.exception("%s could not be looked at", agent.name)
        finally:
            del self._looking[agent.id]
            current = self._index.get(agent.id)
            if current is not None:
                self._plan(current, self._clock.now())

    async def _pause(self, until: int) -> None:
        """Wait for a time, or until somebody is due sooner."""
        self._changed.clear()
        waits = [
            asyncio.ensure_future(self._clock.wait_until(until)),
            asyncio.ensure_future(self._changed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
