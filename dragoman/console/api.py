"""The routes that programs have, asked inside the process with the credential of a visitor.

A request goes through the whole app: authentication, limits, roles and the audit log are those of
any caller, so the console can show nothing that `curl` cannot have.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

import msgspec

from dragoman.http.grpc.front import RpcOrigin
from dragoman.http.request import Headers, HttpRequest
from dragoman.server.site import Asgi
from dragoman.transports.sse import ServerSentEvent, SseReader

if TYPE_CHECKING:
    # Loaded with the first rpc.
    from dragoman.http.grpc.exchange import RpcOutcome

logger = logging.getLogger("dragoman")

OPERATOR_API = "/api/v1/console"
# What is of one connection, of one body, or of a page and not of its reader.
_NOT_PASSED_ON = frozenset(
    {
        *(b"accept", b"accept-encoding", b"accept-language", b"connection", b"content-length"),
        *(b"content-type", b"cookie", b"if-none-match", b"last-event-id", b"origin", b"referer"),
        *(b"transfer-encoding", b"upgrade-insecure-requests", b"a2a-version"),
    }
)
_JSON = b"application/json"
# An event of a stream that is read inside the process.
_LARGEST_EVENT = 16 * 1024 * 1024


class ApiFailed(Exception):
    """A route refused; the message is the one for the caller."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RawAnswer(msgspec.Struct):
    """An answer as it came."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def value(self) -> Any:
        """The JSON of the body; None where it is something else."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None

    @property
    def object(self) -> dict[str, Any]:
        """The JSON of the body, if it is an object; else one without members."""
        value = self.value
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


class VisitorApi:
    """Asks for one visitor."""

    def __init__(self, asgi: Asgi, request: HttpRequest, credential: Headers) -> None:
        """`credential` is shown in place of what the request itself shows, unless it is empty."""
        self._asgi = asgi
        self._scope = request.scope
        # Whether a request of this visit was counted and answered: what the page reads besides is
        # a part of it, or looking would use up what programs of the same caller may ask.
        self._is_counted = False
        replaced = {name for name, _ in credential}
        self._headers = [
            *(
                (name, value)
                for name, value in request.scope["headers"]
                if name not in _NOT_PASSED_ON and name not in replaced
            ),
            *credential,
        ]

    async def get(self, path: str, **query: Any) -> Any:
        """Return what a route of the operator API answers; raises `ApiFailed`."""
        return _checked(await self.send("GET", OPERATOR_API + path, query=query))

    async def post(self, path: str, body: Any = None) -> Any:
        """Have a route of the operator API do something; raises `ApiFailed`."""
        return _checked(await self.send("POST", OPERATOR_API + path, body=body))

    async def gateway(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        """Return the data of a route of the gateway's REST API; raises `ApiFailed`."""
        answer = await self.send(verb, f"/api/v1{path}", body=body, query=query)
        _checked(answer)
        return answer.object.get("data")

    async def send(
        self,
        verb: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
    ) -> RawAnswer:
        """Return the answer of any route, whatever it is."""
        answer = RawAnswer()
        content = b"" if body is None else msgspec.json.encode(body)
        scope = self._scope_of(verb, path, query or {}, headers or [], content)
        is_read = False
        pieces: list[bytes] = []
        # A body that is whole has nothing after it: the app may watch for its caller's leaving.
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if is_read:
                await gone.wait()
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {
                    name.decode("latin-1"): value.decode("latin-1")
                    for name, value in message["headers"]
                }
            else:
                pieces.append(message.get("body", b""))

        await self._asgi(scope, receive, send)
        answer.body = b"".join(pieces)
        self._is_counted = self._is_counted or answer.status == 200
        return answer

    async def rpc(self, path: str, message: bytes, version: str) -> "RpcOutcome":
        """Return the answer of an rpc, as a caller by gRPC has it; it streams nothing."""
        scope = self._scope_of("POST", path, {}, [(b"a2a-version", version.encode())], b"")
        origin = RpcOrigin(scope["client"], scope["server"], scope["scheme"], None)
        from dragoman.http.grpc.exchange import RpcExchange

        exchange = RpcExchange(message, _NoWire())
        asked = exchange.scope(path, scope["headers"], origin)
        # What is known of the visitor's connection comes last.
        for known in ("extensions", "state"):
            asked[known] |= scope.get(known, {})
        return await exchange.run(self._asgi({**scope, **asked}, exchange.receive, exchange.send))

    @asynccontextmanager
    async def events(self, path: str) -> AsyncGenerator[AsyncGenerator[ServerSentEvent]]:
        """Open a stream of the operator API; raises `ApiFailed`."""
        stream = _Stream()
        scope = self._scope_of("GET", OPERATOR_API + path, {}, [], b"")
        running = asyncio.get_running_loop().create_task(stream.run(self._asgi, scope))
        try:
            await stream.opened(running)
            yield stream.read()
        finally:
            stream.gone.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _scope_of(
        self, verb: str, path: str, query: Mapping[str, Any], headers: Headers, content: bytes
    ) -> dict[str, Any]:
        kind = [(b"content-type", _JSON), (b"content-length", b"%d" % len(content))]
        named = {name for name, _ in headers}
        is_part = verb == "GET" and self._is_counted
        return {
            **self._scope,
            "method": verb,
            "path": self._scope.get("root_path", "") + path,
            "raw_path": quote(path, safe="/:@!$&'()*+,;=~-._").encode(),
            "query_string": urlencode(
                {name: str(value) for name, value in query.items() if value not in ("", None)}
            ).encode(),
            "headers": [
                *(pair for pair in self._headers if pair[0] not in named),
                *(kind if content else []),
                *headers,
            ],
            # The visitor's own request was let in: this one is a part of it.
            "state": {"is_admitted": True, **({"is_part": True} if is_part else {})},
        }


class _NoWire:
    """What gRPC offers to an rpc inside the process: no deadline, and no stream."""

    async def write(self, data: bytes) -> None:
        """Send nothing: only streams do."""

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Send nothing: only streams do."""

    def time_remaining(self) -> float | None:
        """Return that there is no deadline."""
        return None


class _Stream:
    """A stream of server-sent events inside the process."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._head = asyncio.Event()
        self._status = 0
        self._is_asked = False
        self._reader = SseReader(_LARGEST_EVENT)
        # The app waits while one is unread, as it would for a slow socket: a page that is not drawn
        # at present costs nothing.
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def run(self, asgi: Asgi, scope: dict[str, Any]) -> None:
        """Have the app answer; its last piece is an empty one."""
        try:
            await asgi(scope, self._receive, self._send)
        except Exception:
            logger.exception("a stream inside the process broke")
        if not self.gone.is_set():
            # A reader that is gone takes nothing: with a full queue this would wait for ever.
            await self._pieces.put(b"")

    async def _receive(self) -> dict[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._head.set()
        elif message.get("body"):
            await self._pieces.put(message["body"])

    async def opened(self, running: asyncio.Task[None]) -> None:
        """Wait for the head of the answer."""
        head = asyncio.ensure_future(self._head.wait())
        await asyncio.wait({head, running}, return_when=asyncio.FIRST_COMPLETED)
        head.cancel()
        if self._status != 200:
            raise ApiFailed(self._status or 500, "The stream could not be opened")

    async def read(self) -> AsyncGenerator[ServerSentEvent]:
        """Yield the events until the stream ends."""
        while piece := await self._pieces.get():
            for event in self._reader.feed(piece):
                yield event


def _checked(answer: RawAnswer) -> Any:
    if 200 <= answer.status < 400:
        return answer.value
    error: Any = answer.object.get("error", answer.object)
    told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    message = told.get("message") or told.get("detail") or "The server refused this."
    if answer.status == 403 and (scope := _scope_missing(told)):
        message = f"It takes the scope {scope}, which your credential does not have."
    raise ApiFailed(answer.status or 500, str(message))


def _scope_missing(error: dict[str, Any]) -> str:
    details: Any = error.get("details")
    try:
        return str(details[0]["metadata"]["scope"])
    except (LookupError, TypeError):
        return ""
