"""A wire over a WebSocket: a peer that is silent is asked, and then taken for gone."""

import asyncio
from typing import Any

import pytest
from harness.clock import MovableLoop
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from dragoman.tunnels.frames import Kind, encode, encode_credit
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

    def get_write_buffer_size(self) -> int:
        return len(self.written)

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


def masked(message: bytes) -> bytes:
    return Frame(Opcode.BINARY, message).serialize(mask=True)


FLOODS = {
    "pings": Frame(Opcode.PING, b"").serialize(mask=True),
    "pongs": Frame(Opcode.PONG, b"").serialize(mask=True),
    "empty pieces": Frame(Opcode.CONT, b"", fin=False).serialize(mask=True),
    "pieces of a byte": Frame(Opcode.CONT, b"x", fin=False).serialize(mask=True),
    "leaving": masked(encode(Kind.LEAVING)),
    "credit": masked(encode_credit(1, 1)),
    "data of a byte": masked(encode(Kind.DATA, 1, b"x")),
    "closes": masked(encode(Kind.CLOSE, 1)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_messages_that_say_nothing_is_ended_before_it_is_read_whole(flood: str) -> None:
    async def test(loop: MovableLoop) -> None:
        socket = Socket()
        wire = wire_on(socket)
        wire.receiver = heard = Heard()
        for _ in range(4_000):
            # What we said long ago buys no flood.
            wire.send(b"")
        socket.written.clear()
        data = FLOODS[flood] * 100_000
        if "piece" in flood:
            data = Frame(Opcode.BINARY, b"", fin=False).serialize(mask=True) + data
        wire.data_received(data[: 256 * 1024])
        assert socket.is_aborted and len(heard.messages) < 8_000
        peer = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN)
        peer.receive_data(bytes(socket.written))
        closed = peer.close_rcvd
        assert closed is not None and closed.code == CloseCode.POLICY_VIOLATION
        assert closed.reason == "too many messages with too little in them"

    run(test)


def test_small_messages_that_answer_ours_or_come_slowly_are_no_flood() -> None:
    small = masked(encode(Kind.DATA, 1, b"0\r\n\r\n")) * 1_000

    async def test(loop: MovableLoop) -> None:
        for earns in ("our messages", "time", "their own"):
            socket = Socket()
            wire = wire_on(socket)
            wire.receiver = heard = Heard()
            for _ in range(20):
                if earns == "our messages":
                    for _ in range(500):
                        wire.send(encode(Kind.DATA, 1, b"GET"))
                elif earns == "time":
                    await loop.skip(1)
                else:
                    wire.data_received(masked(encode(Kind.DATA, 1, bytes(60_000))))
                wire.data_received(small)
                socket.written.clear()
            assert not socket.is_aborted and len(heard.messages) >= 20_000, earns

    run(test)


def test_a_peer_that_does_not_read_our_answers_is_sent_away() -> None:
    async def test(loop: MovableLoop) -> None:
        socket = Socket()
        wire = wire_on(socket)
        pings = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 1_000
        for _ in range(7):
            wire.data_received(pings)
        assert not socket.is_aborted
        for _ in range(3):
            wire.data_received(pings)
        assert socket.is_aborted and len(socket.written) < 1.2 * 2**20

    run(test)


def test_nothing_is_heard_of_a_peer_behind_what_ended_it() -> None:
    async def test(loop: MovableLoop) -> None:
        wire = wire_on(Socket())
        wire.receiver = heard = Heard()
        text = Frame(Opcode.TEXT, b"hello").serialize(mask=True)
        wire.data_received(text + masked(b"HELLO"))
        assert heard.messages == []

    run(test)
