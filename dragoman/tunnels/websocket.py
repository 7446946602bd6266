"""A wire of messages over a WebSocket, for both ends; the `websockets` library frames them.

Each end asks the other for a sign of life, and takes it for gone without one. One that has us read
many frames with next to nothing in them, or does not read what it asks for, is sent away: every
frame costs a turn of the loop that others wait for. Importing this module loads `websockets`, which
the extra `join` brings.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from dragoman.tunnels.frames import MOST_BYTES

# Seconds after which a silent peer is asked, and after which it is taken for gone.
ASK_AFTER = 5.0
GONE_AFTER = 15.0
_LONGEST_REASON = 120
# Bytes that frames have to carry on average, unless they answer ours: how many they may be short of
# it, in frames, what a second forgives, and what each message of ours does.
_WORTH, _MOST_SHORT = 64, 2_000.0
_FORGIVEN_PER_SECOND, _FORGIVEN_PER_MESSAGE = 1_000.0, 2.0
# Bytes that are read before what they say is looked at.
_PIECE = 16 * 1024
# Bytes that wait to be sent. Messages of streams wait elsewhere, so more than this is answers to a
# peer that does not read them.
_MOST_UNSENT = 1024 * 1024


class WireReader(Protocol):
    """What takes the messages of a wire."""

    def received(self, message: bytes) -> None:
        """A message has come."""
        ...

    def set_full(self, is_full: bool) -> None:
        """The wire takes no more for now, or takes more again."""
        ...

    def lost(self) -> None:
        """The wire is gone."""
        ...


class HandshakeFailed(Exception):
    """There is no WebSocket at the other end, or it does not let us in."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WebSocketWire(asyncio.Protocol):
    """One end of a WebSocket that is open, or about to be."""

    def __init__(self, peer: ClientProtocol | ServerProtocol) -> None:
        self._peer = peer
        # What is known of the connection.
        self.extra: dict[str, Any] = {}
        self.receiver: WireReader | None = None
        # Called when it is gone, with what broke it.
        self.on_lost: Callable[[Exception | None], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._heard_at = self._loop.time()
        # By how many frames the other end is short of what frames carry, and since when.
        self._short = 0.0
        self._short_at = self._heard_at
        self._asking: asyncio.TimerHandle | None = None
        # What we did wrong, in the words of the other end, and what failed there.
        self.refusal = ""
        self.failure = ""
        # The client's, until it is open.
        self._opening: asyncio.Future[None] | None = None
        if isinstance(peer, ClientProtocol):
            self._opening = self._loop.create_future()

    # The wire of a tunnel

    def send(self, message: bytes) -> None:
        """Send a message."""
        if self._peer.state is State.OPEN:
            self._forgive(_FORGIVEN_PER_MESSAGE)
            self._peer.send_binary(message)
            self._write()

    def close(self, reason: str, *, is_ours: bool = False) -> None:
        """Say what the other end did wrong, if anything, or what failed at ours, and end it."""
        if self._peer.state is State.OPEN:
            code = CloseCode.POLICY_VIOLATION if reason else CloseCode.GOING_AWAY
            if is_ours:
                code = CloseCode.INTERNAL_ERROR
            # Its bytes are limited: a longer one could not be sent at all.
            said = reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
            self._peer.send_close(code, said)
            self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it without a word."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        data = b"".join(self._peer.data_to_send())
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > _MOST_UNSENT:
            transport.abort()

    # What the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.extra = {name: transport.get_extra_info(name) for name in ("peername", "sockname")}
        self._write()
        self._asking = self._loop.call_later(ASK_AFTER, self._ask)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        for start in range(0, len(data), _PIECE):
            if self._is_closed:
                return
            self._read(data[start : start + _PIECE])
        self._write()
        if self._peer.close_expected() and self._transport is not None:
            self._transport.close()

    @property
    def _is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _read(self, data: bytes) -> None:
        self._peer.receive_data(data)
        frames = 0
        for event in self._peer.events_received():
            if self._is_closed:
                return
            if isinstance(event, Frame):
                frames += 1
                self._frame(event)
            elif isinstance(event, Response):
                self._answered(event)
        self._forgive(len(data) / _WORTH - frames)
        if self._short > _MOST_SHORT:
            self._forgive((self._heard_at - self._short_at) * _FORGIVEN_PER_SECOND)
            self._short_at = self._heard_at
            if self._short > _MOST_SHORT:
                self.close("too many messages with too little in them")

    def _forgive(self, frames: float) -> None:
        self._short = max(-_MOST_SHORT, self._short - frames)

    def _answered(self, response: Response) -> None:
        opening = self._opening
        if opening is None or opening.done():
            return
        if self._peer.state is State.OPEN:
            opening.set_result(None)
        else:
            text = bytes(response.body or b"")[:1000].decode("utf-8", "replace")
            opening.set_exception(HandshakeFailed(response.status_code, text))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            closed = self._peer.close_rcvd
            if closed is not None and closed.code == CloseCode.POLICY_VIOLATION:
                self.refusal = closed.reason or "no reason given"
            if closed is not None and closed.code == CloseCode.INTERNAL_ERROR:
                self.failure = closed.reason or "no reason given"
        if frame.opcode not in (Opcode.BINARY, Opcode.CONT) or self.receiver is None:
            if frame.opcode is Opcode.TEXT:
                self.close("a tunnel has binary messages alone")
            return
        if frame.data:
            # Empty ones count for no limit of a message's size, and would add up.
            self._pieces.append(bytes(frame.data))
        if frame.fin:
            message, self._pieces = b"".join(self._pieces), []
            self.receiver.received(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._transport = None
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(HandshakeFailed(0, ""))
        if self.receiver is not None:
            self.receiver.lost()
        if self.on_lost is not None:
            self.on_lost(exc)

    def pause_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.set_full(True)

    def resume_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.set_full(False)

    def _ask(self) -> None:
        silence = self._loop.time() - self._heard_at
        if silence >= GONE_AFTER and self._transport is not None:
            self._transport.abort()
            return
        if silence >= ASK_AFTER and self._peer.state is State.OPEN:
            self._peer.send_ping(b"")
            self._write()
        self._asking = self._loop.call_later(ASK_AFTER, self._ask)

    # The client's beginning

    async def opened(self) -> None:
        """Wait until the other end has agreed; raises `HandshakeFailed`."""
        assert self._opening is not None, "the server's is open from the start"
        await self._opening


def client_wire(url: str, headers: dict[str, str]) -> WebSocketWire:
    """Return a wire that asks for a WebSocket at a URL as soon as it is connected."""
    peer = ClientProtocol(parse_uri(url), max_size=MOST_BYTES)
    request = peer.connect()
    for name, value in headers.items():
        request.headers[name] = value
    peer.send_request(request)
    return WebSocketWire(peer)


def server_wire(path: str, headers: dict[str, str]) -> tuple[WebSocketWire, bytes]:
    """Return a wire for a request that asks for one, and the head of the answer; raises
    `HandshakeFailed` for a request that does not ask rightly."""
    request = Request(path, Headers({"Upgrade": "websocket", "Connection": "Upgrade", **headers}))
    response = ServerProtocol().accept(request)
    if response.status_code != 101:
        text = bytes(response.body or b"").decode("utf-8", "replace").strip()
        raise HandshakeFailed(response.status_code, text)
    # The request was read by our own protocol: this one begins behind it.
    peer = ServerProtocol(state=State.OPEN, max_size=MOST_BYTES)
    return WebSocketWire(peer), response.serialize()
