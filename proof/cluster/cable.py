"""What lies between a replica and PostgreSQL: a proxy that passes bytes on, until it is hurt.

It can be cut, go silent (no byte passes and nobody is told), lose the reply to a commit, and
swallow notifications as a pooler does.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator

from dragoman.testing.load import HOST

_PIECE = 1 << 16
_WRITES = b"write_group"
# A connection that is given back says UNLISTEN.
_LISTENS = re.compile(rb"(?<!UN)LISTEN ")
_HEAD = 5
_NOTIFICATION = b"A"
_FAILED = b"E"
# A statement was carried out; the server is ready for the next one, so the commit is behind it.
_BOUND, _DONE, _READY = b"2", (b"C", b"s"), b"Z"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Stream]]


def to_port(port: int) -> Connect:
    """Return what connects to a port of this machine."""

    async def connect() -> Stream:
        return await asyncio.open_connection(HOST, port)

    return connect


class _Wire:
    """One connection that goes through."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._near = near
        self._far = far
        # What a client has said on it tells what it is for.
        self.writes = self.listens = False

    def abort(self) -> None:
        self._near.transport.abort()
        self._far.transport.abort()


class Cable:
    """A port of this machine whose connections go on to a target."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.port = 0
        # Replies to committed groups: how many to lose, how many were lost.
        self.to_lose = self.lost = 0
        # Whether notifications are swallowed, and how many were.
        self.is_deaf = False
        self.swallowed = 0
        self._wires: set[_Wire] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._is_silent_to_listeners = False
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut everything for good."""
        if self._server is not None:
            self._server.close()
        self.cut()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # An aborted transport lets go of its socket at the next turn.
        await asyncio.sleep(0)

    def cut(self, *, listeners_only: bool = False) -> None:
        """End the connections there are."""
        for wire in list(self._wires):
            if wire.listens or not listeners_only:
                wire.abort()

    def silence(self, *, listeners_only: bool = False) -> None:
        """Let no byte through from here on; both ends take the connections for alive."""
        if listeners_only:
            self._is_silent_to_listeners = True
        self._passes.clear()

    def restore(self) -> None:
        """Let bytes through again."""
        self._is_silent_to_listeners = False
        self._passes.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            # Of `close`; asyncio would log it.
            pass
        finally:
            self._running.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_silent_to_listeners:
            await self._passes.wait()
        try:
            far_reader, far_writer = await self.connect()
        except OSError:
            return
        wire = _Wire(writer, far_writer)
        self._wires.add(wire)
        pumps = [
            asyncio.ensure_future(self._there(wire, reader, far_writer)),
            asyncio.ensure_future(self._back(wire, far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._wires.discard(wire)
            wire.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _passed(self, wire: _Wire) -> None:
        if not self._is_silent_to_listeners or wire.listens:
            await self._passes.wait()

    async def _there(
        self, wire: _Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                wire.writes = wire.writes or _WRITES in data
                wire.listens = wire.listens or bool(_LISTENS.search(data))
                await self._passed(wire)
                writer.write(data)
                await writer.drain()

    async def _back(
        self, wire: _Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._passed(wire)
                if self.to_lose and wire.writes and _says_committed(data):
                    self.to_lose -= 1
                    self.lost += 1
                    return
                if self.is_deaf and wire.listens:
                    data = self._without_notifications(data)
                writer.write(data)
                await writer.drain()

    def _without_notifications(self, data: bytes) -> bytes:
        kept = [part for part in _messages(data) if part[:1] != _NOTIFICATION]
        self.swallowed += len(list(_messages(data))) - len(kept)
        return b"".join(kept)


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a piece; the last may be a part of one."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + _HEAD]) + 1 if len(data) >= at + _HEAD else 0
        end = at + size if size >= _HEAD else len(data)
        yield data[at:end]
        at = end


def _says_committed(data: bytes) -> bool:
    kinds = {part[:1] for part in _messages(data)}
    done = _BOUND in kinds and not kinds.isdisjoint(_DONE) and _READY in kinds
    return done and _FAILED not in kinds
