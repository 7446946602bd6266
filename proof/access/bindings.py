"""Requests of every binding and version for one operation, and their answers byte by byte.

Small on purpose: what two answers have in common is the question, so nothing may tidy them up.
"""

import asyncio
import time
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import CORVID, NEXUS, Corvid, nexus, r
from dragoman.dialects.operations import OperationRow
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.model import operations as ops
from dragoman.model.record import encode
from dragoman.testing.load import HOST
from dragoman.transports import jsonrpc, rest
from proof.client import ANSWER_WITHIN, ConnectionGone

# Tells the time, so it differs between any two answers.
# Seconds without a request after which a connection is not trusted any more.
_IDLE = 1.0
_DATED = b"date:"


class Binding(NamedTuple):
    """A version of the protocol in one of its envelopes."""

    name: str
    dialect: Dialect
    is_rest: bool = False
    # Of the one address all JSON-RPC calls go to.
    path: str = "/"
    # The operations that a house has of which the table can tell; none: all of its version.
    only: tuple[type[ops.Operation], ...] = ()

    def offers(self, row: OperationRow) -> bool:
        """Tell whether the operation can be asked for here, about one task or context: what 0.3
        lists over REST alone is not about any."""
        if self.only:
            return row.operation in self.only
        return self.dialect.version == V1_0.version or bool(row.v0)


BINDINGS = (
    Binding("JSON-RPC 1.0", V1_0),
    Binding("REST 1.0", V1_0, is_rest=True),
    Binding("JSON-RPC 0.3", V0_3),
    Binding("REST 0.3", V0_3_PROTO, is_rest=True),
    Binding("JSON-RPC 0.2", V0_2),
    Binding("JSON-RPC 0.3 of house R", V0_3, path=r.PATH),
)
# Who sends here names the task, so that one that is not there is begun: only reading can be told.
HOUSES = (
    Binding("JSON-RPC of NEXUS", NEXUS, path=nexus.PATH, only=(ops.GetTask,)),
    Binding("REST of corvid", CORVID, is_rest=True, only=(ops.GetTask,)),
)


def request(
    binding: Binding, operation: ops.Operation, key: str = "", *more: tuple[str, str]
) -> bytes:
    """Return the request for an operation, by the holder of a key."""
    verb, path, body = _asked(binding, operation)
    headers = [("Host", HOST), ("A2A-Version", binding.dialect.version), *more]
    if key:
        headers.append(("X-API-Key", key))
    if body is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    lines = [f"{verb} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def _asked(binding: Binding, operation: ops.Operation) -> tuple[str, str, bytes | None]:
    if isinstance(binding.dialect, Corvid):
        verb, path, content = binding.dialect.request(operation)
        return verb, path, None if content is None else encode(content)
    if not binding.is_rest:
        method, params = binding.dialect.encode_request(operation)
        return "POST", binding.path, jsonrpc.request(1, method, params)
    outgoing = rest.request(binding.dialect, operation)
    body = None if outgoing.body is None else encode(outgoing.body)
    return outgoing.verb, outgoing.path, b"" if body is None and outgoing.verb == "POST" else body


class Answer(NamedTuple):
    """An answer, or the beginning of a stream."""

    status: int
    head: bytes
    body: bytes
    # Seconds from the request to the last byte that was read.
    took: float

    @property
    def is_stream(self) -> bool:
        """Whether it goes on."""
        return b"\r\ncontent-type: text/event-stream" in self.head.lower()

    def without(self, *ids: str) -> bytes:
        """Return all that was sent but for the date, and with the ids that were asked about
        replaced by one word."""
        lines = self.head.split(b"\r\n")
        kept = b"\r\n".join(line for line in lines if not line.lower().startswith(_DATED))
        body = self.body
        for id in ids:
            if id:
                body = body.replace(id.encode(), b"<id>")
                kept = kept.replace(id.encode(), b"<id>")
        return kept + b"\r\n\r\n" + body


class Channel(Protocol):
    """A way to a server."""

    async def ask(self, request: bytes) -> Answer:
        """Return the answer to a request; of a stream, what it begins with."""
        ...

    def close(self) -> None:
        """Let go of the server."""
        ...


class Wire:
    """One connection, opened again where an answer ended it, and where it was idle: servers close
    what is, and a request that crosses that is lost."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._used_at = 0.0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def ask(self, request: bytes) -> Answer:
        """Return the answer to a request; of a stream, what it begins with."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                if time.monotonic() - self._used_at > _IDLE:
                    self.close()
                if self._reader is None or self._writer is None:
                    self._reader, self._writer = await asyncio.open_connection(HOST, self.port)
                began = time.perf_counter()
                self._writer.write(request)
                head = (await self._reader.readuntil(b"\r\n\r\n"))[:-4]
                body, is_whole = await self._body(self._reader, head.lower())
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self.close()
            raise ConnectionGone(repr(error)) from None
        took = time.perf_counter() - began
        self._used_at = time.monotonic()
        if not is_whole or b"\r\nconnection: close" in head.lower():
            self.close()
        return Answer(int(head.split(b" ", 2)[1]), head, body, took)

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> tuple[bytes, bool]:
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line[15:])), True
        if head.split(b" ", 2)[1] == b"204":
            return b"", True
        # A stream: its first piece tells whether it is one.
        size = int(await reader.readline(), 16)
        return await reader.readexactly(size), False


class AppLine:
    """An ASGI app in this process, asked without a socket."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def close(self) -> None:
        """There is nothing to let go of."""

    async def ask(self, request: bytes) -> Answer:
        """Return the answer to a request."""
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        verb, target, version = first.decode().split(" ")
        path, _, query = target.partition("?")
        fields = [line.split(b": ", 1) for line in lines]
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": version.removeprefix("HTTP/"),
            "method": verb,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower(), value) for name, value in fields],
            "client": (HOST, 1),
        }
        began, said = time.perf_counter(), list[dict[str, Any]]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        async with asyncio.timeout(ANSWER_WITHIN):
            await self._app(scope, receive, send)
        status: int = said[0]["status"]
        told = [b"HTTP/1.1 %d" % status, *(b"%b: %b" % field for field in said[0]["headers"])]
        content = b"".join(one.get("body", b"") for one in said[1:])
        return Answer(status, b"\r\n".join(told), content, time.perf_counter() - began)
