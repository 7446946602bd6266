"""Connections of one loop by origin: how many there may be, and which are kept for later requests.

A peer that answers slowly holds only so many; further requests wait for a place, in turn.
"""

import asyncio
import time
from collections import deque

from dragoman.egress.http1 import Http1Connection, HungUp

# Scheme, host and port.
Origin = tuple[str, str, int]


class Pool:
    """Places for connections, in all and for each origin, and the connections that wait idle."""

    def __init__(self, *, most: int, per_origin: int, idle: float | None) -> None:
        self._most = most
        self._per_origin = per_origin
        # Seconds that a connection is kept idle; None: none is kept.
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._used: dict[Origin, int] = {}
        self._total = 0
        self._waiting: dict[Origin, deque[asyncio.Future[None]]] = {}
        self._busy: set[Http1Connection] = set()
        self._idle_connections: dict[Origin, list[Http1Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    # Places

    def enter(self, origin: Origin) -> bool:
        """Take a place if one is free, which is never so while another request waits for it; tell
        whether it was."""
        if not self._has_place(origin):
            return False
        self._take_place(origin)
        return True

    async def wait(self, origin: Origin) -> None:
        """Wait for a place, and take it."""
        turn = self._loop.create_future()
        self._waiting.setdefault(origin, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                # The place was given to a request that was cancelled meanwhile.
                self.leave(origin)
            elif (waiting := self._waiting.get(origin)) and turn in waiting:
                waiting.remove(turn)
                if not waiting:
                    del self._waiting[origin]
            raise

    def leave(self, origin: Origin) -> None:
        """Give a place up."""
        self._total -= 1
        left = self._used[origin] - 1
        if left:
            self._used[origin] = left
        else:
            del self._used[origin]
        if self._waiting:
            self._pass_on()

    def _has_place(self, origin: Origin) -> bool:
        return self._total < self._most and self._used.get(origin, 0) < self._per_origin

    def _take_place(self, origin: Origin) -> None:
        self._total += 1
        self._used[origin] = self._used.get(origin, 0) + 1

    def _pass_on(self) -> None:
        """Give the free place to the request that may have it and has waited longest."""
        for origin in list(self._waiting):
            if not self._has_place(origin):
                continue
            waiting = self._waiting.pop(origin)
            while waiting and (turn := waiting.popleft()):
                if not turn.done():
                    self._take_place(origin)
                    turn.set_result(None)
                    break
            if waiting:
                # Behind the others: one origin that is much wanted does not hold them up.
                self._waiting[origin] = waiting
            if not self._total < self._most:
                return

    # Connections

    def take_idle(self, origin: Origin) -> Http1Connection | None:
        """Return a connection that served before, if there is one that its peer still keeps."""
        idle = self._idle_connections.get(origin)
        while idle:
            connection = idle.pop()
            if not idle:
                del self._idle_connections[origin]
            if connection.is_open and not self._is_stale(connection):
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    def hold(self, connection: Http1Connection) -> None:
        """Have a connection that was just made closed along with the others."""
        self._busy.add(connection)

    def drop(self, connection: Http1Connection) -> None:
        """Close a connection; its place is still taken."""
        self._busy.discard(connection)
        connection.close()

    def give_back(self, origin: Origin, connection: Http1Connection) -> None:
        """Keep a connection if it is of use for more, and give its place up."""
        self._busy.discard(connection)
        if self._idle is not None and connection.is_reusable:
            connection.idle_since = time.monotonic()
            self._idle_connections.setdefault(origin, []).append(connection)
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(self._idle, self._sweep)
        else:
            connection.close()
        self.leave(origin)

    def close(self) -> None:
        """Close everything; requests that wait for an answer fail."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._busy):
            connection.close(HungUp())
        for connections in self._idle_connections.values():
            for connection in connections:
                connection.close()
        self._idle_connections.clear()

    def _is_stale(self, connection: Http1Connection) -> bool:
        # By the clock itself: that of a loop may stand still while it is busy.
        return time.monotonic() - connection.idle_since > (self._idle or 0)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._sweeping = None
        for origin, idle in list(self._idle_connections.items()):
            fresh: list[Http1Connection] = []
            for connection in idle:
                if connection.is_open and not self._is_stale(connection):
                    fresh.append(connection)
                else:
                    connection.close()
            if fresh:
                self._idle_connections[origin] = fresh
            else:
                del self._idle_connections[origin]
        if self._idle_connections:
            self._sweeping = self._loop.call_later(self._idle or 0, self._sweep)
