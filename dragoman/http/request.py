"""One HTTP request as ASGI gives it, and the plain ways to answer it."""

import functools
import math
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from dragoman.dialects import negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.errors import BodyTooLarge, ContentTypeNotSupported, ParseFailed
from dragoman.http.exchange import RequestExchange, head_lines
from dragoman.http.limits import Room, network
from dragoman.http.mount import Mount
from dragoman.model.identity import Caller
from dragoman.security.authentication import Evidence, Pass
from dragoman.security.json_values import MAX_VALUES
from dragoman.service import LARGE_BYTES, reserve
from dragoman.telemetry.observation import RequestObservation
from dragoman.transports import json_text, sse

# ASGI's own types are plain dictionaries.
Scope = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
JSON = b"application/json"
A2A_JSON = b"application/a2a+json"
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024
# What is read of a body on paths that need no authentication.
PUBLIC_BODY_BYTES = 64 * 1024
# Bodies and answers from here on count as memory of their caller.
HELD_BYTES = 16 * 1024
# Answers from here on are waited for until the caller has taken them.
_AWAITED_BYTES = 64 * 1024
# Digits of the length of a body that is too small to count, and of any real length.
_SMALL_DIGITS = 4
_LENGTH_DIGITS = 19
_REFUSED_TYPES = (
    b"application/x-www-form-urlencoded",
    b"multipart/",
    b"application/xml",
    b"text/xml",
    b"text/html",
    b"application/octet-stream",
)


class Verdict:
    """What the head of a request that was let in decided: it holds for others with the same head
    on the same connection, for as long as its pass does.

    What follows from the head alone is found out once, by whatever answers the requests."""

    __slots__ = ("dialects", "headers", "is_checked", "lines")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        # Headers of every answer to it.
        self.headers = headers
        # The dialects of its calls by method, where no more than both decides.
        self.dialects: dict[str, Dialect] = {}
        # Whether its body may be what its head says it is.
        self.is_checked = False
        # Heads of its good answers as they are written, by what they say besides the common ones:
        # the first line, and those behind the length.
        self.lines: dict[Hashable, tuple[bytes, bytes]] = {}


# A struct, because one is copied in a single step for each request with a known head.
class HttpRequest(msgspec.Struct, eq=False):
    """One HTTP request; its body is read when it is asked for."""

    # A struct would print its fields, and with them credentials and messages.
    __repr__ = object.__repr__

    scope: Scope
    receive: sse.Receive
    send: sse.Send
    mount: Mount
    path: str
    verb: str
    headers: dict[bytes, bytes]
    # What a connection of ours and the app tell each other about this request.
    state: dict[str, Any]
    # Takes whole answers and has whole bodies; None: another server runs the app.
    _exchange: RequestExchange | None
    watched: RequestObservation
    # Where it comes from, also behind a proxy; and what it takes of its caller's share.
    address: str
    room: Room | None = None
    _query: dict[str, list[str]] | None = None
    # The version the request names in its header and in its query.
    version: tuple[str | None, str | None] = (None, None)
    # The extensions the caller asks for.
    extensions: frozenset[str] = frozenset()
    # The last position the reader has seen, as its header or the query says; None: it has seen
    # nothing. -1: what it says is no position, which is not the same as none.
    after: int | None = None
    # Whether it only reads, or continues what was accepted before.
    is_preferred: bool = False
    # Whether an answer has begun.
    is_answered: bool = False
    # Headers of its answer, whatever that is.
    extra: Sequence[tuple[bytes, bytes]] = ()
    # What an unauthenticated caller is asked for.
    challenge: str = "Bearer"
    # What is read of its body at most, whatever answers it; the path decides.
    most_body_bytes: float = math.inf
    # Bytes of its body that were read.
    size: int = 0
    # The caller, once authenticated; None: there is no authentication.
    pass_: Pass | None = None
    _unknown: Caller | None = None
    # Why it was let in, if others with the same head may be let in by that; what answers those,
    # and the path by which this one was found.
    verdict: Verdict | None = None
    _answer_known: "AnswerKnown | None" = None
    found_by: str = ""

    if TYPE_CHECKING:
        # That of every struct, which msgspec's types leave out.
        def __copy__(self) -> "HttpRequest": ...

    @classmethod
    def of(
        cls, scope: Scope, receive: sse.Receive, send: sse.Send, mount: Mount, path: str
    ) -> "HttpRequest":
        """Return a request as ASGI gives it, for a path below a mount."""
        state: dict[str, Any] = scope.get("state", {})
        headers = dict[bytes, bytes](scope["headers"])
        request = cls(
            scope,
            receive,
            send,
            mount,
            path,
            scope["method"],
            headers,
            state,
            state.get("exchange"),
            RequestObservation(),
            _address(scope),
        )
        request.version = request.header(b"a2a-version"), request._query_value("A2A-Version")
        if b"a2a-extensions" in headers or b"x-a2a-extensions" in headers:
            request.extensions = negotiate.extensions(scope["headers"])
        request.after = _position(
            request.header(b"last-event-id") or request._query_value("lastEventId")
        )
        request.is_preferred = request.verb in ("GET", "HEAD") or b"last-event-id" in headers
        return request

    def keep_head(self, path: str, answer: "AnswerKnown") -> None:
        """Let the connection give other requests with this head, for the same path, to what
        answers them, if that is possible."""
        exchange = self._exchange
        if exchange is None or exchange.keep is None or self.verdict is None:
            return
        # Without what is of this request alone.
        head = self.__copy__()
        head.scope = {name: value for name, value in self.scope.items() if name != "state"}
        head.state, head._exchange, head.room = {}, None, None
        head.is_answered, head.size, head.extra = False, 0, self.verdict.headers
        head._answer_known, head.found_by = answer, path
        exchange.keep(head)

    def answer(self, exchange: RequestExchange) -> Coroutine[Any, Any, None]:
        """Answer another request with this head, on the same connection, of which everything has
        come."""
        assert self._answer_known is not None, "its head was kept"
        other = self.__copy__()
        other._exchange = exchange
        other.state = exchange.state
        other.receive = exchange.receive
        other.send = exchange.send
        other.watched = RequestObservation()
        return self._answer_known(other)

    def sse_stream(self) -> sse.SseStream:
        """Return an answer that is a stream of events, not open yet."""
        watch = None if self._exchange is None else self._exchange.watch
        return sse.SseStream(self.send, self.receive, watch)

    def reconsider(self) -> None:
        """Forget why others with the same head were let in: it is judged like the first."""
        self.pass_ = self.verdict = None
        self.address = _address(self.scope)

    @property
    def caller(self) -> Caller:
        """The caller of the request."""
        if self.pass_ is not None:
            return self.pass_.caller
        if self._unknown is None:
            self._unknown = _unknown(network(self.address))
        return self._unknown

    @property
    def is_bounded(self) -> bool:
        """Whether the size of its head was checked while it was read."""
        return self._exchange is not None

    @property
    def evidence(self) -> Evidence:
        """What the request shows of its sender."""
        scope = self.scope
        tls = scope.get("extensions", {}).get("tls")
        return Evidence(scope["headers"], tls.get("client_cert") if tls else None, _address(scope))

    def take_body(self, most: int) -> bytes | None:
        """Return the whole body if all of it has come, none was read, and it has no more bytes
        than this; None: receive it."""
        exchange = self._exchange
        if exchange is None or (body := exchange.take_body(most)) is None:
            return None
        self.size = len(body)
        return body

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response; raises `RateLimited` for a large one if its caller has not taken
        those before it."""
        is_long = len(body) > _AWAITED_BYTES
        if is_long and self.room is not None:
            self.room.hold_answer(len(body))
        self.is_answered = True
        self.watched.responded(status)
        headers = [*headers, *self.extra]
        exchange = self._exchange
        if exchange is not None and not is_long and exchange.answer(status, headers, body):
            return
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        if is_long:
            # What follows is sent once most of this is taken: until then it is in memory.
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    def respond_again(self, says: Hashable, body: bytes) -> bool:
        """Write a good response whose head is that of an earlier one to a request with the same
        head, but for its length. False: nothing was written; `respond` has to do it."""
        verdict, exchange = self.verdict, self._exchange
        if verdict is None or exchange is None or self.extra is not verdict.headers:
            return False
        lines = verdict.lines.get(says)
        size = len(body)
        if lines is None or size > _AWAITED_BYTES:
            return False
        first, rest = lines
        if not exchange.write(b"%bcontent-length: %d\r\n%b\r\n%b" % (first, size, rest, body)):
            return False
        self.is_answered = True
        self.watched.responded(200)
        return True

    def respond_alike(self, says: Hashable, headers: Headers) -> None:
        """Let `respond_again` write good responses with these headers, behind the length, for what
        they say: values of which there are few."""
        verdict = self.verdict
        if verdict is not None and self.extra is verdict.headers:
            head = head_lines(200, [*headers, *self.extra])
            if head is not None:
                first, _, rest = head.partition(b"\r\n")
                verdict.lines[says] = first + b"\r\n", rest

    async def refuse_verb(self, allow: str) -> None:
        """Say which verbs a path takes."""
        await self.respond(405, [(b"allow", allow.encode()), (b"content-length", b"0")], b"")

    def header(self, name: bytes) -> str | None:
        """Return a header's text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def _query_value(self, name: str) -> str | None:
        """Return a parameter of the query."""
        query = self.scope["query_string"]
        # A longer one is refused by the guard, which comes after the first look at it.
        if not query or len(query) > MAX_URL_BYTES:
            return None
        if self._query is None:
            self._query = parse_qs(query.decode("latin-1"))
        values = self._query.get(name)
        return values[0] if values else None

    @property
    def reads_events_alone(self) -> bool:
        """Whether a caller of 0.x can read an error only as a server-sent event: the libraries of
        its time, which name no version. Later ones read JSON, and lose the class of an error that
        comes in a stream."""
        accept = self.headers.get(b"accept", b"")
        is_strict = b"json" not in accept and b"*/*" not in accept
        return b"text/event-stream" in accept and is_strict and not any(self.version)


def _position(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        return -1
    return int(text)


def _address(scope: Scope) -> str:
    """Return the address at the other end of the connection."""
    client = scope.get("client")
    return client[0] if client else ""


# Answers a request whose head was let in before.
AnswerKnown = Callable[[HttpRequest], Coroutine[Any, Any, None]]


@functools.lru_cache(1024)
def _unknown(place: str) -> Caller:
    return Caller(place=place)


async def read_body(request: HttpRequest, limit: int) -> bytes:
    """Read the body, and not a byte more than is allowed; raises `BodyTooLarge`, or `RateLimited`
    if its caller has enough under way."""
    body = request.take_body(min(limit, HELD_BYTES))
    if body is not None:
        return body
    most = min(limit, request.most_body_bytes)
    if len(request.headers.get(b"content-length", b"")) <= _SMALL_DIGITS:
        return await _read_on(request, await request.receive(), most)
    length = _length(request)
    if length > most:
        raise BodyTooLarge
    # All of it before any of it is read.
    _hold(request, length)
    return await _read_on(request, await request.receive(), most, is_held=True)


async def _read_on(
    request: HttpRequest, message: Any, most: float, *, is_held: bool = False
) -> bytes:
    """Return a body of which the first piece has come; what it takes is counted unless that was
    done."""
    chunks: list[bytes] = []
    size = held = 0
    while True:
        if message["type"] == "http.disconnect":
            # What came so far may read like a whole request, but its sender never finished it.
            raise ParseFailed
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise BodyTooLarge
        has_more = message.get("more_body")
        if not is_held and size > held and (has_more or size > HELD_BYTES):
            # Seldom, and as much again.
            _hold(request, 2 * size - held)
            held = 2 * size
        chunks.append(chunk)
        if not has_more:
            request.size = size
            return b"".join(chunks)
        message = await request.receive()


def _hold(request: HttpRequest, size: int) -> None:
    """Count bytes of a body before they are read; raises `RateLimited`, or `MemoryError` where a
    connection that is being read would break for want of memory."""
    if request.room is not None:
        request.room.hold(size)
    if size > LARGE_BYTES:
        # In pieces, and then in one.
        reserve(2 * size)


async def skip_body(request: HttpRequest, limit: int) -> None:
    """Read a body of which nothing is wanted, and keep none of it; raises `BodyTooLarge`."""
    size, is_last = 0, False
    while not is_last:
        # One whose sender is gone has no more.
        message = await request.receive()
        is_last = not message.get("more_body")
        size += len(message.get("body", b""))
        if size > limit:
            raise BodyTooLarge


def _length(request: HttpRequest) -> int:
    """Return the length that a request says its body has."""
    length = request.headers[b"content-length"]
    # Python reads no number of thousands of digits, and this is no place to find out.
    is_length = length.isdigit() and len(length) <= _LENGTH_DIGITS
    return int(length) if is_length else 10**_LENGTH_DIGITS


async def read_value(body: bytes, most_values: int = MAX_VALUES) -> Any:
    """Return the value of a body; raises `ParseFailed`."""
    return await json_text.read(body, most_values)


def check_type(request: HttpRequest) -> None:
    """Refuse bodies that cannot be JSON."""
    kind = request.headers.get(b"content-type", b"").lower()
    if kind.startswith(_REFUSED_TYPES):
        raise ContentTypeNotSupported("Send JSON as application/json")
    if request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ContentTypeNotSupported("Send the body without Content-Encoding")


def rest_type(request: HttpRequest, version: str) -> bytes:
    """Return the media type a REST caller wants; 0.x has one."""
    if version != "1.0":
        return JSON
    accept = request.headers.get(b"accept", b"")
    if A2A_JSON in accept:
        return A2A_JSON
    if JSON in accept or request.headers.get(b"content-type", b"").startswith(JSON):
        return JSON
    return A2A_JSON
