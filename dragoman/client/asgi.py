"""An ASGI app called without a socket, in the shape of HTTP that a client needs.

The app runs beside its caller on the same loop, its body comes piece by piece, and reading no
further counts as hanging up.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from dragoman.egress.errors import EgressClosed, EgressFailed
from dragoman.errors import ConfigError

logger = logging.getLogger("dragoman")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# The app waits while so many pieces are unread, as it would for a slow socket.
UNREAD = 16


class InProcess:
    """Carries requests to an app of this process, which runs until the last of its clients goes."""

    def __init__(self, app: App) -> None:
        self._app = app
        # Another app may answer at the same addresses.
        self.identity = secrets.token_hex(8)
        self._life: Lifespan | None = None
        self._open: set[_Exchange] = set()
        self._is_closed = False

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AsyncGenerator["_Exchange"]:
        """Hand the app a request and wait for the head of its answer; there is no connection that
        could be used again."""
        if self._is_closed:
            raise EgressClosed
        life = Lifespan.of(self._app)
        if life is not self._life:
            self._life = life
            life.clients += 1
        await life.start()
        if self._is_closed:
            raise EgressClosed
        exchange = _Exchange(self._app, _scope(method, url, headers), body or b"")
        self._open.add(exchange)
        try:
            await exchange.start()
            yield exchange
        finally:
            self._open.discard(exchange)
            await exchange.close()

    async def close(self) -> None:
        """Let the app end what it started with. What is under way fails, and later requests are
        refused with `EgressClosed`."""
        self._is_closed = True
        for exchange in list(self._open):
            exchange.hang_up()
        life, self._life = self._life, None
        if life is not None and life.is_over:
            return
        if life is not None:
            life.clients -= 1
            if not life.clients:
                await life.stop()


def _scope(method: str, url: str, headers: Mapping[str, str]) -> MutableMapping[str, Any]:
    parts = urlsplit(url)
    # The bytes that a socket would carry.
    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": (parts.path or "/").encode("ascii"),
        "query_string": parts.query.encode("ascii"),
        "root_path": "",
        "headers": [(b"host", parts.netloc.encode("ascii")), *sent],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname, parts.port),
        "state": {},
    }


class _Exchange:
    """One request inside the process."""

    def __init__(self, app: App, scope: MutableMapping[str, Any], body: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._body = body
        self._is_read = False
        self._is_complete = False
        self._gone = asyncio.Event()
        self._headed = asyncio.Event()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(UNREAD)
        self._app = app
        self._scope = scope
        self._task: asyncio.Task[None] | None = None
        self._is_hung_up = False

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._headed.wait()
        if self._is_hung_up:
            raise EgressFailed("the client was closed")
        if not self.status:
            raise EgressFailed("the app ended without an answer")

    async def chunks(self) -> AsyncGenerator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if self._is_hung_up:
            raise EgressFailed("the client was closed")
        if not self._is_complete:
            raise EgressFailed("the app broke off its answer")

    def hang_up(self) -> None:
        """Close while a reader is open; the reader gets an error."""
        if self._is_hung_up:
            return
        self._is_hung_up = True
        self._gone.set()
        if self._task is not None:
            self._task.cancel()
        # What is unread is dropped: the reader gets the end instead.
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)
        self._headed.set()

    async def close(self) -> None:
        self._gone.set()
        if self._task is not None and not self._task.done():
            self._task.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            # A server in its place would log it and drop the connection; so its caller sees that.
            logger.exception("the app raised while it answered %s", self._scope["path"])
            self._is_complete = False
        finally:
            self._headed.set()
            if not self._gone.is_set():
                await self._pieces.put(None)

    async def _receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        elif message["type"] == "http.response.body":
            self._headed.set()
            self._is_complete = not message.get("more_body", False)
            if message.get("body"):
                await self._pieces.put(bytes(message["body"]))


class Lifespan:
    """The app's start and end, if it cares for them; shared by all clients of the app."""

    # Keyed by the app itself: a reference to the app keeps its lifespan alive.
    _known: ClassVar[dict[int, "Lifespan"]] = {}

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._problem = ""
        self.clients = 0

    @classmethod
    def of(cls, app: App) -> "Lifespan":
        """Return the life of an app, which begins with its first client."""
        life = cls._known.get(id(app))
        if life is None:
            life = cls._known[id(app)] = cls(app)
        elif life.is_over:
            # Its loop went, and took along what the app had started.
            life = cls._known[id(app)] = cls(app)
        elif life._loop is not asyncio.get_running_loop():
            raise ConfigError(
                "this app already runs on another loop: use `client` or `client.sync`, not both"
            )
        return life

    @property
    def is_over(self) -> bool:
        """Whether its loop has ended, and it with that."""
        return self._loop.is_closed()

    async def start(self) -> None:
        """Wait until the app has started; raises EgressFailed if it would not."""
        if self._task is None:
            self._task = self._loop.create_task(self._run())
            self._inbox.put_nowait({"type": "lifespan.startup"})
        await self._started.wait()
        if self._problem:
            raise EgressFailed(f"the app did not start: {self._problem}", is_sent=False)

    async def stop(self) -> None:
        """Let the app end what it started."""
        if self._known.get(id(self._app)) is self:
            del self._known[id(self._app)]
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        scope: Message = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        try:
            await self._app(scope, self._inbox.get, self._send)
        except Exception as error:
            if self._started.is_set():
                logger.exception("the app raised while it ran or ended")
            else:
                # ASGI: an app that raises before it has started knows no lifespan, and is served.
                logger.info("the app has no lifespan: it raised %r", error)
        finally:
            self._started.set()

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._problem = str(message.get("message", "")) or "no reason given"
        if message["type"].startswith("lifespan.startup"):
            self._started.set()
