"""A pooler before PostgreSQL that shares sessions by transaction, as such poolers do: whoever asks
gets the session that was given back last, and wake-ups reach no client."""

import asyncio
import struct

from tests.stores.postgres.proxy import Proxy

_SSL_REQUEST = 80877103
# What a client ends with that waits, and what the answer to that ends with: a query or a sync when
# the server is ready, a flush when it has described a statement.
_ENDS = {b"S": (b"Z",), b"Q": (b"Z",), b"H": (b"T", b"n", b"E")}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SharingPooler(Proxy):
    """Gives each transaction of a client some session of the server."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._free: list[Streams] = []
        self._all: list[Streams] = []
        # Cleared to have it answer nobody.
        self.awake = asyncio.Event()
        self.awake.set()

    async def stop(self) -> None:
        await super().stop()
        for _, writer in self._all:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._greet(reader, writer)
            pinned: Streams | None = None
            while batch := await _batch(reader):
                await self.awake.wait()
                pinned = pinned or self._free.pop()
                ending, said = batch
                pinned[1].write(said)
                kind = message = b""
                while kind not in _ENDS[ending]:
                    kind, message = await _message(pinned[0])
                    if kind != b"A":
                        writer.write(message)
                if kind == b"Z" and message[5:6] == b"I":
                    self._free.append(pinned)
                    pinned = None
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a client in, with one more session for all."""
        await self.awake.wait()
        while True:
            size = await reader.readexactly(4)
            body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
            if struct.unpack("!I", body[:4])[0] != _SSL_REQUEST:
                break
            writer.write(b"N")
        streams = await asyncio.open_connection("127.0.0.1", self._parts.port)
        streams[1].write(size + body)
        kind = b""
        while kind != b"Z":
            kind, message = await _message(streams[0])
            writer.write(message)
        self._all.append(streams)
        self._free.append(streams)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def _batch(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Return what a client says until it waits for an answer, and how that ends; None: it is
    leaving."""
    batch = b""
    while True:
        kind, message = await _message(reader)
        if kind == b"X":
            return None
        batch += message
        if kind in _ENDS:
            return kind, batch
