"""gRPC on a stream of HTTP/2: the request of an rpc, its messages, metadata and status."""

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dragoman.http.exchange import KnownRequest
from dragoman.http.grpc.frames import PROTOCOL_ERROR
from dragoman.http.grpc.front import RpcOrigin
from dragoman.http.grpc.header_blocks import HeaderBlock, are_well_formed, written
from dragoman.http.grpc.streams import Http2Stream
from dragoman.http.request import HELD_BYTES, Headers
from dragoman.transports.grpc.framing import PREFIX_BYTES
from dragoman.transports.grpc.statuses import CODES

logger = logging.getLogger("dragoman")

_KIND = b"application/grpc"
# `:status` 200 is the eighth of the table that all know; 415 takes its name from there.
_HEAD = b"\x88" + written([(b"content-type", _KIND)])
_NOT_GRPC = b"\x08\x03415"
_OK = written([(b"grpc-status", b"0")])
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_UNITS = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
# Headers that are about the rpc, and not for its handler.
_OF_GRPC = frozenset({b"te", b"host"})
_MOST_DIGITS = 20
_UNSAFE = re.compile(rb"[^\x20-\x24\x26-\x7e]")
# Seconds that an rpc is not yet refused in, while its caller has said no more than its headers.
_REFUSED_WITHIN = 0.1
# How many of the largest requests may be on their way on one connection, and on all together.
_LARGEST_AT_ONCE, _LARGEST_OF_ALL = 4, 16

Metadata = Iterable[tuple[str, str | bytes]]
# What a caller that compresses is told, so that it does not do so again.
_ACCEPTED: Metadata = (("grpc-accept-encoding", "identity"),)


class RpcFailure(Exception):
    """What ends an rpc that was not answered."""

    def __init__(self, status: str, message: str, metadata: Metadata = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.metadata = metadata


class RpcHandler(NamedTuple):
    """What answers an rpc."""

    # Raises `RpcFailure`.
    answer: Callable[["ServedRpc"], Awaitable[None]]
    # Whether it begins before the caller has said all, and reads message by message.
    is_conversation: bool = False


FindHandler = Callable[[str], RpcHandler | None]


@dataclass(slots=True)
class RpcHead:
    """What the headers of an rpc say. Rpcs that begin alike share it."""

    path: str
    metadata: Headers
    # Seconds that its caller waits; None: as long as it takes.
    seconds: float | None
    # None: this is not gRPC.
    handler: RpcHandler | None
    # How long the request will be; None: its caller does not say.
    length: int | None = None
    # The host that it was sent to.
    authority: str = ""
    # Whether more than one rpc began so.
    is_repeated: bool = False
    # What answered the last one of these that was let in, and at which path.
    _known: KnownRequest | None = None
    _known_path: str = ""

    def know(self, path: str, request: KnownRequest) -> None:
        """Have others at a path answered as this one."""
        self._known, self._known_path = request, path

    def known_at(self, path: str) -> KnownRequest | None:
        """Return what answers an rpc at a path without judging its head again; None: none was let
        in yet."""
        return self._known if path == self._known_path else None


_NO_HEAD = RpcHead("", [], None, None)


def head_of(block: HeaderBlock, find: FindHandler) -> RpcHead:
    """Return what headers say that are well formed; raises `RpcFailure`."""
    if block.is_too_large:
        raise RpcFailure("RESOURCE_EXHAUSTED", "The metadata is too large")
    method = path = kind = authority = b""
    metadata: Headers = []
    seconds: float | None = None
    length: int | None = None
    for header in block.headers:
        name, value = header
        if name == b":path":
            path = value
        elif name == b":method":
            method = value
        elif name == b":authority":
            authority = value
        elif name == b"content-type":
            kind = value
        elif name == b"grpc-timeout":
            seconds = _seconds(value)
        elif name == b"content-length":
            # One that is no number is that of no request.
            length = int(value) if value.isdigit() and len(value) < _MOST_DIGITS else -1
        elif name.endswith(b"-bin"):
            metadata.append((name, _unpacked(value)))
        elif not name.startswith((b":", b"grpc-")) and name not in _OF_GRPC:
            metadata.append(header)
    text = path.decode("latin-1")
    if method != b"POST" or not kind.startswith(_KIND):
        return RpcHead(text, metadata, seconds, None)
    handler = find(text)
    if handler is None:
        raise RpcFailure("UNIMPLEMENTED", "There is no such rpc")
    return RpcHead(text, metadata, seconds, handler, length, authority.decode("latin-1"))


def _seconds(text: bytes) -> float:
    found = _TIMEOUT.match(text)
    if found is None:
        raise RpcFailure("INTERNAL", "The timeout cannot be read")
    return int(found[1]) * _UNITS[found[2]]


class UnreadRequests:
    """What has come of the requests of all connections that are not whole yet. Who sends them is
    not known before, so they count for nobody."""

    def __init__(self, largest: int) -> None:
        """`largest` is how many bytes a request may have."""
        self.largest = largest
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether there is room for small requests alone."""
        return self.held > _LARGEST_OF_ALL * self.largest


class ServedRpc:
    """One rpc under way: it takes what its caller says, and is what an answer is written to."""

    def __init__(
        self,
        stream: Http2Stream,
        block: HeaderBlock,
        origin: RpcOrigin,
        find: FindHandler,
        unread: UnreadRequests,
    ) -> None:
        self.origin = origin
        self.head = _NO_HEAD
        self._stream = stream
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        # Most requests come in one piece, which is not copied.
        self._body: bytes | bytearray = b""
        self._received = 0
        self._has_ended = False
        # Set when more of a conversation has come; None: this is none.
        self._more: asyncio.Event | None = None
        self._is_headed = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._refusal: RpcFailure | None = None
        try:
            self._begin(block, find)
        except RpcFailure as failure:
            self._refuse(failure)

    def _begin(self, block: HeaderBlock, find: FindHandler) -> None:
        head = block.meaning
        if isinstance(head, RpcHead):
            head.is_repeated = True
        else:
            if not are_well_formed(block):
                self._stream.reset(PROTOCOL_ERROR)
                return
            head = block.meaning = head_of(block, find)
        self.head = head
        if head.handler is None:
            # Its caller is told in words of HTTP.
            self._stream.send_headers(_NOT_GRPC, ends=True)
            return
        if head.seconds is not None:
            self._deadline = self._loop.time() + head.seconds
            self._timer = self._loop.call_at(self._deadline, self._expire)
        if head.handler.is_conversation:
            self._more = asyncio.Event()
            self._start()

    def _refuse(self, failure: RpcFailure) -> None:
        """Refuse the rpc by its headers, once more of it has come: with the status there before
        it writes, grpcio's client tells its user of a write that failed, and not the status."""
        self._refusal = failure
        self._timer = self._loop.call_later(_REFUSED_WITHIN, self.fail, failure)

    # What the caller says

    def take(self, data: bytes) -> None:
        """Some of the request has come."""
        if self._refusal is not None:
            self.fail(self._refusal)
            return
        body, connection = self._body, self._stream.connection
        if isinstance(body, bytearray):
            body += data
        elif body or self._more is not None:
            body = self._body = bytearray(body + data)
        else:
            body = self._body = data
        self._received += len(data)
        connection.held += len(data)
        unread = self._unread
        unread.held += len(data)
        if connection.held > _LARGEST_AT_ONCE * unread.largest:
            self.fail(RpcFailure("RESOURCE_EXHAUSTED", "The connection sends too much at once"))
        elif unread.is_full and len(body) > HELD_BYTES:
            self.fail(RpcFailure("RESOURCE_EXHAUSTED", "Too much is sent at once: try again"))
        elif len(body) >= PREFIX_BYTES and self._refuses(body):
            return
        if self._more is not None:
            self._more.set()

    def _refuses(self, body: bytes | bytearray) -> bool:
        """Refuse a request by its beginning, and tell whether it was."""
        if body[0]:
            message = "Compressed messages are not taken"
            self.fail(RpcFailure("UNIMPLEMENTED", message, _ACCEPTED))
        elif int.from_bytes(body[1:PREFIX_BYTES]) > self._unread.largest:
            self.fail(RpcFailure("RESOURCE_EXHAUSTED", "The message is too large"))
        else:
            return False
        return True

    def end(self) -> None:
        """The caller has said all."""
        if self._refusal is not None:
            self.fail(self._refusal)
            return
        length = self.head.length
        if length is not None and length != self._received:
            self._stream.abandon(PROTOCOL_ERROR)
            return
        self._has_ended = True
        if self._more is not None:
            self._more.set()
        if self._task is None:
            self._start()

    def lose(self) -> None:
        """The caller no longer waits."""
        self._leave()
        if self._task is not None:
            self._task.cancel()

    def request(self) -> bytes:
        """Return the one message of the request; raises `RpcFailure`."""
        body = self._body
        size = len(body) - PREFIX_BYTES
        if size < 0 or int.from_bytes(body[1:PREFIX_BYTES]) != size:
            raise RpcFailure("INVALID_ARGUMENT", "The request is not one whole message")
        self._release(len(body))
        self._body = b""
        return bytes(memoryview(body)[PREFIX_BYTES:])

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield the messages of a conversation; raises `RpcFailure`."""
        more = self._more
        assert more is not None, "this is no conversation"
        while True:
            body = self._body
            whole = PREFIX_BYTES + int.from_bytes(body[1:PREFIX_BYTES])
            if PREFIX_BYTES <= whole <= len(body):
                assert isinstance(body, bytearray), "that of a conversation is cut"
                message = bytes(body[PREFIX_BYTES:whole])
                del body[:whole]
                self._release(whole)
                if len(body) >= PREFIX_BYTES and self._refuses(body):
                    return
                yield message
            elif self._has_ended:
                if body:
                    raise RpcFailure("INVALID_ARGUMENT", "The last message is not whole")
                return
            else:
                more.clear()
                await more.wait()

    # What is answered

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send what comes before the first message."""
        self._is_headed = True
        self._stream.send_headers(_HEAD + _packed(metadata))

    async def write(self, data: bytes) -> None:
        """Send framed messages, and wait until their reader has taken enough."""
        if not self._is_headed:
            await self.send_initial_metadata(())
        await self._stream.send(data)

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None: it has none."""
        return max(0.0, self._deadline - self._loop.time()) if self._deadline else None

    async def finish(self, data: bytes, metadata: Metadata) -> None:
        """End well, with framed messages if there are any."""
        trailers = _trailers(tuple(metadata))
        if self._is_headed:
            if data:
                await self._stream.send(data)
            self._stream.send_headers(trailers, ends=True)
        else:
            self._is_headed = True
            await self._stream.answer(_HEAD, data, trailers)
        self._leave()

    def fail(self, failure: RpcFailure) -> None:
        """End with another status than OK."""
        status = [
            (b"grpc-status", b"%d" % CODES[failure.status]),
            (b"grpc-message", _UNSAFE.sub(_escaped, failure.message.encode())),
        ]
        head = b"" if self._is_headed else _HEAD
        self._stream.send_headers(head + written(status) + _packed(failure.metadata), ends=True)
        self._leave()

    # Running

    def _start(self) -> None:
        self._stream.is_begun = True
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        handler = self.head.handler
        assert handler is not None, "an rpc without one has failed"
        try:
            await handler.answer(self)
        except RpcFailure as failure:
            self.fail(failure)
        except asyncio.CancelledError:
            # By its caller, by its deadline, or with the process.
            self.fail(RpcFailure("UNAVAILABLE", "The server stops"))
            raise
        except Exception:
            logger.exception("an rpc could not be answered")
            self.fail(RpcFailure("INTERNAL", "Internal error"))

    def _expire(self) -> None:
        self.fail(RpcFailure("DEADLINE_EXCEEDED", "The deadline has passed"))
        if self._task is not None:
            self._task.cancel()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._release(len(self._body))
        self._body = b""

    def _release(self, size: int) -> None:
        self._stream.connection.held -= size
        self._unread.held -= size


def _unpacked(value: bytes) -> bytes:
    """Return what a header of bytes holds; one that cannot be read is as it is."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value


@lru_cache(64)
def _trailers(metadata: tuple[tuple[str, str | bytes], ...]) -> bytes:
    """Return what ends an rpc well. There are few of these: a version, and extensions."""
    return _OK + _packed(metadata)


def _packed(metadata: Metadata) -> bytes:
    """Return metadata as a block of headers."""
    return written(
        [
            (name.encode(), base64.b64encode(value).rstrip(b"="))
            if isinstance(value, bytes)
            else (name.encode(), value.encode("latin-1", "replace"))
            for name, value in metadata
        ]
    )


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]
