"""One request and its answer, as ASGI has them, on a connection of ours.

Most of our answers are whole when they begin, and most bodies are there when they are asked for, so
the app is offered a shorter way for both: an answer in one write, a body without waiting. What
cannot go that way goes by messages of ASGI as ever.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec

from dragoman.model.patterns import late_pattern
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman")

_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_WITHOUT_BODY = (204, 304)
_BAD_NAME = late_pattern(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_BAD_VALUE = late_pattern(rb"[^\t -~\x80-\xff]")
_FAILED = b"Internal Server Error"


def head_lines(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the head of an answer without the empty line that ends it; None: a header would be
    more than one line."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    head = b"".join(lines)
    # A value with a line of its own would be a header of its own.
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        return None
    return _LINES[status] + head


class Flow:
    """Whether a connection is read and written at present. What waits for a slow reader is made
    when there is one: most connections never have it."""

    __slots__ = ("_is_writable", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._is_writable: asyncio.Event | None = None

    def pause_reading(self) -> None:
        """Read no more for now."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    async def drain(self) -> None:
        """Wait until the reader has taken most of what was written."""
        if self.write_paused:
            if self._is_writable is None:
                self._is_writable = asyncio.Event()
            await self._is_writable.wait()

    def pause_writing(self) -> None:
        """The reader does not take what is written."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The reader has taken most of it."""
        self.write_paused = False
        if self._is_writable is not None:
            self._is_writable.set()
            self._is_writable = None


class AnswerTransport(Protocol):
    """A transport as an exchange uses it."""

    def write(self, data: bytes, /) -> None:
        """Write behind what was written before."""
        ...

    def is_closing(self) -> bool:
        """Whether it takes no more."""
        ...

    def close(self) -> None:
        """Close once everything is sent."""
        ...


class KnownRequest(Protocol):
    """What answered a request, and answers others with the same head."""

    # As ASGI has it, without what belongs to one request alone.
    scope: dict[str, Any]

    def answer(self, exchange: "RequestExchange") -> Coroutine[Any, Any, None]:
        """Answer a request of which everything has come."""
        ...


class RequestExchange(Protocol):
    """One request and its answer, as the app uses them besides ASGI's messages."""

    # What the connection and the app tell each other about this request.
    state: dict[str, Any]
    # Has the connection know the head of the request; None: it is not one to be known.
    keep: Callable[[KnownRequest], None] | None

    async def receive(self) -> Any:
        """Return the next message for the app."""
        ...

    async def send(self, message: Any) -> None:
        """Send one message of the app."""
        ...

    def take_body(self, most: int) -> bytes | None:
        """Return the whole body if all of it has come, none was taken, and it has no more bytes
        than this; None: receive it."""
        ...

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Give a whole answer. False: nothing was given, it has to be sent by ASGI."""
        ...

    def write(self, answer: bytes) -> bool:
        """Write a whole answer of HTTP/1.1 as it is. False: nothing was written."""
        ...

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Have a function called once, when the caller is gone before it has its answer."""
        ...


# A struct, because one is made for each request.
class Exchange(msgspec.Struct, eq=False):
    """One request and its answer."""

    # A struct would print its fields, and with them credentials and messages.
    __repr__ = object.__repr__

    scope: dict[str, Any]
    # What the connection and the app tell each other about this request.
    state: dict[str, Any]
    transport: AnswerTransport
    flow: Flow
    _on_response: Callable[[], None]
    # What has come of the body and was not given to the app, whether more will come, and whether
    # there is something to receive.
    body: bytes = b""
    more_body: bool = True
    _has_news: bool = False
    keep_alive: bool = True
    waiting_for_100_continue: bool = False
    disconnected: bool = False
    # Set when there is something to receive, one for each that waits; None: none did so far.
    _waiting: list[asyncio.Future[None]] | None = None
    # Called once, when the caller is gone before it has its answer.
    _when_gone: Callable[[], None] | None = None
    response_started: bool = False
    response_complete: bool = False
    # Whether the answer is chunked, once that is known.
    is_chunked: bool | None = None
    # Bytes that are still to come of an answer with a length.
    _left: int = 0
    # Has the connection know the head of the request; None: it is not one to be known.
    keep: "Callable[[KnownRequest], None] | None" = None

    # The request

    def feed(self, body: bytes) -> None:
        """A piece of the body has come."""
        self.body = self.body + body if self.body else body
        self.wake()

    def wake(self) -> None:
        """There is something to receive: a piece, the end, that the caller is gone."""
        self._has_news = True
        if self._waiting:
            self._wake_all(self._waiting)

    def _wake_all(self, waiting: list[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def disconnect(self) -> None:
        """The caller is gone, or is treated as if it were."""
        self.disconnected = True
        self.wake()
        told, self._when_gone = self._when_gone, None
        if told is not None:
            told()

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Have a function called once, when the caller is gone before it has its answer. A task
        that receives takes a kilobyte more, and every open stream has to know."""
        if self.disconnected:
            when_gone()
            return
        self._when_gone = when_gone
        # A caller that is not read from is not seen to leave.
        self.flow.resume_reading()

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing more to receive."""
        return self.disconnected or self.response_complete

    def take_body(self, most: int) -> bytes | None:
        """Return the whole body if all of it has come, none was taken, and it has no more bytes
        than this; None: receive it."""
        body = self.body
        if self.more_body or not self._has_news or len(body) > most:
            return None
        if self.disconnected or self.response_complete:
            return None
        self._has_news = False
        self.body = b""
        return body

    async def receive(self) -> dict[str, Any]:
        """Return the next message for the app."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self._is_over:
            self.flow.resume_reading()
        while not (self._has_news or self._is_over):
            await self._wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        self._has_news = False
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait(self) -> None:
        """Wait until there is something to receive. Not by an event, which takes a kilobyte: every
        open stream waits here for its reader to leave."""
        if self._waiting is None:
            self._waiting = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            self._waiting.remove(future)

    # The answer

    async def run(self, answering: Awaitable[None]) -> None:
        """Have the request answered; whatever is raised, the connection knows what became of it."""
        try:
            await answering
        except asyncio.CancelledError:
            logger.info("a request was cut off")
            await self._fail()
        except BaseException as error:
            logs.log_error(logger, "a request was not answered", error=error)
            await self._fail()
        else:
            if not self.response_complete and not self.disconnected:
                logger.error("a request was not answered to the end")
                await self._fail()

    async def _fail(self) -> None:
        if self.response_started:
            self.transport.close()
            # What is unsent is not waited for.
            self._on_response()
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(_FAILED)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer. False: nothing was written, it has to be sent by ASGI.

        The headers have lower-case names."""
        head = head_lines(status, headers)
        if head is None or (b"\r\ncontent-length: " not in head and status not in _WITHOUT_BODY):
            return False
        return self.write(b"%b\r\n%b" % (head, body))

    def write(self, answer: bytes) -> bool:
        """Write a whole answer as it is. False: nothing was written, it has to be sent by ASGI."""
        if self.flow.write_paused or self.disconnected or self.response_started:
            return False
        if not self.keep_alive or self.scope["method"] == "HEAD":
            return False
        self.waiting_for_100_continue = False
        self.response_started = True
        self.transport.write(answer)
        self.response_complete = self._has_news = True
        if self._waiting:
            self._wake_all(self._waiting)
        self._on_response()
        return True

    async def send(self, message: Any) -> None:
        """Send one message of the app, once the caller has taken most of those before it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if self.response_complete:
            raise RuntimeError(f"{kind} after the end of the answer")
        if kind != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"{kind} is not what comes next")
        if self.response_started:
            self._write_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._write_head(message["status"], message.get("headers", ()))

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        says_close = False
        for given, value in headers:
            name = given.lower()
            if _BAD_NAME.search(name) or _BAD_VALUE.search(value):
                raise RuntimeError("a header is not well-formed")
            if name == b"content-length" and self.is_chunked is None:
                self._left, self.is_chunked = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self._left, self.is_chunked = 0, True
            elif name == b"connection" and b"close" in value.lower().replace(b" ", b"").split(b","):
                self.keep_alive, says_close = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        if self.is_chunked is None and has_body:
            self.is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        self.transport.write(b"".join([*lines, b"\r\n"]))

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self._left = 0
        elif self.is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(chunk + b"0\r\n\r\n" if is_last else chunk)
        else:
            self._left -= len(body)
            if self._left < 0:
                raise RuntimeError("the answer is longer than its content-length")
            self.transport.write(body)
        if not is_last:
            return
        if self._left:
            raise RuntimeError("the answer is shorter than its content-length")
        if not self.keep_alive:
            self.transport.close()
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        # It may hold what holds this exchange.
        self._when_gone = None
        self.wake()
        self._on_response()


class _Answered:
    """Stands for a request that has its answer and needs nothing more."""

    response_started = response_complete = True
    waiting_for_100_continue = disconnected = False
    keep_alive = True

    def wake(self) -> None:
        """Nothing waits."""


ANSWERED = cast("Exchange", _Answered())


class UnfinishedTransport:
    """The transport of a request whose body is still coming.

    Its answer may be given before the body has come, and closing then must not take it back.
    """

    def __init__(self, transport: AnswerTransport, linger: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = linger
