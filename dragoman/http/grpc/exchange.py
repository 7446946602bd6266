"""One rpc as a request: what access control and endpoints see of it, and what its caller gets.

The seam is: path, metadata, request and origin in; messages, metadata and a status out. gRPC itself
is behind `RpcContext`, so that another HTTP/2 could take its place.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from dragoman.dialects import errors
from dragoman.errors import A2AError, BodyTooLarge, ParseFailed
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

    def __init__(
        self,
        path: str,
        metadata: Headers,
        request: bytes,
        origin: RpcOrigin,
        context: RpcContext,
    ) -> None:
        self.context = context
        self.outcome: RpcOutcome | None = None
        self._request = request
        self._is_read = False
        self._status = 0
        self._headers: Headers = []
        self._body = b""
        extensions: dict[str, Any] = {_EXTENSION: self}
        if origin.scheme == "https":
            extensions["tls"] = {"client_cert": origin.certificate}
        self.scope: Scope = {
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
            "state": {"came_at": time.monotonic()},
            "extensions": extensions,
        }

    async def run(self, app: App) -> RpcOutcome:
        """Have the app answer; return what it said."""
        await app(self.scope, self._receive, self._send)
        return self.outcome or self._refused()

    def finish(self, message: bytes, metadata: list[tuple[str, str]]) -> None:
        """End with a message, which is empty for streams."""
        self.outcome = RpcOutcome(message, None, metadata)

    def fail(self, error: A2AError, metadata: list[tuple[str, str]]) -> None:
        """End with an error."""
        self.outcome = RpcOutcome(b"", error, metadata)

    async def _receive(self) -> Any:
        if not self._is_read:
            self._is_read = True
            body, self._request = self._request, b""
            return {"type": "http.request", "body": body, "more_body": False}
        # gRPC itself cancels what its caller no longer waits for.
        await asyncio.get_running_loop().create_future()

    async def _send(self, message: Any) -> None:
        """Take an answer that knows nothing of rpcs: a refusal."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
        else:
            self._body += message.get("body", b"")

    def _refused(self) -> RpcOutcome:
        """Return the error that a refusal by rules of HTTP is."""
        try:
            value: Any = msgspec.json.decode(self._body) if self._body else None
        except msgspec.DecodeError:
            value = None
        error = errors.decode_rest(self._status or 500, value)
        if self._status in _TOO_LARGE:
            error = BodyTooLarge(error.public)
        passed = [
            (name.decode(), text.decode("latin-1"))
            for name, text in self._headers
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
    extensions: Mapping[str, Any] = request.scope.get("extensions", {})
    return extensions.get(_EXTENSION)


def rpc_request(request: HttpRequest) -> RpcExchange:
    """Return the rpc of a request that is one; raises `ParseFailed`."""
    exchange = rpc_of(request)
    if exchange is None:
        raise ParseFailed("The request is no rpc")
    return exchange
