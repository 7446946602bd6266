"""Server-sent events: framing, and what every open stream shares."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

KEEPALIVE = b": keep-alive\n\n"
CONTENT_TYPE = b"text/event-stream"
HEADERS = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]
# Is given what to call when the reader leaves.
Watch = Callable[[Callable[[], None]], None]


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


class SseStream:
    """One open response that is written bit by bit."""

    # Thousands may be open.
    __slots__ = (
        "_comment",
        "_is_open",
        "_is_sending",
        "_receive",
        "_send",
        "_task",
        "_watch",
        "_watch_reader",
        "is_closed",
        "is_left",
        "written_at",
    )

    def __init__(self, send: Send, receive: Receive, watch: Watch | None = None) -> None:
        """`watch` has a function called when the reader leaves; without it a task waits for that,
        as ASGI tells it."""
        self._send = send
        self._receive = receive
        self._watch_reader = watch
        self._is_open = False
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self._comment: asyncio.Task[None] | None = None
        self._is_sending = False
        self.is_closed = False
        # Whether its reader ended it.
        self.is_left = False
        self.written_at = asyncio.get_running_loop().time()

    async def open(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of the response and watch for the reader's leaving."""
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._is_open = True
        if self._watch_reader is not None:
            self._watch_reader(self._leave)
        else:
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

        It is not awaited: a reader that stalls must not delay the comments of others.
        """
        if self._is_sending or not self._is_open or self.written_at > quiet_since:
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
        self._leave()

    def _leave(self) -> None:
        self.is_left = True
        self.stop()


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One event as a reader gets it."""

    data: bytes
    # The last id the stream gave, None before there was one.
    id: str | None = None
    kind: str = ""


class TooLong(Exception):
    """An event is longer than its reader takes."""


class SseReader:
    """Turns the bytes of a stream into events, holding no more than one event at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        # What has come of a line that has not ended.
        self._partial_line = bytearray()
        # In one piece: a list of many short lines would take many times their size.
        self._data = bytearray()
        self._has_data = False
        # Whether a line ended with a CR, whose LF may follow.
        self._skips_lf = False
        self._kind = ""
        self._id: str | None = None
        self._is_begun = False
        # How many have come, comments among them: by these a server shows that it is there.
        self.lines = 0
        self.comments = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete; raises `TooLong`."""
        if self._skips_lf and chunk:
            self._skips_lf = False
            chunk = chunk.removeprefix(b"\n")
        seen = len(self._partial_line)
        self._partial_line += chunk
        end = max(self._partial_line.rfind(b"\n", seen), self._partial_line.rfind(b"\r", seen)) + 1
        if not end:
            self._check_size(len(self._partial_line))
            return []
        self._skips_lf = self._partial_line.endswith(b"\r")
        lines = bytes(self._partial_line[:end]).splitlines()
        del self._partial_line[:end]
        self.lines += len(lines)
        if not self._is_begun and lines:
            self._is_begun = True
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        found: list[ServerSentEvent] = []
        for line in lines:
            if not line:
                self._dispatch(found)
            else:
                self._take(line)
        self._check_size(len(self._partial_line))
        return found

    def _check_size(self, held: int) -> None:
        if len(self._data) + held > self._most:
            raise TooLong

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value + b"\n"
            self._has_data = True
            self._check_size(0)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif not name:
            self.comments += 1

    def _dispatch(self, found: list[ServerSentEvent]) -> None:
        if self._has_data:
            found.append(ServerSentEvent(bytes(self._data[:-1]), self._id, self._kind))
            self._data.clear()
        self._has_data, self._kind = False, ""
