"""What a store does by itself, now and then."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from dragoman.errors import StoreUnavailable

logger = logging.getLogger("dragoman")

# Seconds for one time to end when the chore does.
_STOP_WITHIN = 5.0


class Chore:
    """Does something every so many seconds, and soon when it is woken."""

    def __init__(
        self, name: str, deed: Callable[[], Awaitable[object]], *, every: float, gather: float = 0.0
    ) -> None:
        """`gather` are the seconds between being woken and the deed, so that one does for many."""
        self._name = name
        self._deed = deed
        self._every = every
        self._gather = gather
        self._wake = asyncio.Event()
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def wake(self) -> None:
        """Have it done soon."""
        self._wake.set()

    async def stop(self) -> None:
        """End, when what is under way is done: a statement that is broken off costs its
        connection."""
        self._is_ending = True
        self._wake.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=_STOP_WITHIN)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while not self._is_ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()
            if not self._is_ending:
                await asyncio.sleep(self._gather)
                self._wake.clear()
                await self._once()

    async def _once(self) -> None:
        try:
            await self._deed()
        except StoreUnavailable as error:
            logger.debug("%s: later (%s)", self._name, error)
        except Exception:
            # Whatever it was: it has to be done at some time.
            logger.exception("%s: it failed; trying again", self._name)
