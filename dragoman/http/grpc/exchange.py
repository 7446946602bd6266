"""One rpc as a request: what access control and endpoints see of it, and what its caller gets.

The seam is: path, metadata, request and origin in; messages, metadata and a status out. gRPC itself
is behind `RpcContext`, so that another HTTP/2 could take its place.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from dragoman.dialects import errors
from dragoman.errors import A2AError, BodyTooLarge
from dragoman.http.exchange import KnownRequest
from dragoman.http.grpc.front import RpcOrigin
from dragoman.http.request import Headers, HttpRequest, Scope
from dragoman.transports import sse

App = Callable[[Scope, sse.Receive, sse.Send], Awaitable[None]]

# Headers of answers that are of use to callers of rpcs too.
_PASSED_ON = (b"www-authenticate", b"retry-after")
_LIMITS = (b"ratelimit", b"x-ratelimit-")
# Statuses of a head or a body that is too large.
_TOO_LARGE = (413, 414, 431)
_EXTENSION = "grpc"


class RpcContext(Protocol):
    """What gRPC offers while an rpc is answered."""

    async def write(self, data: bytes) -> None:
        """Send framed messages of a stream, and wait until its reader has taken enough."""
        ...

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Send what comes before the first message."""
        ...

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None: it has none."""
        ...


class RpcOutcome(NamedTuple):
    """How an rpc ended: a message, or an error."""

    message: bytes
    error: A2AError | None
    # What the caller is told beside it.
    metadata: list[tuple[str, str]]


class RpcExchange:
    """One rpc under way."""

    __slots__ = (
        "_answer",
        "_is_read",
        "_request",
        "context",
        "keep",
        "outcome",
        "state",
    )

    def __init__(self, request: bytes, context: RpcContext) -> None:
        self.context = context
        self.outcome: RpcOutcome | None = None
        self.state: dict[str, Any] = {"came_at": time.monotonic(), "exchange": self}
        # Has other rpcs with the same head answered as this one; None: there may be none.
        self.keep: Callable[[KnownRequest], None] | None = None
        self._request = request
        self._is_read = False
        # An answer that knows nothing of rpcs: a refusal.
        self._answer: tuple[int, Headers, bytes] = 0, [], b""

    def scope(self, path: str, metadata: Headers, origin: RpcOrigin) -> Scope:
        """Return the rpc as ASGI has requests."""
        extensions: dict[str, Any] = {_EXTENSION: {}}
        if origin.scheme == "https":
            extensions["tls"] = {"client_cert": origin.certificate}
        return {
            "type": "http",
            "http_version": "2",
            "method": "POST",
            "scheme": origin.scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": metadata,
            "client": origin.client,
            "server": origin.server,
            "state": self.state,
            "extensions": extensions,
        }

    async def run(self, answering: Awaitable[None]) -> RpcOutcome:
        """Wait until the app has answered; return what it said."""
        await answering
        return self.outcome or self._refused()

    def finish(self, message: bytes, metadata: list[tuple[str, str]]) -> None:
        """End with a message, which is empty for streams."""
        self.outcome = RpcOutcome(message, None, metadata)

    def fail(self, error: A2AError, metadata: list[tuple[str, str]]) -> None:
        """End with an error."""
        self.outcome = RpcOutcome(b"", error, metadata)

    def take_body(self, most: int) -> bytes | None:
        """Return the request, if it was not taken and is no larger than this."""
        request = self._request
        if self._is_read or len(request) > most:
            return None
        self._is_read, self._request = True, b""
        return request

    async def receive(self) -> Any:
        """Return the request as a message of ASGI."""
        if not self._is_read:
            self._is_read = True
            body, self._request = self._request, b""
            return {"type": "http.request", "body": body, "more_body": False}
        # gRPC itself cancels what its caller no longer waits for.
        await asyncio.get_running_loop().create_future()

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Take a refusal."""
        self._answer = status, headers, body
        return True

    async def send(self, message: Any) -> None:
        """Take a refusal by messages of ASGI."""
        status, headers, body = self._answer
        if message["type"] == "http.response.start":
            self._answer = message["status"], message["headers"], b""
        else:
            self._answer = status, headers, body + message.get("body", b"")

    def write(self, answer: bytes) -> bool:
        """Refuse what is written as HTTP/1.1 has it."""
        return False

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Do nothing: gRPC itself cancels what its caller no longer waits for."""

    def _refused(self) -> RpcOutcome:
        """Return the error that a refusal by rules of HTTP is."""
        status, headers, body = self._answer
        try:
            value: Any = msgspec.json.decode(body) if body else None
        except msgspec.DecodeError:
            value = None
        error = errors.decode_rest(status or 500, value)
        if status in _TOO_LARGE:
            error = BodyTooLarge(error.public)
        passed = [
            (name.decode(), text.decode("latin-1"))
            for name, text in headers
            if name in _PASSED_ON or name.startswith(_LIMITS)
        ]
        if wait := dict(passed).get("retry-after"):
            error.facts["retryAfter"] = wait
        return RpcOutcome(b"", error, passed)


class RpcStream:
    """The open answer of an rpc that streams, as those who end streams see it."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.is_closed = False
        # A caller that leaves an rpc ends the reading and nothing else.
        self.is_left = False
        # Whether it was ended from outside, so that its reader should come back.
        self.is_stopped = False

    def stop(self) -> None:
        """End the stream from outside: the server stops, or its reader is no longer let in."""
        if not self.is_closed and self._task is not None:
            self.is_closed = self.is_stopped = True
            self._task.cancel()

    def keep_alive(self, quiet_since: float) -> None:
        """Do nothing: HTTP/2 asks by itself whether the reader is there."""


def rpc_of(request: HttpRequest) -> RpcExchange | None:
    """Return the rpc that a request is; None: it is none."""
    exchange = request.state.get("exchange")
    return exchange if isinstance(exchange, RpcExchange) else None
