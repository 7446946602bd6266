"""One connection of HTTP/2 (RFC 9113): its frames, its windows, and callers that are late.

It knows streams and not what is said on them: `open` makes what reads each. What a caller asks for
in vain is paid from its purse.
"""

import asyncio
from collections.abc import Callable

from dragoman.http.deadlines import (
    HANDSHAKE_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
)
from dragoman.http.grpc import frames
from dragoman.http.grpc.frame_writer import FrameWriter
from dragoman.http.grpc.frames import (
    HEAD_BYTES,
    LARGEST_WINDOW,
    ConnectionFault,
    frame,
    number_frame,
)
from dragoman.http.grpc.front import ServedConnection, TakenConnection
from dragoman.http.grpc.header_blocks import MOST_BYTES, HeaderBlock, HeaderReader, are_trailers
from dragoman.http.grpc.purse import OPENED, TOO_LARGE, Purse
from dragoman.http.grpc.streams import Http2Stream, RequestReader
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
MOST_UNTAKEN = 1024 * 1024
# Data with fewer bytes costs as much as a frame without any, unless it ends a stream.
_SMALL = 64
# Headers up to this length cost nothing; a kilobyte more costs as much as a frame.
_CHEAP_BLOCK = 8 * 1024
# Streams that are closed and remembered: the caller may not know it yet.
_MOST_CLOSED = 1_000
_PRIORITY_BYTES = 5
# Frames of kinds beyond these mean nothing to us.
_KINDS = 10
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


class Http2Connection(ServedConnection):
    """The server's end of a connection, behind its preface."""

    def __init__(
        self,
        connection: TakenConnection,
        open: Callable[[Http2Stream, HeaderBlock], RequestReader],
        on_lost: Callable[[], None],
        on_fault: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._open = open
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self.transport = connection.transport
        self._writer = FrameWriter(self.transport, self._loop)
        self._write = self._writer.write
        self._streams: dict[int, Http2Stream] = {}
        self._last = 0
        # The latest that are closed, and whether the caller may have said more before it knew.
        self._closed: dict[int, bool] = {}
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
        # The only kind of frame that may come next; None: any.
        self._only: int | None = frames.SETTINGS
        self._is_ending = False
        # Nothing more is read, and so much was dropped since.
        self._is_over = False
        self._discarded = 0
        now = self._loop.time()
        self._began_at = self._heard_at = self._busy_at = now
        self._asked_at = 0.0
        self._purse = Purse(self._loop.time)
        self.earn = self._purse.earn
        self._pay = self._purse.pay
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

    def room(self, stream: Http2Stream) -> int:
        """Return how much may be sent on a stream now."""
        return 0 if self._is_paused else min(self.window, stream.window)

    def forget(self, stream: Http2Stream) -> None:
        """A stream is closed."""
        stream.is_gone = True
        if self._streams.pop(stream.id, None) is not None:
            self._close_id(stream.id, may_say_more=not stream.is_ended)
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
        self._writer.flush()
        self.transport.close()

    def _fail(self, code: int) -> None:
        """Send the caller away, and give it time to read why: what it has sent, and we have not
        read, would take our last words back."""
        if code != frames.NO_ERROR:
            self._on_fault(code)
        self._tell_end(code)
        if not self.transport.can_write_eof():
            self.close()
            return
        self._is_over = True
        for stream in list(self._streams.values()):
            self._lose(stream)
        self._writer.flush()
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

    def _drops(self) -> bool:
        """Drop a caller that asks and does not read, and tell whether this is one: windows bound
        neither headers, of which refusals consist, nor answers to pings and settings."""
        if self._is_paused and self.transport.get_write_buffer_size() > MOST_UNTAKEN:
            self._is_over = True
            self.transport.abort()
        return self._is_over

    def _close_id(self, id: int, *, may_say_more: bool) -> None:
        self._closed[id] = may_say_more
        if len(self._closed) > _MOST_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _look(self) -> None:
        """Look whether the caller is late with something."""
        now = self._loop.time()
        if self._is_over:
            # It does not take what was written last.
            self.transport.abort()
            return
        if self._drops():
            return
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)
        if not self._is_greeted and now - self._began_at > HANDSHAKE_SECONDS:
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
        for stream in [one for one in self._streams.values() if one.is_late(now)]:
            stream.abandon(frames.CANCEL)

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
            if self._only is not None and kind != self._only:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            if kind < _KINDS:
                on_frame[kind](flags, stream & LARGEST_WINDOW, data[at + HEAD_BYTES : stop])
            else:
                self._pay(1)
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
        if stream is None:
            self._check_closed(id)
            return
        if stream.is_ended:
            self._pay(1)
            stream.abandon(frames.STREAM_CLOSED)
            return
        if flags & frames.PADDED:
            body = _unpadded(body)
        if len(body) < _SMALL and not flags & frames.END_STREAM:
            self._pay(1)
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
            _check(len(body) >= _PRIORITY_BYTES)
            body = body[_PRIORITY_BYTES:]
        if not id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._on_block(id, body, ends=ends)
            return
        self._block_of, self._block_ends = id, ends
        self._only = frames.CONTINUATION
        self._block_began = self._heard_at
        self._take_block(body)

    def _on_continuation(self, flags: int, id: int, body: bytes) -> None:
        if id != self._block_of or not id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self._pay(1)
        self._take_block(body)
        if flags & frames.END_HEADERS:
            block = bytes(self._block)
            self._block.clear()
            self._block_of, self._only = 0, None
            self._on_block(id, block, ends=self._block_ends)

    def _take_block(self, body: bytes) -> None:
        self._block += body
        if len(self._block) > MOST_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM)

    def _on_block(self, id: int, block: bytes, *, ends: bool) -> None:
        if self._drops():
            return
        if len(block) > MOST_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM)
        if len(block) > _CHEAP_BLOCK:
            self._pay((len(block) - _CHEAP_BLOCK) / 1_024)
        found = self._headers.read(block)
        if found.is_too_large:
            self._pay(TOO_LARGE)
        stream = self._streams.get(id)
        if stream is not None:
            # Trailers, which say nothing to us.
            if stream.is_ended:
                stream.abandon(frames.STREAM_CLOSED)
                return
            if not ends or not are_trailers(found):
                stream.abandon(frames.PROTOCOL_ERROR)
                return
            stream.is_ended = True
            assert stream.reader is not None, "a stream is read from its headers on"
            stream.reader.end()
            return
        if id <= self._last:
            self._check_closed(id)
            return
        self._last = id
        if self._is_ending or len(self._streams) >= MOST_STREAMS:
            self._pay(1)
            self._write(number_frame(frames.RST_STREAM, id, frames.REFUSED_STREAM))
            self._close_id(id, may_say_more=not ends)
            return
        self._pay(OPENED)
        stream = Http2Stream(self, id, self._heard_at)
        stream.is_ended = ends
        self._streams[id] = stream
        stream.reader = self._open(stream, found)
        if ends and not stream.is_gone:
            stream.reader.end()

    def _check_closed(self, id: int) -> None:
        """Take what is said on a stream that is not open; raises `ConnectionFault`."""
        self._pay(1)
        may_say_more = self._closed.get(id)
        if may_say_more is None:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        if not may_say_more:
            raise ConnectionFault(frames.STREAM_CLOSED)

    def _on_priority(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) == _PRIORITY_BYTES)
        if not id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self._pay(1)

    def _on_reset(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) == 4)
        if not 0 < id <= self._last:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        stream = self._streams.get(id)
        if stream is None:
            self._pay(1)
            return
        stream.is_ended = True
        self._lose(stream)
        self._pay(1)

    def _on_settings(self, flags: int, id: int, body: bytes) -> None:
        if id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        # Each setting is work of its own, and a frame has room for thousands.
        self._pay(1 + len(body) // frames.SETTING.size)
        if flags & frames.ACK:
            _check(not body)
            if not self._is_greeted:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            return
        if not self._is_greeted:
            self._is_greeted, self._only = True, None
        _check(len(body) % frames.SETTING.size == 0)
        for name, value in frames.SETTING.iter_unpack(body):
            if name == frames.INITIAL_WINDOW_SIZE:
                self._resize(value)
            elif name == frames.ENABLE_PUSH and value > 1:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
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
        self._pay(1)
        if not flags & frames.ACK:
            self._write(frame(frames.PING, frames.ACK, 0, body))
        elif body == _OUR_PING:
            self._asked_at = 0.0

    def _on_goaway(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) >= 8)
        if id:
            raise ConnectionFault(frames.PROTOCOL_ERROR)
        self._pay(1)

    def _on_window(self, _flags: int, id: int, body: bytes) -> None:
        _check(len(body) == 4)
        self._pay(1)
        size = int.from_bytes(body) & LARGEST_WINDOW
        if id == 0:
            if not size:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
            was_full = self.window <= 0
            self.window += size
            if self.window > LARGEST_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR)
            if was_full:
                # Otherwise streams that wait do so for a window of their own.
                self._wake_all()
            return
        stream = self._streams.get(id)
        if stream is None:
            if id > self._last:
                raise ConnectionFault(frames.PROTOCOL_ERROR)
        elif not size:
            stream.abandon(frames.PROTOCOL_ERROR)
        elif stream.window + size > LARGEST_WINDOW:
            stream.abandon(frames.FLOW_CONTROL_ERROR)
        else:
            stream.window += size
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
