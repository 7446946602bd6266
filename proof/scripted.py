"""An agent that answers as a check tells it to, byte by byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from dragoman.model.card import JSONRPC, AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from dragoman.testing.load import HOST

WORKING, DONE = "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
    b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
)

# Writes an answer to a method, and then hangs, or returns for the connection to be closed.
Say = Callable[["Answer", str], Awaitable[None]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Answer:
    """The answer to one request, written piece by piece."""

    def __init__(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        self._writer = writer
        self._id = asked["id"]
        self.params = asked["params"]

    async def head(self, kind: bytes = b"text/event-stream") -> None:
        """Begin an answer."""
        await self._write(_HEAD % kind)

    async def piece(self, data: bytes) -> None:
        """Write some bytes of it."""
        await self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, state: str, id: str = "t-1") -> None:
        """Show the task in a state."""
        await self.piece(self.framed({"task": task(state, id)}))

    def framed(self, result: dict[str, Any]) -> bytes:
        """Return something as an event of a stream."""
        return b"data: %b\n\n" % self._body(result=result)

    async def whole(self, **said: Any) -> None:
        """Write all of an answer that is no stream."""
        await self.head(b"application/json")
        await self.piece(self._body(**said))
        await self._write(b"0\r\n\r\n")

    def _body(self, **said: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": self._id, **said}).encode()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


def task(state: str, id: str = "t-1") -> dict[str, Any]:
    """Return a task in a state; most agents here have one."""
    return {"id": id, "contextId": "c-1", "status": {"state": state}}


async def hang() -> None:
    """Say nothing more."""
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def talking(talk: Talk) -> AsyncGenerator[int]:
    """Let a coroutine talk on every connection; give the port. At the end all are closed."""
    talks: set[asyncio.Future[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = asyncio.ensure_future(talk(reader, writer))
        talks.add(made)
        made.add_done_callback(talks.discard)
        # Not by the coroutine: one that is cancelled early never began.
        made.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(connected, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # What was accepted in this turn of the loop begins with the next, and what is closed in one
        # is gone after the next.
        for _ in range(3):
            await asyncio.sleep(0)
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)


@contextlib.asynccontextmanager
async def listening(say: Say) -> AsyncGenerator[str]:
    """Serve an agent that answers as it is told; give its address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST"):
                writer.write(_to_a_look(head, url))
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            await say(Answer(writer, asked), asked["method"])

    async with talking(talk) as port:
        url = f"http://{HOST}:{port}"
        yield url


def _to_a_look(head: bytes, url: str) -> bytes:
    """Return the answer to who looks whether an agent is there, and wants its card."""
    if not head.startswith(b"GET /.well-known/agent-card.json "):
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    shown = msgspec.json.encode(card(url))
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(shown), shown)


def card(url: str) -> AgentCard:
    """Return what it says of itself."""
    return AgentCard(
        name="Scripted",
        description="Answers as it is told.",
        supported_interfaces=[AgentInterface(url, JSONRPC, "1.0")],
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill("s", "S", "Does.", ["t"])],
    )
