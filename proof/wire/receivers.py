"""Receivers of posts that misbehave as told, on loopback: each keeps what it was sent and knows
which of it it took.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Self

import msgspec

_HOST = "127.0.0.1"
_FLOOD = 10 * 1024**3
_PIECE = b"x" * 65_536


class Treatment(StrEnum):
    """What becomes of a post."""

    OK = "ok"
    ERROR = "500"
    # It is read and never answered.
    SILENCE = "timeout"
    RESET = "reset"
    MOVED = "301"
    GONE = "410"
    BUSY = "429"
    # It is taken, with an answer of 10 GB.
    FLOOD = "10 GB body"
    # The answer comes a byte at a time.
    DRIP = "slow drip"
    # The receiver does not speak TLS, although its address says so.
    TLS = "TLS error"


TAKES = (Treatment.OK, Treatment.FLOOD)


class Post(msgspec.Struct, frozen=True):
    """A post as it arrived, and what became of it."""

    headers: dict[str, str]
    body: bytes
    treatment: Treatment


class Receiver:
    """Treats its posts in order as told; the last treatment stays."""

    def __init__(self, treatments: Sequence[Treatment], *, busy_for: int = 60) -> None:
        self._left = list(treatments)
        self._busy_for = busy_for
        self.posts: list[Post] = []
        # Bytes of answers that the sender let us write.
        self.flooded = 0
        self.connections = 0
        self.arrived = asyncio.Event()
        self._is_tls = Treatment.TLS in treatments
        self._serving: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._is_tls else 'http'}://{_HOST}:{port}/hook"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    @property
    def taken(self) -> list[Post]:
        """What was answered with 2xx."""
        return [post for post in self.posts if post.treatment in TAKES]

    async def until(self, holds: Callable[[], bool], within: float = 60.0) -> list[Post]:
        """Wait until something holds, which is looked at with each post; return all posts."""
        async with asyncio.timeout(within):
            while not holds():
                self.arrived.clear()
                await self.arrived.wait()
        return self.posts

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server runs each connection in a task"
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.connections += 1
        # The sender may be gone at any point, and ends us when the proof is over.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._is_tls:
                await reader.read(1)
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                await writer.drain()
            else:
                await self._treat(await _read(reader, self._next()), writer)
        writer.close()

    def _next(self) -> Treatment:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    async def _treat(self, post: Post, writer: asyncio.StreamWriter) -> None:
        self.posts.append(post)
        self.arrived.set()
        match post.treatment:
            case Treatment.SILENCE:
                await asyncio.Event().wait()
            case Treatment.RESET:
                connection = writer.get_extra_info("socket")
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            case Treatment.FLOOD:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % _FLOOD)
                while self.flooded < _FLOOD:
                    writer.write(_PIECE)
                    await writer.drain()
                    self.flooded += len(_PIECE)
            case Treatment.DRIP:
                for byte in _drips():
                    writer.write(byte)
                    await writer.drain()
                    await asyncio.sleep(0.05)
            case _:
                writer.write(self._answer(post.treatment))
                await writer.drain()

    def _answer(self, treatment: Treatment) -> bytes:
        lines = {
            Treatment.OK: "204 No Content",
            Treatment.ERROR: "500 Internal Server Error\r\ncontent-length: 0",
            # Not even when it leads to where the sender was before.
            Treatment.MOVED: f"301 Moved Permanently\r\nlocation: {self.url}\r\ncontent-length: 0",
            Treatment.GONE: "410 Gone\r\ncontent-length: 0",
            Treatment.BUSY: f"429 Too Many Requests\r\nretry-after: {self._busy_for}\r\n"
            "content-length: 0",
        }
        return f"HTTP/1.1 {lines[treatment]}\r\nconnection: close\r\n\r\n".encode()


def _drips() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nx: "
    while True:
        yield b"x"


async def _read(reader: asyncio.StreamReader, treatment: Treatment) -> Post:
    head = await reader.readuntil(b"\r\n\r\n")
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:-2]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Post(headers, body, treatment)
