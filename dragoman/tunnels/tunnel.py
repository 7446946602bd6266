"""One end of a tunnel: streams that are transports, over a wire of messages.

A stream holds at most a window of what its reader has not taken, on either side; then the writer
waits, as it would on a socket. What the other end may not send ends the tunnel with a reason, and
with it every stream: nothing else in the process is affected.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from dragoman.tunnels.frames import (
    LARGEST,
    WINDOW,
    Frame,
    FrameRefused,
    Kind,
    credit_of,
    decode,
    encode,
    encode_credit,
)

# Streams that one tunnel may have open.
MOST_STREAMS = 4_096
_HIGH_WATER = 64 * 1024
_LARGEST_NUMBER = 2**32 - 1


class Wire(Protocol):
    """What carries the messages of a tunnel."""

    def send(self, message: bytes) -> None:
        """Send a message."""
        ...

    def close(self, reason: str, *, is_ours: bool = False) -> None:
        """Say what the other end did wrong, if anything, or what failed at ours, and end it."""
        ...


class NoStream(Exception):
    """No stream can be opened here."""


# Makes what answers on a stream that the other end opened.
Accept = Callable[[], asyncio.Protocol]
# Hears of messages that are not about streams.
Heard = Callable[[Frame], None]


class Tunnel:
    """One end. The gateway opens streams; the agent, which has `accept`, answers them."""

    def __init__(
        self,
        wire: Wire,
        heard: Heard,
        *,
        accept: Accept | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """`extra` is what the transports of streams know of the connection."""
        self.wire = wire
        self._heard = heard
        self._accept = accept
        self.extra = extra or {}
        self._streams: dict[int, TunnelStream] = {}
        self._last = 0
        # Whether the wire takes no more for now.
        self.is_full = False
        self.is_leaving = False
        self.is_lost = False
        # Called when it is gone.
        self.on_lost: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def takes_streams(self) -> bool:
        """Whether another stream may be opened."""
        return not (self.is_lost or self.is_leaving) and len(self._streams) < MOST_STREAMS

    def open(self, protocol: asyncio.Protocol) -> "TunnelStream":
        """Open a stream for a protocol; raises `NoStream`."""
        if not self.takes_streams or self._last >= _LARGEST_NUMBER:
            raise NoStream
        self._last += 1
        stream = self._streams[self._last] = TunnelStream(self, self._last, protocol)
        self.wire.send(encode(Kind.OPEN, self._last))
        protocol.connection_made(stream)
        return stream

    def leave(self) -> None:
        """Have the other end open no more streams; those that are open go on."""
        self.is_leaving = True
        self.wire.send(encode(Kind.LEAVING))

    def received(self, message: bytes) -> None:
        """Take a message of the other end; one that it may not send ends the tunnel."""
        try:
            frame = decode(message)
            if frame.stream:
                self._of_stream(frame)
            elif frame.kind is Kind.LEAVING:
                self.is_leaving = True
            else:
                self._heard(frame)
        except FrameRefused as error:
            self.wire.close(str(error))

    def _of_stream(self, frame: Frame) -> None:
        if frame.kind is Kind.OPEN:
            self._opened(frame.stream)
            return
        stream = self._streams.get(frame.stream)
        if stream is None:
            if frame.stream > self._last:
                raise FrameRefused("there was never such a stream")
            # Closed here, which the other end did not know yet.
            return
        if frame.kind is Kind.DATA:
            stream.take(frame.payload)
        elif frame.kind is Kind.CREDIT:
            stream.take_credit(credit_of(frame.payload))
        else:
            stream.end()

    def _opened(self, number: int) -> None:
        if self._accept is None:
            raise FrameRefused("only a gateway opens streams")
        if number != self._last + 1:
            raise FrameRefused("streams are numbered in their order")
        self._last = number
        if len(self._streams) >= MOST_STREAMS:
            self.wire.send(encode(Kind.CLOSE, number))
            return
        protocol = self._accept()
        stream = self._streams[number] = TunnelStream(self, number, protocol)
        protocol.connection_made(stream)

    def forget(self, number: int) -> None:
        """A stream is over."""
        self._streams.pop(number, None)

    def set_full(self, is_full: bool) -> None:
        """The wire takes no more for now, or takes more again."""
        self.is_full = is_full
        if not is_full:
            for stream in list(self._streams.values()):
                stream.flush()

    def lost(self) -> None:
        """The wire is gone, and with it every stream."""
        self.is_lost = True
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_off()
        if self.on_lost is not None:
            self.on_lost()


class TunnelStream(asyncio.Transport):
    """One stream, as a protocol sees its connection."""

    def __init__(self, tunnel: Tunnel, number: int, protocol: asyncio.Protocol) -> None:
        super().__init__(tunnel.extra)
        self._tunnel = tunnel
        self._number = number
        self._protocol: Any = protocol
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        # What waits to be sent, what the other end still takes, and whether the protocol waits.
        self._unsent = bytearray()
        self._credit = WINDOW
        self._is_waiting = False
        # What waits to be read, what the other end may still send, and what was read since it was
        # told.
        self._unread = bytearray()
        self._window = WINDOW
        self._taken = 0
        self._is_paused = False
        self._is_ended = False

    # What the protocol asks for

    def write(self, data: Any) -> None:
        """Send bytes, or keep them until the other end takes them."""
        if self._is_closing or not data:
            return
        tunnel, size = self._tunnel, len(data)
        if not self._unsent and size <= LARGEST and size <= self._credit and not tunnel.is_full:
            self._credit -= size
            tunnel.wire.send(encode(Kind.DATA, self._number, bytes(data)))
            return
        self._unsent += data
        self.flush()
        if len(self._unsent) > _HIGH_WATER and not self._is_waiting:
            self._is_waiting = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def flush(self) -> None:
        """Send what the other end takes."""
        tunnel, unsent = self._tunnel, self._unsent
        while unsent and self._credit and not tunnel.is_full:
            size = min(len(unsent), self._credit, LARGEST)
            tunnel.wire.send(encode(Kind.DATA, self._number, bytes(unsent[:size])))
            del unsent[:size]
            self._credit -= size
        if unsent:
            return
        if self._is_waiting:
            self._is_waiting = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._close()

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._unread.clear()
            if not self._unsent:
                self._close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._unsent.clear()
        self._close()

    def _close(self) -> None:
        """Tell the other end, once; then the protocol."""
        if self._is_ended:
            return
        if not self._tunnel.is_lost:
            self._tunnel.wire.send(encode(Kind.CLOSE, self._number))
        self._finish(None)

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._is_closing

    def can_write_eof(self) -> bool:
        """A stream is closed for both, or for none."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return len(self._unsent)

    def pause_reading(self) -> None:
        """Give the protocol nothing more for now; the other end may send what it was allowed to."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Go on."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        """Tell whether the protocol is given what comes."""
        return not (self._is_paused or self._is_closing)

    def set_protocol(self, protocol: Any) -> None:
        """Give what comes to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol

    # What the tunnel says

    def take(self, data: bytes) -> None:
        """Bytes have come; raises `FrameRefused` for more than were allowed."""
        self._window -= len(data)
        if self._window < 0:
            raise FrameRefused("more was sent than was allowed")
        if self._is_closing:
            return
        if self._is_paused or self._unread:
            self._unread += data
        elif data:
            self._give(data)

    def _deliver(self) -> None:
        """Give the protocol what waits, as one piece: the other end chose how it was cut, and may
        have cut it into bytes."""
        if self._unread and self.is_reading():
            data = bytes(self._unread)
            self._unread.clear()
            self._give(data)

    def _give(self, data: bytes) -> None:
        try:
            self._protocol.data_received(data)
        except Exception as error:
            # As on a socket: the connection ends, and the process goes on.
            message = "a protocol failed on a stream of a tunnel"
            self._loop.call_exception_handler({"message": message, "exception": error})
            self.abort()
            return
        self._taken += len(data)
        if self._taken >= WINDOW // 2 and not self._is_ended:
            self._tunnel.wire.send(encode_credit(self._number, self._taken))
            self._window += self._taken
            self._taken = 0

    def take_credit(self, count: int) -> None:
        """More may be sent; raises `FrameRefused` for more than a window."""
        self._credit += count
        if self._credit > WINDOW:
            raise FrameRefused("more was allowed than was sent")
        self.flush()

    def end(self) -> None:
        """The other end has closed it, behind what it sent."""
        self._is_paused = False
        self._deliver()
        self._is_closing = True
        self._finish(None)

    def break_off(self) -> None:
        """The tunnel is gone."""
        self._is_closing = True
        self._finish(ConnectionResetError("the tunnel is gone"))

    def _finish(self, error: Exception | None) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._unsent.clear()
        self._tunnel.forget(self._number)
        self._loop.call_soon(self._protocol.connection_lost, error)
