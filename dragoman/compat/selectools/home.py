"""Where a server runs that may be called from anywhere: selectools' is called from one loop, then
from another, then from a thread, and an app of ours belongs to one loop."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.client.sync import AT_EXIT, Loop
from dragoman.server.app import App
from dragoman.server.request import Scope
from dragoman.transports import sse

T = TypeVar("T")


class Home:
    """An app on the loop that began its life, or on one in a thread of its own. Requests of other
    loops are carried there."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: Loop | None = None
        self._ending: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        """Answer one ASGI connection."""
        here = asyncio.get_running_loop()
        if scope["type"] == "lifespan":
            self.close()
            self._loop = here
            try:
                await self._app(scope, receive, send)
            finally:
                self._loop = None
            return
        there = self._running()
        if there is here:
            await self._app(scope, receive, send)
            return

        async def take() -> Any:
            return await _on(here, receive())

        async def give(message: Any) -> None:
            await _on(here, send(message))

        await _on(there, self._app(scope, take, give))

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the app; without one it begins in a thread, and ends with us."""
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._own = Loop(self._app.stop)
                self._loop = self._own.run(_current())
                self._ending = weakref.finalize(self, Loop.close, self._own, AT_EXIT)
                # At the end of a program there are no threads left to stop it properly with; what
                # was acknowledged is in the store.
                self._ending.atexit = False
            return self._loop

    def close(self) -> None:
        """End the thread, if there is one, and what the app has open."""
        with self._lock:
            own, self._own = self._own, None
            if own is not None:
                self._loop = None
                self._ending.detach()
                own.close()


async def _current() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _on(loop: asyncio.AbstractEventLoop, deed: Any) -> Any:
    """Do something on another loop and return what came of it; cancelled here, it is there too."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(deed), loop))


async def _awaited(deed: "Coroutine[Any, Any, T]") -> T:
    return await deed
