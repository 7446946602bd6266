"""An agent made of bytes: a server that writes what a script says, and keeps what it was asked.

It is no HTTP server. A request is read as far as needed to know what is asked; the answer is
whatever the script yields: bytes, pauses, silence, or the end of the connection.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from harness.stub_servers import listening

# Besides bytes, which are written, and seconds to wait: never say more, end, or break off.
Move = bytes | float | Literal["hang", "end", "reset"]
Answer = Iterable[Move]

# What a request asks for, by method or path.
_OPERATIONS = {
    "SendMessage": "send",
    "SendStreamingMessage": "send",
    "message/send": "send",
    "message/stream": "send",
    "message:send": "send",
    "message:stream": "send",
    "SubscribeToTask": "subscribe",
    "tasks/resubscribe": "subscribe",
    "GetTask": "get",
    "tasks/send": "send",
    "tasks/get": "get",
    "CancelTask": "cancel",
    "tasks/cancel": "cancel",
    "ListTasks": "list",
}


@dataclass
class Asked:
    """A request as it came."""

    verb: str
    # Without the first segment, which says whom it is for.
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    # The whole head, for whoever looks for what must not be there.
    head: bytes = b""
    # How many came before it for the same operation.
    before: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}

    @property
    def id(self) -> Any:
        return self.json.get("id") if "method" in self.json else None

    @property
    def operation(self) -> str:
        """One of send, get, subscribe, cancel, list and card."""
        if ".well-known" in self.path:
            return "card"
        if self.body and "method" in self.json:
            return _OPERATIONS.get(self.json["method"], "other")
        tail = self.path.rpartition("/")[2]
        if tail in ("message:send", "message:stream", "send"):
            return "send"
        if tail.endswith(":subscribe"):
            return "subscribe"
        if tail.endswith(":cancel"):
            return "cancel"
        return "list" if tail == "tasks" else "get"

    @property
    def is_stream(self) -> bool:
        method = self.json.get("method", "") if self.body else ""
        return "tream" in f"{method}{self.path}" or self.operation == "subscribe"


class Peer:
    """A server with an agent at each first segment of a path."""

    def __init__(self, answer: Callable[[str, Asked], Answer | Awaitable[Answer]]) -> None:
        self._answer = answer
        self.requests: list[tuple[str, Asked]] = []
        self.dials = 0
        self.url = ""
        self._counts: dict[tuple[str, str], int] = {}

    def count(self, name: str, operation: str) -> int:
        return self._counts.get((name, operation), 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dials += 1
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        verb, target, _ = first.split(" ")
        headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]
        length = int(dict(headers).get("content-length", "0"))
        body = await reader.readexactly(length)
        name, _, rest = target.lstrip("/").partition("/")
        asked = Asked(verb, f"/{rest}", headers, body, head)
        place = name, asked.operation
        asked.before = self._counts.get(place, 0)
        self._counts[place] = asked.before + 1
        self.requests.append((name, asked))
        moves = self._answer(name, asked)
        if isinstance(moves, Awaitable):
            moves = await moves
        for move in moves:
            if isinstance(move, bytes):
                writer.write(move)
                await writer.drain()
                # Whoever reads has to get a turn between two pieces.
                await asyncio.sleep(0)
            elif isinstance(move, float):
                await asyncio.sleep(move)
            elif move == "hang":
                # Until whoever waits hangs up.
                await reader.read()
                return False
            elif move == "reset":
                writer.transport.abort()
                return False
            else:
                return False
        return True


@asynccontextmanager
async def raw_peer(
    answer: Callable[[str, Asked], Answer | Awaitable[Answer]],
) -> AsyncGenerator[Peer]:
    """Serve agents made of bytes on a free port."""
    peer = Peer(answer)
    async with listening(peer.serve, limit=1 << 20) as port:
        peer.url = f"http://127.0.0.1:{port}"
        yield peer


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", *more: str) -> bytes:
    """Return a well-made answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *more]
    if kind:
        lines.append(f"content-type: {kind}")
    return "\r\n".join([*lines, "", ""]).encode() + body


# A stream's head; its end is the end of the connection.
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def card(
    url: str,
    *,
    version: str = "1.0",
    binding: str = "JSONRPC",
    streaming: bool = False,
    extensions: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the card of an agent."""
    capabilities: dict[str, Any] = {"streaming": streaming, "pushNotifications": False}
    if extensions:
        capabilities["extensions"] = [{"uri": uri} for uri in extensions]
    shared: dict[str, Any] = {
        "name": url.rpartition("/")[2],
        "description": "Says what it is told to.",
        "version": "1",
        "capabilities": capabilities,
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "Does.", "tags": ["t"]}],
    }
    if version == "1.0":
        offered = {"url": url, "protocolBinding": binding, "protocolVersion": version}
        return shared | {"supportedInterfaces": [offered]}
    named = shared | {"url": url, "protocolVersion": f"{version}.0"}
    return named | {"preferredTransport": binding}
