"""Frames on their way to a caller. Those of one turn of the loop, of all its streams, are sent
together: each write is a call of the system.
"""

import asyncio

# With more, the transport has to say whether the caller still reads.
_MOST_WAITING = 64 * 1024


class FrameWriter:
    """Writes the frames of one connection."""

    __slots__ = ("_loop", "_size", "_transport", "_waiting")

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Write soon."""
        waiting = self._waiting
        if not waiting:
            self._loop.call_soon(self.flush)
        waiting.append(data)
        self._size += len(data)
        if self._size > _MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        waiting = self._waiting
        if waiting:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            self._size = 0
            self._transport.write(data)
