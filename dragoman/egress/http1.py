"""One connection that speaks HTTP/1.1: a request goes out, and the answer is read as it comes.

Whom it leads to and whether it serves another request is decided elsewhere. What a peer sends is
held to bounds here: the head of an answer, what lies between its pieces, and what waits unread.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

LONGEST_HEADER = 8190
MOST_HEADERS = 128
# Of all that comes before a body, early hints included, and between two pieces of it.
LONGEST_HEAD = 64 * 1024
# So much of a body waits for its reader; then the peer waits.
MOST_UNREAD = 256 * 1024
# So much of a body is handed to the system at a time.
_SLICE = 128 * 1024


class WireError(Exception):
    """What went wrong between us and a peer. The name of the kind is what people get to read."""


class NotHttp(WireError):
    """The answer is not HTTP."""


class HeadTooLong(WireError):
    """The head of the answer is longer than any should be."""


class HungUp(WireError):
    """The connection was closed without an answer."""


class ConnectionBroke(WireError):
    """The connection broke before there was an answer; the cause is the system's or that of TLS."""


class CutShort(WireError):
    """The answer broke off."""


def kind_of(error: Exception) -> str:
    """Return what kind of failure it was, in words of this machine alone: no bytes that the peer
    chose, and nothing of the URL, which may be a secret."""
    cause = error.__cause__
    reason = ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message
    elif isinstance(cause, ssl.SSLError):
        # Its number is one of TLS, not of the system.
        reason = cause.reason
    elif isinstance(cause, socket.gaierror):
        reason = cause.strerror
    elif isinstance(cause, TimeoutError):
        reason = "timed out"
    elif isinstance(cause, OSError) and cause.errno:
        reason = os.strerror(cause.errno)
    reason = "".join(c for c in str(reason or "").partition("\n")[0] if c.isprintable())
    kind = error.__class__.__name__
    return f"{kind}: {reason}" if reason else kind


# Is told how many bytes of a long body went out, and how many it has.
OnSent = Callable[[int, int], None]


class Http1Connection(asyncio.Protocol):
    """A connection; `ask` it one thing at a time, and read `piece` by `piece` what it says."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_sent: OnSent | None = None) -> None:
        self._loop = loop
        self._on_sent = on_sent
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self.is_open = False
        self.idle_since = 0.0
        # Of the answer that is being read.
        self.status = 0
        self.headers: dict[str, str] = {}
        self._lines = 0
        self._is_head_only = False
        self._has_head = False
        self._is_chunked = False
        self._is_ended = True
        self._is_last = True
        self._failure: WireError | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._idle_bytes = 0  # that came since anything that is of use to a reader
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        # Of the request that is being sent.
        self._unsent: memoryview | None = None
        self._body_bytes = 0
        self._is_full = False

    async def ask(self, head: bytes, body: bytes | None, *, is_head_only: bool = False) -> None:
        """Send a request and wait for the head of its answer; raises WireError.

        A peer may answer before it has heard all: what is left goes on being sent meanwhile.
        """
        transport = self._transport
        assert transport is not None and self._is_ended, "one thing at a time"
        self.headers = {}
        self._lines = self._idle_bytes = 0
        self._is_head_only = is_head_only
        self._has_head = self._is_ended = self._is_chunked = False
        if not body:
            transport.write(head)
        elif len(body) <= _SLICE:
            transport.write(head + body)
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._body_bytes = len(body)
            self._send_more()
        while not self._has_head:
            await self._news()

    async def piece(self) -> bytes:
        """Return more of the body, nothing at its end; raises WireError."""
        while not self._pieces:
            if self._is_ended:
                return b""
            await self._news()
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._unread = [], 0
        if self._is_paused:
            self._is_paused = False
            if self.is_open and self._transport is not None:
                self._transport.resume_reading()
        return piece

    @property
    def is_read(self) -> bool:
        """Whether the answer was read to its end."""
        return self._is_ended and not self._pieces

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow: both have said all they had to say to this one."""
        if not self.is_open or self._is_last or not self.is_read or self._transport is None:
            return False
        # What is still unsent waits for this to be empty.
        return not self._transport.get_write_buffer_size()

    def close(self, failure: WireError | None = None) -> None:
        """Close at once; a request that waits for more fails."""
        self.is_open = False
        self._unsent = None
        if self._transport is not None:
            self._transport.abort()
        if failure is not None and not self._is_ended:
            self._failure = self._failure or failure
        self._wake()

    async def _news(self) -> None:
        """Wait until something happens."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _send_more(self) -> None:
        while self._unsent is not None and not self._is_full and self._transport is not None:
            piece, rest = self._unsent[:_SLICE], self._unsent[_SLICE:]
            self._unsent = rest if len(rest) else None
            self._transport.write(piece)
            if self._on_sent is not None:
                self._on_sent(self._body_bytes - len(rest), self._body_bytes)

    # What the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        parser = self._parser = HttpResponseParser(self)
        # Some servers do this, and it has only one reading.
        parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._is_ended or self._parser is None:
            # Not an answer to any request: what follows could be taken for the next one's.
            self.close()
            return
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.close(NotHttp())
        if self._idle_bytes > LONGEST_HEAD:
            self.close(HeadTooLong())
        if self._unread > MOST_UNREAD and not self._is_paused and self.is_open:
            self._is_paused = True
            assert self._transport is not None, "it brought the data"
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        # The parser knows us, and would keep what was read in memory for a while.
        self._transport = self._parser = None

    def _end(self, error: Exception | None) -> None:
        self.is_open = False
        self._unsent = None
        if not self._is_ended and self._failure is None:
            if not self._has_head:
                self._failure = ConnectionBroke() if error else HungUp()
                self._failure.__cause__ = error
            elif error or self._is_chunked or "content-length" in self.headers:
                self._failure = CutShort()
            else:
                self._is_ended = True
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_more()

    # What the parser says

    def on_message_begin(self) -> None:
        if self._is_ended:
            raise NotHttp  # an answer to nothing

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # in the trailer of a body, where no length belongs
        self._lines += 1
        if self._lines > MOST_HEADERS or len(name) + len(value) > LONGEST_HEADER:
            self._failure = HeadTooLong()
            raise self._failure
        lower = name.lower().decode("latin-1")
        if lower == "transfer-encoding":
            self._is_chunked = value.strip().lower().endswith(b"chunked")
        # The first of a name counts.
        self.headers.setdefault(lower, value.strip(b" \t").decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "it speaks"
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            # The answer is still to come; another protocol the parser takes for none.
            return
        self.status = status
        self._has_head = True
        self._idle_bytes = 0
        # The parser cannot be told that no body follows, so it is of no use for another answer.
        self._is_last = self._is_head_only or not self._parser.should_keep_alive()
        self._is_ended = self._is_head_only

    def on_body(self, data: bytes) -> None:
        if not self._is_ended:
            self._idle_bytes = 0
            self._unread += len(data)
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_ended = True
        else:
            self.headers = {}
            self._lines = 0
