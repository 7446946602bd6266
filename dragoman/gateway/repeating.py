"""What a gateway does again and again while it is open, whatever one time raises."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dragoman.errors import StoreRefused

logger = logging.getLogger("dragoman")


class Repeating:
    """One such thing, in a task of its own."""

    def __init__(
        self,
        failure: str,
        do: Callable[[], Awaitable[object]],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        """`failure` says in the log that it was not done; `pause` waits until the next time."""
        self._failure = failure
        self._do = do
        self._pause = pause
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, also in the midst of it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._do()
            except StoreRefused:
                logger.warning("%s; trying again", self._failure)
            except Exception:
                # Tasks and payments that are due wait for the next time, so this must not end.
                logger.exception("%s; trying again", self._failure)
            await self._pause()
