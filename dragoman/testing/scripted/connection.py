"""One ASGI request and its answer, with the means to break the answer off.

ASGI cannot reset a connection. Our server has its transport in the scope; on other servers the app
raises, which breaks an answer that has begun.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from dragoman.transports import sse

Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
# The member of the scope's extensions that holds the public address; without it the Host header is
# used.
ADDRESS = "dragoman.address"
NONE: Headers = []
_GONE_WITHIN = 5.0


class ConnectionCut(ConnectionError):
    """The connection was cut on purpose."""


class ScriptedConnection:
    """One request."""

    def __init__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        self.scope = scope
        self.verb: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.query: dict[str, list[str]] = parse_qs(scope["query_string"].decode("latin-1"))
        self.body = b""
        self.is_open = False
        self.is_breaking = False
        # The byte of the body at which the connection breaks; negative: none.
        self.cut_at = -1
        self._written = 0
        self._receive = receive
        self._send = send

    def parameter(self, name: str) -> str | None:
        """Return a parameter of the query."""
        return self.query.get(name, [None])[0]

    @property
    def version(self) -> tuple[str | None, str | None]:
        """The version the request names in its header and in its query."""
        return self.headers.get("a2a-version"), self.parameter("A2A-Version")

    @property
    def base(self) -> str:
        """The address at which the caller reaches the agent."""
        if address := self._extensions.get(ADDRESS):
            return address
        host = self.headers.get("host", "localhost")
        return f"{self.scope['scheme']}://{host}{self.scope.get('root_path', '')}"

    async def read(self) -> bytes:
        """Read the body."""
        chunks: list[bytes] = []
        while True:
            message = await self._receive()
            chunks.append(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                self.body = b"".join(chunks)
                return self.body

    async def answer(
        self, status: int, body: bytes, kind: str = "application/json", headers: Headers = NONE
    ) -> None:
        """Send a whole answer."""
        length = [(b"content-length", b"%d" % len(body))]
        await self._start(status, [(b"content-type", kind.encode()), *headers, *length])
        await self._send({"type": "http.response.body", "body": body})

    async def open(self, headers: Headers) -> None:
        """Begin a stream."""
        await self._start(200, [*sse.HEADERS, *headers])
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def write(self, data: bytes) -> None:
        """Write part of a stream; cuts the connection at `cut_at`."""
        data = sse.on_single_lines(data)
        end = self._written + len(data)
        is_cut = 0 <= self.cut_at < end
        if is_cut:
            data = data[: max(0, self.cut_at - self._written)]
        self._written += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        if is_cut:
            await self.break_off()

    async def close(self) -> None:
        """End a stream properly."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self, *, at_once: bool = False) -> None:
        """Cut the connection; what was written still arrives, unless at once."""
        self.is_breaking = True
        transport = self._transport
        if transport is not None:
            (transport.abort if at_once else transport.close)()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_WITHIN):
                    await self.gone()
        raise ConnectionCut

    @property
    def has_transport(self) -> bool:
        """Whether the server passed its transport."""
        return self._transport is not None

    @property
    def _transport(self) -> asyncio.Transport | None:
        state: dict[str, Any] = self.scope.get("state") or {}
        found = getattr(state.get("exchange"), "transport", None)
        return found if hasattr(found, "abort") else None

    @property
    def _extensions(self) -> dict[str, Any]:
        # Servers may set it to None.
        return self.scope.get("extensions") or {}

    async def gone(self) -> None:
        """Return when the caller has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def write_until_gone(self, writing: Coroutine[Any, Any, None]) -> None:
        """Run what writes a stream, until it ends or the caller leaves."""
        pump = asyncio.ensure_future(writing)
        watch = asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not pump.done() and not self.is_breaking:
                pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump

    async def _start(self, status: int, headers: Headers) -> None:
        self.is_open = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def attend(
    scope: Scope,
    receive: sse.Receive,
    send: sse.Send,
    serve: Callable[[ScriptedConnection], Awaitable[None]],
    close: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run as an ASGI app that serves each request by a function, and closes by another."""
    if scope["type"] == "lifespan":
        await live(receive, send, close)
        return
    if scope["type"] != "http":
        return
    connection = ScriptedConnection(scope, receive, send)
    await connection.read()
    try:
        await serve(connection)
    except ConnectionCut:
        # Our server has dropped the connection; any other one does so when the app raises.
        if not connection.has_transport:
            raise


async def live(
    receive: sse.Receive, send: sse.Send, close: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Answer the lifespan messages of a server."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    if close is not None:
        await close()
    await send({"type": "lifespan.shutdown.complete"})
