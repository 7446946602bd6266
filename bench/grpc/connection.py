"""A client of gRPC that costs little: prebuilt frames of HTTP/2, and no more read of an answer than
says whether it is right. grpcio's own takes as long for a message as the server that is measured.
"""

import asyncio
from typing import Any, Self

from dragoman.http.grpc import frames
from dragoman.http.grpc.front import PREFACE
from dragoman.http.grpc.header_blocks import HeaderReader, written
from dragoman.transports.grpc.framing import framed

_SETTINGS = frames.settings_frame({frames.INITIAL_WINDOW_SIZE: frames.LARGEST_WINDOW})
# More than a round can use up.
_ROOM = frames.number_frame(frames.WINDOW_UPDATE, 0, frames.LARGEST_WINDOW - frames.WINDOW_BYTES)
_OK = (b"grpc-status", b"0")


class _Answer:
    """What has come of one rpc."""

    __slots__ = ("data", "done")

    def __init__(self) -> None:
        self.data = bytearray()
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class RpcConnection(asyncio.Protocol):
    """One connection to a server; raises `ConnectionError` for an rpc that does not end well."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._next = 1
        self._rest = b""
        self._open: dict[int, _Answer] = {}
        self._headers = HeaderReader()
        self._heads: dict[str, bytes] = {}

    @classmethod
    async def to(cls, port: int) -> Self:
        """Connect to a server of this machine."""
        loop = asyncio.get_running_loop()
        _, found = await loop.create_connection(cls, "127.0.0.1", port)
        return found

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(PREFACE + _SETTINGS + _ROOM)

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._open.values():
            if not answer.done.done():
                answer.done.set_exception(ConnectionError("the server hung up"))

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    async def call(self, path: str, request: bytes) -> bytes:
        """Return the messages that an rpc is answered with, framed."""
        stream, self._next = self._next, self._next + 2
        answer = self._open[stream] = _Answer()
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = request_head(path)
        self._transport.write(
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream, head)
            + frames.frame(frames.DATA, frames.END_STREAM, stream, framed(request))
        )
        return await answer.done

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, end = 0, len(data)
        while end - at >= frames.HEAD_BYTES:
            head, flags, stream = frames.read_head(data, at)
            stop = at + frames.HEAD_BYTES + (head >> 8)
            if stop > end:
                break
            body = data[at + frames.HEAD_BYTES : stop]
            self._take(head & 0xFF, flags, stream, body)
            at = stop
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        answer = self._open.get(stream)
        if kind == frames.DATA and answer is not None:
            answer.data += body
        elif kind == frames.HEADERS:
            found = self._headers.read(body)
            if flags & frames.END_STREAM and answer is not None:
                del self._open[stream]
                if answer.done.done():
                    # Its caller has given up, for another one failed.
                    return
                if _OK in found.headers:
                    answer.done.set_result(bytes(answer.data))
                else:
                    answer.done.set_exception(ConnectionError(str(found.headers)))
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._transport.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags & frames.ACK:
            self._transport.write(frames.frame(frames.PING, frames.ACK, 0, body))


def messages(data: bytes) -> list[bytes]:
    """Return the messages that framed ones are."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        found.append(data[at + 5 : end])
        at = end
    return found


def request_head(path: str) -> bytes:
    """Return the headers of an rpc."""
    return written(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"127.0.0.1"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"bench"),
        ]
    )
