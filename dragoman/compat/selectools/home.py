"""Runs an app that may be called from any loop or thread, as selectools' server is: an app of ours
belongs to one loop."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.client.sync import AT_EXIT, Loop
from dragoman.http.request import Scope
from dragoman.server.app import App
from dragoman.transports import sse

T = TypeVar("T")


class Home:
    """An app on the loop of its lifespan, or on one in a thread of its own. Requests of other loops
    are run there."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: Loop | None = None
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

        async def forward_receive() -> Any:
            return await _on(here, receive())

        async def forward_send(message: Any) -> None:
            await _on(here, send(message))

        await _on(there, self._app(scope, forward_receive, forward_send))

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the app; without one, start a loop in a thread that ends with us."""
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._own_loop = Loop(self._app.stop)
                self._loop = self._own_loop.run(_current())
                self._ending = weakref.finalize(self, Loop.close, self._own_loop, AT_EXIT)
                # At the end of a program no thread can be started to stop it properly; what was
                # acknowledged is in the store.
                self._ending.atexit = False
            return self._loop

    def close(self) -> None:
        """End the thread, if there is one, and close the app."""
        with self._lock:
            own, self._own_loop = self._own_loop, None
            if own is not None:
                self._loop = None
                self._ending.detach()
                own.close()


async def _current() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    """Run something on another loop and return its result; a cancellation here cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(work), loop))


async def _awaited(work: "Coroutine[Any, Any, T]") -> T:
    return await work
