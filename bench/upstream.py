"""`python -m bench.upstream`: an agent that answers at once.

It completes every message with its own text and keeps nothing, in a tenth of the time that any
server of agents takes: what is measured is the way to it. Its card says that a message sent twice
is worked on once, which is true of an agent whose work is to repeat it.
"""

import asyncio
import json
from typing import Any, cast

import httptools
import msgspec
import uvloop

from dragoman.model.card import ONCE_URI

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_HEAD = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def card(port: int) -> bytes:
    """Return the card of the agent."""
    interface = {
        "url": f"http://127.0.0.1:{port}/",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    skill = {"id": "echo", "name": "echo", "description": "Says it again.", "tags": ["bench"]}
    described = {
        "name": "Instant",
        "description": "Says it again.",
        "version": "1.0.0",
        "supportedInterfaces": [interface],
        "capabilities": {"streaming": False, "extensions": [{"uri": ONCE_URI}]},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [skill],
    }
    return json.dumps(described).encode()


def answer(body: bytes) -> bytes:
    """Return the completed task of a message."""
    request: dict[str, Any] = _decode(body)
    message = request["params"]["message"]
    id = f"task-{message['messageId']}"
    message |= {"taskId": id, "contextId": "bench"}
    task = {
        "id": id,
        "contextId": "bench",
        "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00.000Z"},
        "artifacts": [{"artifactId": "a", "name": "result", "parts": message["parts"]}],
        "history": [message],
    }
    return _encode({"jsonrpc": "2.0", "id": request["id"], "result": {"task": task}})


class Connection(asyncio.Protocol):
    """One connection: one request after another."""

    card = b""
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = b"200 OK"
        if self._parser.get_method() == b"POST":
            content = answer(self._body)
        elif self._url.endswith(b"/agent-card.json"):
            content = self.card
        else:
            status, content = b"404 Not Found", b"{}"
        self._transport.write(_HEAD % (status, len(content)) + content)


async def main() -> None:
    """Serve until killed."""
    listening = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    Connection.card = card(port)
    print(f"Ready: http://127.0.0.1:{port}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
