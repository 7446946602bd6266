"""One HTTP request as ASGI gives it, and the plain ways to answer it."""

import asyncio
import functools
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.dialects import negotiate
from dragoman.errors import BodyTooLarge, ContentTypeNotSupported, ParseFailed
from dragoman.model.identity import Caller
from dragoman.security.authentication import Evidence, Pass
from dragoman.server.agent import Agent
from dragoman.server.cards import CardRack
from dragoman.server.limits import Room, network
from dragoman.service import Service
from dragoman.telemetry.watching import Observed
from dragoman.transports import json_text, sse

# ASGI's own types are plain dictionaries.
Scope = dict[str, Any]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
A2A_JSON = b"application/a2a+json"
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024
# Larger bodies are read in a thread, so that one of them does not hold up everybody else.
PARSE_IN_LINE_BYTES = 64 * 1024
_REFUSED_TYPES = (
    b"application/x-www-form-urlencoded",
    b"multipart/",
    b"application/xml",
    b"text/xml",
    b"text/html",
    b"application/octet-stream",
)


class Mount(msgspec.Struct):
    """One agent and what serves it."""

    agent: Agent
    service: Service
    cards: CardRack
    prefix: str
    # The extensions the agent offers.
    extensions: frozenset[str]


class Request:
    """One HTTP request, read lazily."""

    __slots__ = (
        "_query",
        "address",
        "challenge",
        "extra",
        "headers",
        "is_answered",
        "mount",
        "pass_",
        "path",
        "receive",
        "room",
        "scope",
        "send",
        "verb",
        "watched",
    )

    def __init__(
        self, scope: Scope, receive: sse.Receive, send: sse.Send, mount: Mount, path: str
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.mount = mount
        self.path = path
        self.verb: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._query: dict[str, list[str]] | None = None
        # Whether an answer has begun.
        self.is_answered = False
        # Headers that its answer has whatever it is.
        self.extra: Headers = []
        # What we ask of those we do not know.
        self.challenge = "Bearer"
        # Where it comes from, also behind a proxy; and what it takes of its caller's share.
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.room: Room | None = None
        # Who asks, once that is known; None: nobody is asked who they are.
        self.pass_: Pass | None = None
        self.watched = Observed()

    @property
    def caller(self) -> Caller:
        """Whom the request speaks for."""
        return self.pass_.caller if self.pass_ is not None else _unknown(network(self.address))

    @property
    def evidence(self) -> Evidence:
        """What the request shows of its sender."""
        scope = self.scope
        tls = scope.get("extensions", {}).get("tls")
        client = scope.get("client")
        return Evidence(
            scope["headers"],
            tls.get("client_cert") if tls else None,
            client[0] if client else "",
        )

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        self.is_answered = True
        self.watched.responded(status)
        head = {"type": "http.response.start", "status": status, "headers": headers + self.extra}
        await self.send(head)
        await self.send({"type": "http.response.body", "body": body})

    async def refuse_verb(self, allow: str) -> None:
        """Say which verbs a path takes."""
        await self.respond(405, [(b"allow", allow.encode()), (b"content-length", b"0")], b"")

    def header(self, name: bytes) -> str | None:
        """Return a header's text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def _asked(self, name: str) -> str | None:
        """Return a parameter of the query."""
        query = self.scope["query_string"]
        if not query:
            return None
        if self._query is None:
            self._query = parse_qs(query.decode("latin-1"))
        values = self._query.get(name)
        return values[0] if values else None

    @property
    def version(self) -> tuple[str | None, str | None]:
        """The version the request names in its header and in its query."""
        return self.header(b"a2a-version"), self._asked("A2A-Version")

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions the caller asks for."""
        if b"a2a-extensions" in self.headers or b"x-a2a-extensions" in self.headers:
            return negotiate.extensions(self.scope["headers"])
        return frozenset()

    @property
    def after(self) -> int | None:
        """The last position the reader has seen, as its header or the query says; None: it has
        seen nothing. What is no position of any log is -1, so that nobody takes it for nothing."""
        text = self.header(b"last-event-id") or self._asked("lastEventId")
        if not text:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            return -1
        return int(text)

    @property
    def wants_stream_only(self) -> bool:
        """Whether the caller can read nothing but server-sent events."""
        accept = self.headers.get(b"accept", b"")
        return b"text/event-stream" in accept and b"json" not in accept and b"*/*" not in accept


@functools.lru_cache(1024)
def _unknown(place: str) -> Caller:
    return Caller(place=place)


def is_heavy(headers: Headers) -> bool:
    """Tell whether there is more in a request's head than anyone needs to say."""
    if len(headers) > MAX_HEADERS:
        return True
    return sum([len(name) + len(value) for name, value in headers]) > MAX_HEADER_BYTES


def target_length(scope: Scope) -> int:
    """Return how long the request target is."""
    query: bytes = scope["query_string"]
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return len(path) + (len(query) + 1 if query else 0)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, and not a byte more than is allowed."""
    length = request.headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise BodyTooLarge
    message = await request.receive()
    body: bytes = message.get("body", b"")
    if len(body) > limit:
        raise BodyTooLarge
    if not message.get("more_body"):
        return body
    chunks, size = [body], len(body)
    while message.get("more_body"):
        message = await request.receive()
        if message["type"] == "http.disconnect":
            # What came so far may read like a whole request, but its sender never finished it.
            raise ParseFailed
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge
        chunks.append(chunk)
    return b"".join(chunks)


async def read_value(body: bytes) -> Any:
    """Parse a body, a large one in a thread."""
    if len(body) > PARSE_IN_LINE_BYTES:
        return await asyncio.to_thread(json_text.parse, body)
    return json_text.parse(body)


def check_type(request: Request) -> None:
    """Refuse bodies that cannot be JSON."""
    kind = request.headers.get(b"content-type", b"").lower()
    if kind.startswith(_REFUSED_TYPES):
        raise ContentTypeNotSupported("Send JSON as application/json")
    if request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ContentTypeNotSupported("Send the body without Content-Encoding")


def rest_type(request: Request, version: str) -> bytes:
    """Return the media type a REST caller wants; 0.x has one."""
    if version != "1.0":
        return JSON
    accept = request.headers.get(b"accept", b"")
    if A2A_JSON in accept:
        return A2A_JSON
    if JSON in accept or request.headers.get(b"content-type", b"").startswith(JSON):
        return JSON
    return A2A_JSON
