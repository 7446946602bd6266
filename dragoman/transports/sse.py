"""Server-sent events: framing, and what every open stream shares."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

KEEPALIVE = b": keep-alive\n\n"
CONTENT_TYPE = b"text/event-stream"
HEADERS = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


def frame(data: bytes, seq: int | None = None) -> bytes:
    """Return one event; only durable ones carry a position."""
    if seq is None:
        return b"data: %b\n\n" % data
    return b"id: %d\ndata: %b\n\n" % (seq, data)


def error_frame(data: bytes) -> bytes:
    """Return the event that ends a broken stream."""
    return b"event: error\ndata: %b\n\n" % data


def on_single_lines(data: bytes) -> bytes:
    """Escape the characters that some readers take for the end of a line; JSON allows either."""
    if b"\xe2\x80" not in data and b"\xc2\x85" not in data:
        return data
    data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return data.replace(b"\xc2\x85", b"\\u0085")


class Stream:
    """One open response that is written bit by bit."""

    def __init__(self, send: Send, receive: Receive) -> None:
        self._send = send
        self._receive = receive
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self._comment: asyncio.Task[None] | None = None
        self._is_sending = False
        self.is_closed = False
        self.written_at = asyncio.get_running_loop().time()

    async def open(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of the response and watch for the reader's leaving."""
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def write(self, data: bytes) -> None:
        """Write and wait until the reader has taken enough of it."""
        self._is_sending = True
        data = on_single_lines(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_sending = False
        self.written_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End the response. A reader that stalls is not waited for: its connection is dropped."""
        is_stalled = self._is_sending
        for helper in (self._watch, self._comment):
            if helper is not None:
                helper.cancel()
        if not is_stalled:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def keep_alive(self, quiet_since: float) -> None:
        """Write a comment if the stream is quiet and its reader reads.

        Nobody waits for it: a reader that stalls must not keep the others' comments back.
        """
        if self._is_sending or self._watch is None or self.written_at > quiet_since:
            return
        if self._comment is None or self._comment.done():
            self._comment = asyncio.get_running_loop().create_task(self._write_comment())

    async def _write_comment(self) -> None:
        # Some servers raise when the reader is gone; the watch sees that too.
        with contextlib.suppress(OSError):
            await self.write(KEEPALIVE)

    def stop(self) -> None:
        """End the stream from outside: the reader left or the server stops."""
        if not self.is_closed and self._task is not None:
            self.is_closed = True
            self._task.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.stop()
