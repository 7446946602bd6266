"""Both ends of a tunnel in this process, with a wire between them that can be held up."""

import asyncio
from collections import deque
from typing import Any

from dragoman.tunnels.frames import Frame
from dragoman.tunnels.tunnel import Tunnel


class MemoryWire:
    """One direction; what is sent waits until it is carried."""

    def __init__(self) -> None:
        self.other: Tunnel | None = None
        self.waiting: deque[bytes] = deque()
        self.closed: str | None = None

    def send(self, message: bytes) -> None:
        self.waiting.append(message)

    def close(self, reason: str, *, is_ours: bool = False) -> None:
        self.closed = reason if self.closed is None else self.closed


class Recorder(asyncio.Protocol):
    """A connection that notes what happens to it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = bytearray()
        self.lost: list[Exception | None] = []
        self.waits: list[bool] = []
        self.pieces = 0
        self.fails = False
        # Whether it reads no more after each piece.
        self.pauses = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.fails:
            raise ValueError
        self.data += data
        self.pieces += 1
        if self.pauses:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.waits.append(True)

    def resume_writing(self) -> None:
        self.waits.append(False)


class Pair:
    """A gateway's end and an agent's end."""

    def __init__(self) -> None:
        self.heard: list[Frame] = []
        self.accepted: list[Recorder] = []
        to_agent, to_gateway = MemoryWire(), MemoryWire()
        self.gateway = Tunnel(to_agent, self.heard.append)
        self.agent = Tunnel(to_gateway, self.heard.append, accept=self._accept)
        to_agent.other, to_gateway.other = self.agent, self.gateway
        self.wires = [to_agent, to_gateway]

    def _accept(self) -> asyncio.Protocol:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    async def carry(self) -> None:
        """Carry everything that was sent, and what is sent in answer, and let callbacks run."""
        await asyncio.sleep(0)
        while any(wire.waiting for wire in self.wires):
            for wire in self.wires:
                while wire.waiting:
                    assert wire.other is not None
                    wire.other.received(wire.waiting.popleft())
            await asyncio.sleep(0)

    async def stream(self) -> tuple[Recorder, Recorder]:
        """Open a stream; return the gateway's and the agent's connection."""
        mine = Recorder()
        self.gateway.open(mine)
        await self.carry()
        return mine, self.accepted[-1]
