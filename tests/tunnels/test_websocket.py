"""A wire over a WebSocket: a peer that is silent is asked, and then taken for gone."""

import asyncio
from typing import Any

from harness.clock import MovableLoop
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from dragoman.tunnels.websocket import ASK_AFTER, GONE_AFTER, WebSocketWire, server_wire

UPGRADE = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


class Socket(asyncio.Transport):
    """A connection that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted


class Heard:
    """What the reader of a wire was told."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def received(self, message: bytes) -> None:
        self.messages.append(message)

    def set_full(self, is_full: bool) -> None: ...

    def lost(self) -> None: ...


def wire_on(socket: Socket) -> WebSocketWire:
    wire, _ = server_wire("/", UPGRADE)
    wire.connection_made(socket)
    return wire


def run(test: Any) -> None:
    loop = MovableLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


def pings(socket: Socket) -> int:
    return socket.written.count(bytes([0x80 | Opcode.PING, 0]))


def test_a_silent_peer_is_asked_and_then_taken_for_gone() -> None:
    async def test(loop: MovableLoop) -> None:
        socket = Socket()
        wire_on(socket)
        await loop.skip(ASK_AFTER - 1)
        assert pings(socket) == 0
        await loop.skip(1.5)
        assert pings(socket) == 1
        await loop.skip(ASK_AFTER)
        assert not socket.is_aborted, "it has some seconds left"
        await loop.skip(GONE_AFTER - 2 * ASK_AFTER)
        assert socket.is_aborted

    run(test)


def test_a_peer_that_answers_is_not_gone() -> None:
    async def test(loop: MovableLoop) -> None:
        socket = Socket()
        wire = wire_on(socket)
        peer = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN)
        for _ in range(6):
            await loop.skip(ASK_AFTER + 0.1)
            peer.receive_data(bytes(socket.written))
            socket.written.clear()
            wire.data_received(b"".join(peer.data_to_send()))
        assert not socket.is_aborted

    run(test)


def test_empty_pieces_of_a_message_do_not_add_up() -> None:
    async def test(loop: MovableLoop) -> None:
        wire = wire_on(Socket())
        wire.receiver = heard = Heard()
        wire.data_received(Frame(Opcode.BINARY, b"a", fin=False).serialize(mask=True))
        empty = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)
        for _ in range(1000):
            wire.data_received(empty)
        assert len(wire._pieces) == 1  # pyright: ignore[reportPrivateUsage]  # what could grow
        wire.data_received(Frame(Opcode.CONT, b"b", fin=True).serialize(mask=True))
        assert heard.messages == [b"ab"]

    run(test)


def test_a_reason_of_any_length_and_script_is_told() -> None:
    async def test(loop: MovableLoop) -> None:
        for reason in ("x" * 500, "\u00e9" * 100, "\U0001f600" * 40):
            socket = Socket()
            wire_on(socket).close(reason)
            peer = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN)
            peer.receive_data(bytes(socket.written))
            assert peer.close_rcvd is not None and reason.startswith(peer.close_rcvd.reason)
            assert len(peer.close_rcvd.reason.encode()) == 120

    run(test)
