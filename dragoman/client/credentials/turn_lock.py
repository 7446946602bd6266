"""Taking turns across threads: one credential may serve clients on several loops.

A lock of asyncio belongs to the loop that first waits for it; these turns belong to no loop.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager

# Longer than a request to an issuer takes; a holder beyond that is on a loop that has stopped.
LONGEST_TURN = 60.0


class Turns:
    """Lets in one at a time, whichever loop they run on."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Done when the turn under way is over.
        self._over: Future[None] | None = None

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Wait for a turn, and have it until the block ends."""
        ours: Future[None] = Future()
        while (theirs := self._current_holder(ours)) is not None:
            # Unlike awaiting it, this leaves theirs alone when we are canceled.
            done, _ = await asyncio.wait([asyncio.wrap_future(theirs)], timeout=LONGEST_TURN)
            if not done:
                self._end(theirs)
        try:
            yield
        finally:
            self._end(ours)
            ours.set_result(None)

    def _current_holder(self, ours: "Future[None]") -> "Future[None] | None":
        """Return whose turn it is; None once it is ours."""
        with self._guard:
            if self._over is not None:
                return self._over
            self._over = ours
            return None

    def _end(self, turn: "Future[None]") -> None:
        with self._guard:
            if self._over is turn:
                self._over = None
