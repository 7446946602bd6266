"""A proxy that breaks answers off: at any byte, by a close or by a reset, sometimes after a pause.

It stands on loopback before one server and passes everything else on. Where an answer breaks is
drawn from a seed: in its head, in the size of a chunk, in a line, or exactly between two events.
"""

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from dragoman.testing.load import HOST

_PIECE = 16 * 1024
_HEAD_END = b"\r\n\r\n"
_EVENTS = b"text/event-stream"
# The size of a chunk, between the chunk before it and its own bytes.
_SIZE = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")
# So many cuts in a row may come before anything new was read; then an event passes, or clients
# that wait longer each time would do nothing but wait.
_FRUITLESS = 2

# From an answer as it stands so far to where it breaks; None: not within that.
Where = Callable[[bytes], int | None]


def in_head(share: float) -> Where:
    """Break within the head of an answer: at 0.0 before its first byte."""

    def where(answer: bytes) -> int | None:
        end = answer.find(_HEAD_END)
        return None if end < 0 else int(share * (end + len(_HEAD_END)))

    return where


def at_byte(offset: int) -> Where:
    """Break so many bytes after the head."""

    def where(answer: bytes) -> int | None:
        end = answer.find(_HEAD_END)
        place = end + len(_HEAD_END) + offset
        return place if end >= 0 and place <= len(answer) else None

    return where


def in_size(number: int) -> Where:
    """Break within the size of the nth chunk: a reader of chunks has half a number."""

    def where(answer: bytes) -> int | None:
        found = list(_SIZE.finditer(answer))
        return found[number].start() + 3 if len(found) > number else None

    return where


def between_events(number: int) -> Where:
    """Break after the nth event and the end of its chunk."""

    def where(answer: bytes) -> int | None:
        place = -1
        for _ in range(number + 1):
            place = answer.find(b"\n\n", place + 1)
            if place < 0 or place + 4 > len(answer):
                return None
        return place + 4

    return where


def draw(chance: random.Random, *, is_kind: bool = False) -> tuple[str, Where]:
    """Return where the next answer breaks, and what that is called; kind: not before an event."""
    kind = chance.choice(["head", "byte", "byte", "size", "size", "between", "between"])
    if is_kind:
        return "between", between_events(chance.randint(1, 6))
    match kind:
        case "head":
            return kind, in_head(chance.random())
        case "byte":
            return kind, at_byte(chance.choice([0, 0, 300, 1000, 3000]) + chance.randrange(400))
        case "size":
            return kind, in_size(chance.choice([0, 1, 2, 4, 8]))
        case _:
            return kind, between_events(chance.choice([0, 0, 1, 1, 2, 3, 5, 10]))


class Chaos:
    """The proxy before one server. While `is_cutting`, some answers break, as the seed says."""

    def __init__(self, port: int, chance: random.Random, *, rate: float = 0.9) -> None:
        self.address = ""
        self.is_cutting = True
        self.cuts: Counter[str] = Counter()
        self._port = port
        self._chance = chance
        # The share of streams that break; of other answers a quarter of that does.
        self._rate = rate
        self._fruitless = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def total(self) -> int:
        """How many answers broke."""
        return self.cuts.total()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        relaying = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._open.add(relaying)
        relaying.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """End every connection, wherever it is."""
        for relaying in list(self._open):
            relaying.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, to_them = await asyncio.open_connection(HOST, self._port)
        except OSError:
            writer.close()
            return
        answer = _Answer()
        asking = asyncio.create_task(self._ask(reader, to_them, answer))
        try:
            with contextlib.suppress(OSError):
                await self._pass_on(theirs, writer, answer)
        finally:
            asking.cancel()
            to_them.transport.abort()
            writer.close()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: "_Answer"
    ) -> None:
        """Pass requests on; each begins an answer, since a caller asks once the last is read."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                if answer.bytes:
                    answer.begin()
                writer.write(data)
                await writer.drain()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: "_Answer"
    ) -> None:
        chance = self._chance
        while data := await reader.read(_PIECE):
            passed = len(answer.bytes)
            answer.bytes += data
            if not answer.is_planned and _HEAD_END in answer.bytes:
                self._plan(answer)
            place = answer.where(bytes(answer.bytes)) if answer.where else None
            is_cut = place is not None and place < len(answer.bytes)
            if is_cut:
                data = bytes(answer.bytes[passed : max(passed, place or 0)])
                shown = bytes(answer.bytes[:place])
                # The first event of one that comes back is the Task as it knew it.
                self._fruitless = 0 if shown.count(b"\n\n") > 1 else self._fruitless + 1
                if shown.endswith(b"\n\n\r\n") and chance.random() < 0.3:
                    # As a server that stops: the stream ends, and its task does not.
                    answer.kind = "ended"
                    data += b"0\r\n\r\n"
                self.cuts[answer.kind] += 1
            if answer.kind and len(data) > 1 and chance.random() < 0.05:
                # One byte comes by itself, and the rest a little later.
                writer.write(data[:1])
                await writer.drain()
                await asyncio.sleep(chance.random() / 100)
                data = data[1:]
            writer.write(data)
            await writer.drain()
            if is_cut:
                if answer.kind != "ended" and chance.random() < 0.3:
                    _reset(writer)
                return

    def _plan(self, answer: "_Answer") -> None:
        answer.is_planned = True
        is_stream = _EVENTS in answer.bytes.partition(_HEAD_END)[0]
        rate = self._rate if is_stream else self._rate / 4
        if not self.is_cutting or self._chance.random() >= rate:
            return
        answer.kind, answer.where = draw(self._chance, is_kind=self._fruitless >= _FRUITLESS)


class _Answer:
    """What a server said to one request so far, and where it is to break."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.bytes = bytearray()
        self.is_planned = False
        self.kind = ""
        self.where: Where | None = None


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have the connection end with a reset: what is not yet read may be lost with it."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def chaos(port: int, chance: random.Random, *, rate: float = 0.9) -> AsyncGenerator[Chaos]:
    """Run a proxy before a port of this machine."""
    proxy = Chaos(port, chance, rate=rate)
    server = await asyncio.start_server(proxy.connected, HOST, 0)
    proxy.address = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
