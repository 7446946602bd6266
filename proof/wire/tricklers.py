"""The attackers of the trickle proof, in a process of their own: run with a port, a kind, how many,
for how long, and what to ask for. The last line of output says how they fared, as JSON.

They keep their number: who is cut off comes back until the time is over.
"""

import asyncio
import contextlib
import socket
import sys
import time

import msgspec

HOST = "127.0.0.1"
HEAD, BODY, READ = "head", "body", "read"
# The first line of connections that do not read: from here on their time counts.
ALL_OPEN = "open"
# Each sends a byte this often, some of them at any moment.
_EVERY = 1.0
_SLICES = 20
# And so many come in such a moment: a crowd that slips in, not one that breaks the door.
_AT_ONCE = 10
_RECEIVE_BUFFER = 2048
_OPENINGS = {
    HEAD: b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    BODY: b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'A2A-Version: 1.0\r\nContent-Length: 100000\r\n\r\n{"jsonrpc":"',
}


class Fared(msgspec.Struct):
    """What became of them."""

    opened: int = 0
    closed: int = 0
    # Those that could not connect, or were turned away with nothing said yet.
    refused: int = 0
    # Seconds the longest-lived one was borne.
    slowest: float = 0.0
    # Those that were left when the time was over and the last one was waited for.
    left: int = 0


class _Trickler(asyncio.Protocol):
    """One connection that says a byte at a time."""

    def __init__(self, crowd: "_Crowd", opening: bytes) -> None:
        self._crowd = crowd
        self._opening = opening
        self._began = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._began = time.monotonic()
        self._crowd.fared.opened += 1
        self._crowd.open.add(self)
        transport.write(self._opening)

    def drip(self) -> None:
        if self.transport is not None:
            self.transport.write(b"a")

    def data_received(self, data: bytes) -> None:
        """A refusal; its connection ends next."""

    def connection_lost(self, exc: Exception | None) -> None:
        fared = self._crowd.fared
        self.transport = None
        self._crowd.open.discard(self)
        fared.closed += 1
        fared.slowest = max(fared.slowest, time.monotonic() - self._began)
        self._crowd.missing += 1


class _Crowd:
    """So many of them, until the time is over."""

    def __init__(self, port: int, kind: str, seconds: float) -> None:
        self.fared = Fared()
        self.open: set[_Trickler] = set()
        self.missing = 0
        self._port = port
        self._opening = _OPENINGS[kind]
        self._until = time.monotonic() + seconds

    async def trickle(self, count: int, patience: float) -> Fared:
        """Connect, drip, come back; then wait so long for the last one to be cut off."""
        self.missing = count
        loop = asyncio.get_running_loop()
        while time.monotonic() < self._until + patience:
            if time.monotonic() >= self._until and not self.open:
                break
            for part in range(_SLICES):
                if time.monotonic() < self._until:
                    await self._fill(loop)
                for number, one in enumerate(list(self.open)):
                    if number % _SLICES == part:
                        one.drip()
                await asyncio.sleep(_EVERY / _SLICES)
        self.fared.left = len(self.open)
        return self.fared

    async def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = min(self.missing, _AT_ONCE)
        self.missing -= batch
        await asyncio.gather(*(self._connect(loop) for _ in range(batch)))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await loop.create_connection(lambda: _Trickler(self, self._opening), HOST, self._port)
        except OSError:
            self.fared.refused += 1


async def hold(port: int, count: int, seconds: float, asks: bytes) -> Fared:
    """Ask for an answer on each of many connections and read none of it."""
    fared = Fared()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            asking = stack.enter_context(socket.socket())
            # Before connecting, or the window is already offered.
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            try:
                asking.connect((HOST, port))
                asking.sendall(asks)
                fared.opened += 1
            except OSError:
                fared.refused += 1
            if number % _AT_ONCE == 0:
                await asyncio.sleep(_EVERY / _SLICES)
        print(ALL_OPEN, flush=True)
        await asyncio.sleep(seconds)
    return fared


def main(port: str, kind: str, count: str, seconds: str, patience: str, asks: str = "") -> None:
    """Attack, and print what became of it."""
    if kind == READ:
        running = hold(int(port), int(count), float(seconds), asks.encode())
    else:
        running = _Crowd(int(port), kind, float(seconds)).trickle(int(count), float(patience))
    print(msgspec.json.encode(asyncio.run(running)).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
