"""One stream of HTTP/2: what is said on it, and how much of that its caller takes."""

import asyncio
from typing import Protocol

from dragoman.http.deadlines import BODY_SECONDS, BYTES_PER_SECOND, NEVER, WRITE_SECONDS
from dragoman.http.grpc import frames
from dragoman.http.grpc.frames import frame, number_frame
from dragoman.http.grpc.purse import ANSWERED, PER_WRITE

_LAST_HEADERS = frames.END_HEADERS | frames.END_STREAM


class StreamConnection(Protocol):
    """What a stream needs of its connection."""

    # Bytes of requests that are not whole yet.
    held: int
    # What the caller takes: of all streams, of a new one, and in one frame.
    window: int
    stream_window: int
    frame_bytes: int

    def write(self, data: bytes) -> None:
        """Write frames."""
        ...

    def room(self, stream: "Http2Stream") -> int:
        """Return how much may be sent on a stream now."""
        ...

    def earn(self, amount: float) -> None:
        """Something was done that its caller asked for."""
        ...

    def forget(self, stream: "Http2Stream") -> None:
        """A stream is closed."""
        ...


class RequestReader(Protocol):
    """Takes what a caller says on one stream."""

    def take(self, data: bytes) -> None:
        """Some of the body has come."""
        ...

    def end(self) -> None:
        """The body has ended."""
        ...

    def lose(self) -> None:
        """The caller has given the stream up, or is gone."""
        ...


class Http2Stream:
    """One stream, to write to."""

    __slots__ = ("_waiting", "began_at", "connection", "id", "is_answered", "is_begun", "is_ended",
                 "is_gone", "reader", "received", "taken_by", "unread", "window")  # fmt: skip

    def __init__(self, connection: StreamConnection, id: int, began_at: float) -> None:
        self.connection = connection
        self.id = id
        self.began_at = began_at
        # What may be sent, and what has come since its sender was last told to go on.
        self.window = connection.stream_window
        self.unread = 0
        self.received = 0
        # Whether all was said by the caller; whether what it asks for was begun; whether anything
        # was said by us; whether it is closed.
        self.is_ended = False
        self.is_begun = False
        self.is_answered = False
        self.is_gone = False
        # By when the caller should have taken a whole answer. Events of streams have no such time.
        self.taken_by = NEVER
        self.reader: RequestReader | None = None
        self._waiting: asyncio.Future[None] | None = None

    def send_headers(self, block: bytes, *, ends: bool = False) -> None:
        """Send headers, or with `ends` what ends the stream."""
        if not self.is_gone:
            self.connection.write(self._headers(block, ends=ends))
            self._earn_answer()
            if ends:
                self._close()

    async def send(self, data: bytes) -> None:
        """Send data, and wait while the caller or the network does not take it."""
        connection = self.connection
        size = len(data)
        if size <= connection.room(self) and size <= connection.frame_bytes:
            self._send_part(data)
            return
        at = 0
        while at < size and not self.is_gone:
            room = min(connection.room(self), connection.frame_bytes)
            if room <= 0:
                await self._turn()
                continue
            self._send_part(data[at : at + room])
            at += room

    async def answer(self, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer: headers, data and what ends the stream."""
        connection = self.connection
        size = len(data)
        if self.is_gone:
            return
        most = connection.frame_bytes
        if size <= connection.room(self) and size <= most and len(head) + len(trailers) <= most:
            self.window -= size
            connection.window -= size
            id, pack_head = self.id, frames.pack_head
            connection.write(
                b"%b%b%b%b%b%b"
                % (
                    pack_head(len(head) << 8 | frames.HEADERS, frames.END_HEADERS, id),
                    head,
                    pack_head(size << 8, 0, id),
                    data,
                    pack_head(len(trailers) << 8 | frames.HEADERS, _LAST_HEADERS, id),
                    trailers,
                )
            )
            self._earn_answer()
            self._close()
            return
        seconds = WRITE_SECONDS + size / BYTES_PER_SECOND
        self.taken_by = asyncio.get_running_loop().time() + seconds
        self.send_headers(head)
        await self.send(data)
        self.send_headers(trailers, ends=True)

    def reset(self, code: int) -> None:
        """End the stream at once."""
        if not self.is_gone:
            self.connection.write(number_frame(frames.RST_STREAM, self.id, code))
            self.connection.forget(self)

    def abandon(self, code: int) -> None:
        """End the stream at once, and tell its reader."""
        self.reset(code)
        if self.reader is not None:
            self.reader.lose()

    def wake(self) -> None:
        """There may be room again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _earn_answer(self) -> None:
        """An answer begins. One that was not worked for brings nothing."""
        if not self.is_answered:
            self.is_answered = True
            if self.is_begun:
                self.connection.earn(ANSWERED)

    def _send_part(self, data: bytes) -> None:
        size = len(data)
        connection = self.connection
        if not self.is_gone:
            self.window -= size
            connection.window -= size
            connection.write(frames.pack_head(size << 8, 0, self.id) + data)
            # Its caller tells in return that there is room again.
            connection.earn(PER_WRITE)

    def _headers(self, block: bytes, *, ends: bool) -> bytes:
        flags = frames.END_STREAM if ends else 0
        most = self.connection.frame_bytes
        if len(block) <= most:
            return frame(frames.HEADERS, flags | frames.END_HEADERS, self.id, block)
        parts = [block[at : at + most] for at in range(0, len(block), most)]
        first, *between, last = parts
        return b"".join(
            [
                frame(frames.HEADERS, flags, self.id, first),
                *(frame(frames.CONTINUATION, 0, self.id, part) for part in between),
                frame(frames.CONTINUATION, frames.END_HEADERS, self.id, last),
            ]
        )

    def _close(self) -> None:
        """All was said by us."""
        connection = self.connection
        if not self.is_ended:
            # What else the caller would say is of no use.
            connection.write(number_frame(frames.RST_STREAM, self.id, frames.NO_ERROR))
        connection.forget(self)

    async def _turn(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def is_late(self, now: float) -> bool:
        """Tell whether a caller takes too long, to send a request or to take a whole answer."""
        if now > self.taken_by:
            return True
        allowed = max(BODY_SECONDS, self.received / BYTES_PER_SECOND)
        return not self.is_ended and not self.is_answered and now - self.began_at > allowed
