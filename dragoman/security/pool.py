"""Connections of one loop, by where they lead: who may have one, and which are kept for later.

A peer that answers slowly holds only so many; whoever comes then waits for a place, in turn.
"""

import asyncio
import time
from collections import deque

from dragoman.security.wire import Connection, HungUp

# Scheme, host and port.
Origin = tuple[str, str, int]


class Pool:
    """Places for connections, in all and for each origin, and the connections that wait idle."""

    def __init__(self, *, most: int, per_origin: int, idle: float | None) -> None:
        self._most = most
        self._per_origin = per_origin
        # Seconds that a connection is kept; none is without.
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._used: dict[Origin, int] = {}
        self._total = 0
        self._waiting: dict[Origin, deque[asyncio.Future[None]]] = {}
        self._busy: set[Connection] = set()
        self._kept: dict[Origin, list[Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    # Places

    def enter(self, origin: Origin) -> bool:
        """Take a place if one is free, which is never so while somebody waits for it; say whether
        it was."""
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
                # It was given to somebody who does not want it any more.
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
        """Give the place that became free to whoever may have it and has waited longest."""
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

    def kept(self, origin: Origin) -> Connection | None:
        """Return a connection that served before, if there is one that its peer still keeps."""
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()
            if not kept:
                del self._kept[origin]
            if connection.is_open and not self._is_stale(connection):
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    def hold(self, connection: Connection) -> None:
        """Have a connection that was just made closed along with the others."""
        self._busy.add(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection; its place is still taken."""
        self._busy.discard(connection)
        connection.close()

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection if it is of use for more, and give its place up."""
        self._busy.discard(connection)
        if self._idle is not None and connection.is_reusable:
            connection.kept_since = time.monotonic()
            self._kept.setdefault(origin, []).append(connection)
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(self._idle, self._sweep)
        else:
            connection.close()
        self.leave(origin)

    def close(self) -> None:
        """Close everything; whoever waits for an answer is told that there will be none."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._busy):
            connection.close(HungUp())
        for connections in self._kept.values():
            for connection in connections:
                connection.close()
        self._kept.clear()

    def _is_stale(self, connection: Connection) -> bool:
        # By the clock itself: that of a loop may stand still while it is busy.
        return time.monotonic() - connection.kept_since > (self._idle or 0)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._sweeping = None
        for origin, kept in list(self._kept.items()):
            fresh: list[Connection] = []
            for connection in kept:
                if connection.is_open and not self._is_stale(connection):
                    fresh.append(connection)
                else:
                    connection.close()
            if fresh:
                self._kept[origin] = fresh
            else:
                del self._kept[origin]
        if self._kept:
            self._sweeping = self._loop.call_later(self._idle or 0, self._sweep)
