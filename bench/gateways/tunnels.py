"""`python -m bench.gateways.tunnels`: what carries the tunnel of an agent that dialled out, by
WebSocket beside HTTP/2.

Both ends of `dragoman.tunnels.tunnel.Tunnel` are in this process, with a socket between them, and
echo the same pieces on the same 32 streams. Only the framing differs: our WebSocket (`websockets`),
the HTTP/2 of the `h2` package, and HTTP/2 frames packed by hand without a state machine, settings,
a window of the connection or the checks that a real one needs: less than any HTTP/2 can cost. What
is compared is processor time of both ends, in rounds that alternate; a figure is the median. TLS
would be the same below all of them.
"""

import argparse
import asyncio
import importlib
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import uvloop

from dragoman.tunnels.frames import LARGEST, WINDOW, Kind, encode, encode_credit
from dragoman.tunnels.tunnel import Tunnel
from dragoman.tunnels.websocket import client_wire, server_wire
from proof.environments import python_with

STREAMS = 32
# Bytes there and back: about a short task, and what a file is carried in.
PIECES = {"task": 1024, "file": LARGEST}
_HEAD = struct.Struct("!HBBBI")
_MESSAGE = struct.Struct("!BI")
_NUMBER = struct.Struct("!I")
_KINDS = {0: Kind.DATA, 1: Kind.OPEN, 3: Kind.CLOSE, 8: Kind.CREDIT}
_TYPES = {kind: type for type, kind in _KINDS.items()}
# What a request and an answer have at least, as `hpack` writes them a second time.
_BLOCK = b"\x83\x86\x84\xbe"


class BareHttp2(asyncio.Protocol):
    """Messages of a tunnel as frames of HTTP/2."""

    tunnel: Tunnel

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._unread = b""

    def send(self, message: bytes) -> None:
        kind, stream = _MESSAGE.unpack_from(message)
        body = _BLOCK if kind == Kind.OPEN else message[5:] if kind != Kind.CLOSE else b"\0\0\0\0"
        size = len(body)
        head = _HEAD.pack(size >> 8, size & 255, _TYPES[kind], 0, stream * 2 - 1)
        self._transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        data, at = self._unread + data if self._unread else data, 0
        while len(data) - at >= 9:
            high, low, type, _, stream = _HEAD.unpack_from(data, at)
            end = at + 9 + (high << 8 | low)
            if end > len(data):
                break
            kind = _KINDS[type]
            body = data[at + 9 : end] if kind in (Kind.DATA, Kind.CREDIT) else b""
            self.tunnel.received(encode(kind, (stream + 1) // 2, body))
            at = end
        self._unread = data[at:]

    def close(self, reason: str) -> None:
        assert not reason, reason
        self._transport.close()


class H2(asyncio.Protocol):
    """Messages of a tunnel by the `h2` package."""

    tunnel: Tunnel

    def __init__(self, *, opens: bool) -> None:
        settings = _h2("settings")
        codes = settings.SettingCodes
        config = _h2("config").H2Configuration(client_side=opens, header_encoding=None)
        self._peer = _h2("connection").H2Connection(config)
        self._events = _h2("events")
        said = {
            codes.INITIAL_WINDOW_SIZE: WINDOW,
            codes.MAX_FRAME_SIZE: LARGEST,
            codes.MAX_CONCURRENT_STREAMS: 4096,
        }
        self._peer.local_settings = settings.Settings(client=opens, initial_values=said)
        self._peer.max_inbound_frame_size = LARGEST

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer.initiate_connection()
        # Windows of streams are the tunnel's affair.
        self._peer.increment_flow_control_window(2**31 - 1 - 65_535)
        transport.write(self._peer.data_to_send())

    def send(self, message: bytes) -> None:
        kind, stream = _MESSAGE.unpack_from(message)
        number = stream * 2 - 1
        if kind == Kind.DATA:
            size = self._peer.max_outbound_frame_size
            for at in range(5, len(message), size):
                self._peer.send_data(number, message[at : at + size])
        elif kind == Kind.OPEN:
            head = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
            self._peer.send_headers(number, head)
        elif kind == Kind.CREDIT:
            (count,) = _NUMBER.unpack_from(message, 5)
            self._peer.increment_flow_control_window(count, number)
        else:
            self._peer.reset_stream(number)
        self._transport.write(self._peer.data_to_send())

    def data_received(self, data: bytes) -> None:
        events = self._events
        for event in self._peer.receive_data(data):
            stream = (getattr(event, "stream_id", None) or -1) + 1 >> 1
            if isinstance(event, events.DataReceived):
                self.tunnel.received(encode(Kind.DATA, stream, event.data))
            elif isinstance(event, events.RequestReceived):
                self.tunnel.received(encode(Kind.OPEN, stream))
                self._peer.send_headers(event.stream_id, [(":status", "200")])
            elif isinstance(event, events.WindowUpdated) and stream:
                self.tunnel.received(encode_credit(stream, event.delta))
            elif isinstance(event, events.StreamReset):
                self.tunnel.received(encode(Kind.CLOSE, stream))
        if answer := self._peer.data_to_send():
            self._transport.write(answer)

    def close(self, reason: str) -> None:
        assert not reason, reason
        self._transport.close()


def _h2(name: str) -> Any:
    return importlib.import_module(f"h2.{name}")


class Echo(asyncio.Protocol):
    """The agent's end of a stream."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Asker(asyncio.Protocol):
    """The gateway's end: sends the next piece when the last is back."""

    def __init__(self, piece: bytes, count: int) -> None:
        self._piece, self._left, self._missing = piece, count, 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self._left -= 1
        self._missing = len(self._piece)
        self.transport.write(self._piece)

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if not self._missing and self._left:
            self._ask()
        elif not self._missing and not self.done.done():
            self.done.set_result(None)


Ends = tuple[socket.socket, socket.socket]


async def _by_websocket(ends: Ends) -> tuple[Any, Any]:
    """Connect both ends as they are in the product: the agent asks for it."""
    loop = asyncio.get_running_loop()
    agent = client_wire("ws://gateway/", {})
    await loop.create_connection(lambda: agent, sock=ends[1])
    lines = (await loop.sock_recv(ends[0], 65_536)).decode().split("\r\n")
    said = (line.partition(": ")[::2] for line in lines)
    gateway, head = server_wire("/", {name: value for name, value in said if "WebSocket" in name})
    await loop.sock_sendall(ends[0], head)
    await loop.create_connection(lambda: gateway, sock=ends[0])
    await agent.opened()
    return gateway, agent


async def _by(gateway: Any, agent: Any, ends: Ends) -> tuple[Any, Any]:
    loop = asyncio.get_running_loop()
    for wire, end in zip((gateway, agent), ends, strict=True):
        await loop.create_connection(lambda wire=wire: wire, sock=end)
    # Settings of both are there before it begins.
    await asyncio.sleep(0.05)
    return gateway, agent


CARRIERS: dict[str, Callable[[Ends], Awaitable[tuple[Any, Any]]]] = {
    "WebSocket": _by_websocket,
    "HTTP/2 by h2": lambda ends: _by(H2(opens=True), H2(opens=False), ends),
    "HTTP/2, frames alone": lambda ends: _by(BareHttp2(), BareHttp2(), ends),
}


async def one_round(carrier: str, size: int, count: int) -> float:
    """Return the microseconds of processor time for one piece there and back."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    gateway, agent = await CARRIERS[carrier](ends)
    tunnels = [Tunnel(gateway, lambda _: None), Tunnel(agent, lambda _: None, accept=Echo)]
    for wire, tunnel in zip((gateway, agent), tunnels, strict=True):
        wire.receiver = wire.tunnel = tunnel
    used = time.process_time()
    askers = [Asker(bytes(size), count) for _ in range(STREAMS)]
    for asker in askers:
        tunnels[0].open(asker)
    await asyncio.gather(*(asker.done for asker in askers))
    used = time.process_time() - used
    gateway.close("")
    agent.close("")
    await asyncio.sleep(0.05)
    return used / (STREAMS * count) * 1e6


async def run(rounds: int, pieces: int) -> None:
    for what, size in PIECES.items():
        figures: dict[str, list[float]] = {name: [] for name in CARRIERS}
        count = max(pieces * 1024 // size, 8)
        for number in range(rounds + 1):
            for name, found in figures.items():
                micros = await one_round(name, size, count)
                if number:
                    # The first is to get warm.
                    found.append(micros)
        first = median(figures["WebSocket"])
        print(f"{what}: {size} bytes there and back, {rounds} rounds of {STREAMS * count}")
        for name, found in figures.items():
            micros = median(found)
            print(
                f"  {name:22}{micros:8.1f} us of processor ({min(found):.1f} to {max(found):.1f})"
                f" {micros / size * 1024:6.2f} us per KB {micros / first:5.2f} x"
            )


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.gateways.tunnels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--pieces", type=int, default=400)
    chosen = parser.parse_args(words)
    # Not a dependency of ours: pure Python, in an environment of its own.
    home = python_with("h2==4.3.0").parent.parent
    sys.path.append(str(next(home.glob("lib/python3*/site-packages"))))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(chosen.rounds, chosen.pieces))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
