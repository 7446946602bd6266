"""One connection of HTTP/2 (RFC 9113): frames, windows, and what a caller may make us do in vain.

It knows streams and not what is said on them: `open` makes what reads each. Frames that ask for
work and bring none - pings, settings, resets - are paid from a purse that fills slowly, and faster
while rpcs are answered. A caller whose purse is empty is sent away.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dragoman.http.deadlines import (
    BODY_SECONDS,
    BYTES_PER_SECOND,
    HANDSHAKE_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
)
from dragoman.http.grpc import frames
from dragoman.http.grpc.frames import HEAD_BYTES, LARGEST_WINDOW, frame, number_frame
from dragoman.http.grpc.front import ServedConnection, TakenConnection
from dragoman.http.grpc.header_blocks import MOST_BYTES, ConnectionFault, HeaderBlock, HeaderReader
from dragoman.http.request import MAX_HEADER_BYTES

# Streams of one connection that are open at once.
MOST_STREAMS = 100
# What a caller may send before we have read it: on one stream, and on all.
STREAM_WINDOW = 256 * 1024
CONNECTION_WINDOW = 1024 * 1024
# Seconds of silence after which a connection is asked whether its caller is there, and those that
# the answer may take.
_ASK_AFTER, _ANSWER_WITHIN = 60.0, 20.0
_LOOK_EVERY = 5.0
_MOST_DISCARDED = 4 * 1024 * 1024
# Bytes that may wait for a caller that does not read. What streams say waits for room.
_MOST_UNTAKEN = 1024 * 1024
# The purse: what is in it at most, what a second brings, and what a frame or an rpc of ours does.
PURSE = 1_000.0
_PER_SECOND = 100.0
_PER_WRITE, _PER_STREAM = 2.0, 8.0
# A stream that is given up before it was answered costs more than a frame.
_GIVEN_UP = 5.0
# So do headers that are refused, and had to be read.
_TOO_LARGE = 20.0
# Headers up to this length cost nothing; a kilobyte more costs as much as a frame.
_CHEAP_BLOCK = 8 * 1024
_OUR_PING = b"dragoman"
_SETTINGS = frames.settings_frame(
    {
        frames.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
        frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
)
_GREETING = _SETTINGS + number_frame(
    frames.WINDOW_UPDATE, 0, CONNECTION_WINDOW - frames.WINDOW_BYTES
)
_SETTINGS_ACK = frame(frames.SETTINGS, frames.ACK, 0)


class StreamReader(Protocol):
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

    __slots__ = ("_waiting", "began_at", "connection", "id", "is_answered", "is_ended", "is_gone",
                 "reader", "received", "unread", "window")  # fmt: skip

    def __init__(self, connection: "Http2Connection", id: int, began_at: float) -> None:
        self.connection = connection
        self.id = id
        self.began_at = began_at
        # What may be sent, and what has come since its sender was last told to go on.
        self.window = connection.stream_window
        self.unread = 0
        self.received = 0
        # Whether all was said by the caller; whether anything was by us; whether it is closed.
        self.is_ended = False
        self.is_answered = False
        self.is_gone = False
        self.reader: StreamReader | None = None
        self._waiting: asyncio.Future[None] | None = None

    def send_headers(self, block: bytes, *, ends: bool = False) -> None:
        """Send headers, or with `ends` what ends the stream."""
        if not self.is_gone:
            self.connection.write(self._headers(block, ends=ends))
            self.is_answered = True
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
        if size <= connection.room(self) and size <= connection.frame_bytes:
            self.window -= size
            connection.window -= size
            connection.write(
                b"%b%b%b%b"
                % (
                    self._headers(head, ends=False),
                    frames.pack_head(size << 8, 0, self.id),
                    data,
                    self._headers(trailers, ends=True),
                )
            )
            self.is_answered = True
            self._close()
            return
        self.send_headers(head)
        await self.send(data)
        self.send_headers(trailers, ends=True)

    def reset(self, code: int) -> None:
        """End the stream at once."""
        if not self.is_gone:
            self.connection.write(number_frame(frames.RST_STREAM, self.id, code))
            self.connection.forget(self)

    def wake(self) -> None:
        """There may be room again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _send_part(self, data: bytes) -> None:
        size = len(data)
        connection = self.connection
        if not self.is_gone:
            self.window -= size
            connection.window -= size
            connection.write(frames.pack_head(size << 8, 0, self.id) + data)

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
        connection.earn(_PER_STREAM)
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


class Http2Connection(ServedConnection):
    """The server's end of a connection, behind its preface."""

    def __init__(
        self,
        connection: TakenConnection,
        open: Callable[[Http2Stream, HeaderBlock], StreamReader],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._open = open
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.transport = connection.transport
        self._write = self.transport.write
        self._streams: dict[int, Http2Stream] = {}
        self._last = 0
        self._buffer = bytearray()
        self._needed = HEAD_BYTES
        self._headers = HeaderReader()
        # Headers that have not ended: of which stream, whether they end it, and since when.
        self._block = bytearray()
        self._block_of = 0
        self._block_ends = False
        self._block_began = 0.0
        # Bytes of requests that are not whole yet.
        self.held = 0
        # What the caller takes.
        self.window = frames.WINDOW_BYTES
        self.stream_window = frames.WINDOW_BYTES
        self.frame_bytes = frames.FRAME_BYTES
        self._is_paused = False
        self._unread = 0
        self._is_greeted = False
        self._is_ending = False
        # Nothing more is read, and so much was dropped since.
        self._is_over = False
        self._discarded = 0
        now = self._loop.time()
        self._began_at = self._heard_at = self._busy_at = now
        self._asked_at = 0.0
        self._purse = PURSE
        self._purse_at = now
        self._on_frame = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_reset,
            self._on_settings,
            self._on_push,
            self._on_ping,
            self._on_goaway,
            self._on_window,
            self._on_continuation,
        )
        self._write(_GREETING)
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)

    @property
    def open_rpcs(self) -> int:
        """How many streams are being answered, or asked."""
        return len(self._streams)

    # The network

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self.transport.abort()
            return
        self._heard_at = self._loop.time()
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        try:
            self._read(data)
        except ConnectionFault as fault:
            self._fail(fault.code)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._wake_all()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._timer.cancel()
        for stream in list(self._streams.values()):
            self._lose(stream)
        self._on_lost()
        self._connection.connection_lost(exc)

    # For streams

    def write(self, data: bytes) -> None:
        """Write frames."""
        if not self._is_over:
            self._write(data)
            self.earn(_PER_WRITE)

    def room(self, stream: Http2Stream) -> int:
        """Return how much may be sent on a stream now."""
        return 0 if self._is_paused else min(self.window, stream.window)

    def earn(self, amount: float) -> None:
        """Something was done that its caller asked for."""
        self._purse = min(PURSE, self._purse + amount)

    def pay(self, amount: float) -> None:
        """Something is asked that brings nothing; raises `ConnectionFault`."""
        self._purse -= amount
        if self._purse < 0:
            now = self._loop.time()
            self._purse = min(PURSE, self._purse + (now - self._purse_at) * _PER_SECOND)
            self._purse_at = now
            if self._purse < 0:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM)

    def forget(self, stream: Http2Stream) -> None:
        """A stream is closed."""
        stream.is_gone = True
        self._streams.pop(stream.id, None)
        self._busy_at = self._heard_at
        if self._is_ending and not self._streams:
            self.close()

    # Ends

    def end(self) -> None:
        """Take no more streams, and close once those that are open have ended."""
        if not self._is_ending and not self._is_over:
            self._is_ending = True
            self._tell_end(frames.NO_ERROR)
            if not self._streams:
                self.close()

    def close(self) -> None:
        """Close, once what was written is sent."""
        self._is_over = True
        for stream in list(self._streams.values()):
            self._lose(stream)
        self.transport.close()

    def _fail(self, code: int) -> None:
        """Send the caller away, and give it time to read why: what it has sent, and we have not
        read, would take our last words back."""
        self._tell_end(code)
        if not self.transport.can_write_eof():
            self.close()
            return
        self._is_over = True
        for stream in list(self._streams.values()):
            self._lose(stream)
        self.transport.write_eof()
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _tell_end(self, code: int) -> None:
        body = frames.pack_number(self._last) + frames.pack_number(code)
        self._write(frame(frames.GOAWAY, 0, 0, body))

    def _lose(self, stream: Http2Stream) -> None:
        self.forget(stream)
        if stream.reader is not None:
            stream.reader.lose()

    def _look(self) -> None:
        """Look whether the caller is late with something."""
        now = self._loop.time()
        if self._is_over:
            # It does not take what was written last.
            self.transport.abort()
            return
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)
        if self._is_paused and self.transport.get_write_buffer_size() > _MOST_UNTAKEN:
            # It asks and does not read.
            self.transport.abort()
        elif not self._is_greeted and now - self._began_at > HANDSHAKE_SECONDS:
            self._fail(frames.PROTOCOL_ERROR)
        elif self._block_of and now - self._block_began > HEAD_SECONDS:
            self._fail(frames.ENHANCE_YOUR_CALM)
        elif not self._streams and now - max(self._busy_at, self._began_at) > IDLE_SECONDS:
            self._fail(frames.NO_ERROR)
        elif self._asked_at and now - self._asked_at > _ANSWER_WITHIN:
            # It is gone, or has not taken the question.
            self.transport.abort()
        elif not self._asked_at and now - self._heard_at > _ASK_AFTER:
            self._asked_at = now
            self._write(frame(frames.PING, 0, 0, _OUR_PING))
        for stream in [one for one in self._streams.values() if _is_late(one, now)]:
            stream.reset(frames.CANCEL)
            if stream.reader is not None:
                stream.reader.lose()

    # Frames

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        self._needed = HEAD_BYTES
        on_frame = self._on_frame
        while end - at >= HEAD_BYTES:
            head, flags, stream = frames.read_head(data, at)
            length, kind = head >> 8, head & 0xFF
            if length > frames.FRAME_BYTES:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR)
            stop = at + HEAD_BYTES + length
            if stop > end:
                self._needed = stop - at
                break
            if not self._is_greeted and kind != frames.SETTINGS:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            if self._block_of and kind != frames.CONTINUATION:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            if kind < len(on_frame):
                on_frame[kind](flags, stream & LARGEST_WINDOW, data[at + HEAD_BYTES : stop])
            else:
                self.pay(1)
            if self._is_over:
                return
            at = stop
        if at < end:
            self._buffer += data[at:]

    def _on_data(self, flags: int, id: int, body: bytes) -> None:
        size = len(body)
        self._unread += size
        if self._unread > CONNECTION_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
        if self._unread > CONNECTION_WINDOW // 2:
            self._write(number_frame(frames.WINDOW_UPDATE, 0, self._unread))
            self._unread = 0
        stream = self._streams.get(id)
        if stream is None or stream.is_ended:
            if not 0 < id <= self._last:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            # It was sent before its caller knew that the stream is closed.
            self.pay(1)
            return
        if flags & frames.PADDED:
            body = _unpadded(body)
        if not body and not flags & frames.END_STREAM:
            self.pay(1)
        stream.received += size
        stream.unread += size
        if stream.unread > STREAM_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
        reader = stream.reader
        assert reader is not None, "a stream is read from its headers on"
        ends = flags & frames.END_STREAM
        if ends:
            stream.is_ended = True
        elif stream.unread > STREAM_WINDOW // 2:
            self._write(number_frame(frames.WINDOW_UPDATE, id, stream.unread))
            stream.unread = 0
        if body:
            reader.take(body)
        if ends and not stream.is_gone:
            reader.end()

    def _on_headers(self, flags: int, id: int, body: bytes) -> None:
        if flags & frames.PADDED:
            body = _unpadded(body)
        if flags & frames.HAS_PRIORITY:
            body = body[5:]
        if not id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._on_block(id, body, ends=ends)
            return
        self._block_of, self._block_ends = id, ends
        self._block_began = self._heard_at
        self._take_block(body)

    def _on_continuation(self, flags: int, id: int, body: bytes) -> None:
        if id != self._block_of or not id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self.pay(1)
        self._take_block(body)
        if flags & frames.END_HEADERS:
            block = bytes(self._block)
            self._block.clear()
            self._block_of = 0
            self._on_block(id, block, ends=self._block_ends)

    def _take_block(self, body: bytes) -> None:
        self._block += body
        if len(self._block) > MOST_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM)

    def _on_block(self, id: int, block: bytes, *, ends: bool) -> None:
        if len(block) > MOST_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM)
        if len(block) > _CHEAP_BLOCK:
            self.pay((len(block) - _CHEAP_BLOCK) / 1_024)
        found = self._headers.read(block)
        if found.is_too_large:
            self.pay(_TOO_LARGE)
        stream = self._streams.get(id)
        if stream is not None:
            # Trailers, which say nothing to us.
            if not ends or stream.is_ended:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            stream.is_ended = True
            assert stream.reader is not None, "a stream is read from its headers on"
            stream.reader.end()
            return
        if id <= self._last:
            self.pay(1)
            return
        self._last = id
        if self._is_ending or len(self._streams) >= MOST_STREAMS:
            self.pay(1)
            self._write(number_frame(frames.RST_STREAM, id, frames.REFUSED_STREAM))
            return
        stream = Http2Stream(self, id, self._heard_at)
        stream.is_ended = ends
        self._streams[id] = stream
        stream.reader = self._open(stream, found)
        if ends and not stream.is_gone:
            stream.reader.end()

    def _on_priority(self, _flags: int, _id: int, body: bytes) -> None:
        _check(len(body) == 5)
        self.pay(1)

    def _on_reset(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) == 4)
        if not 0 < id <= self._last:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        stream = self._streams.get(id)
        if stream is None:
            self.pay(1)
            return
        self._lose(stream)
        self.pay(1 if stream.is_answered else _GIVEN_UP)

    def _on_settings(self, flags: int, id: int, body: bytes) -> None:
        if id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self._is_greeted = True
        self.pay(1)
        if flags & frames.ACK:
            _check(not body)
            return
        _check(len(body) % 6 == 0)
        for name, value in frames.SETTING.iter_unpack(body):
            if name == frames.INITIAL_WINDOW_SIZE:
                self._resize(value)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.FRAME_BYTES <= value < 1 << 24:
                    raise ConnectionFault(frames.PROTOCOL_ERROR)
                # Larger ones would only delay those of other streams.
                self.frame_bytes = min(value, 4 * frames.FRAME_BYTES)
        self._write(_SETTINGS_ACK)

    def _resize(self, size: int) -> None:
        """All streams have another window from the beginning."""
        if size > LARGEST_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
        change = size - self.stream_window
        self.stream_window = size
        for stream in self._streams.values():
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
        self._wake_all()

    def _on_push(self, _flags: int, _id: int, _body: bytes) -> None:
        raise ConnectionFault(frames.PROTOCOL_ERROR)

    def _on_ping(self, flags: int, id: int, body: bytes) -> None:
        _check(len(body) == 8)
        if id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self.pay(1)
        if not flags & frames.ACK:
            self._write(frame(frames.PING, frames.ACK, 0, body))
        elif body == _OUR_PING:
            self._asked_at = 0.0

    def _on_goaway(self, _flags: int, _id: int, _body: bytes) -> None:
        self.pay(1)

    def _on_window(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) == 4)
        self.pay(1)
        size = int.from_bytes(body) & LARGEST_WINDOW
        if id == 0:
            self.window += size
            if not size or self.window > LARGEST_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
            self._wake_all()
            return
        stream = self._streams.get(id)
        if stream is None:
            if id > self._last:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            return
        stream.window += size
        if not size or stream.window > LARGEST_WINDOW:
            stream.reset(frames.FLOW_CONTROL_ERROR)
            if stream.reader is not None:
                stream.reader.lose()
            return
        stream.wake()

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.wake()


def _unpadded(body: bytes) -> bytes:
    if not body or body[0] >= len(body):
        raise ConnectionFault(frames.PROTOCOL_ERROR)
    return body[1 : len(body) - body[0]]


def _check(is_so: bool) -> None:
    if not is_so:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR)


def _is_late(stream: Http2Stream, now: float) -> bool:
    """Tell whether a body takes too long, whatever comes."""
    allowed = max(BODY_SECONDS, stream.received / BYTES_PER_SECOND)
    return not stream.is_ended and not stream.is_answered and now - stream.began_at > allowed
