"""Refusals that a caller gets after a delay, because it asked again at once whatever it was told.

Nothing is read from such a connection meanwhile, so each costs a bounded number of refusals a
second, spread evenly. No other caller is delayed: each of these answers says to wait longer.
"""

import asyncio
import itertools
import time
from typing import Any, Protocol

# Seconds for which a refusal is delayed, how close two may be to be written together, and how many
# are written before the loop does something else.
DELAY = 0.040
_TICK = 0.002
_AT_ONCE = 64
# Seconds after a refusal within which a next one is delayed. Delaying costs half as much again as
# writing it, so it has to prevent at least one: it prevents none from a sender that asks less often
# than twice in a delay.
AGAIN = DELAY / 2
# Bytes of refusals that wait on one connection, for requests sent behind each other.
MAX_DELAYED_BYTES = 64 * 1024
# Bytes that may come meanwhile and be kept: more are read at once, and then nothing until the
# refusals are written.
MAX_UNREAD_BYTES = 4 * 1024


class DelayedConnection(Protocol):
    """A connection that has a refusal waiting."""

    def flush_refusals(self) -> None:
        """Write what waits."""
        ...


class DelayedRefusals:
    """The connections of a process that have a refusal waiting."""

    def __init__(self) -> None:
        # When each is due, the next one first.
        self._due: dict[DelayedConnection, float] = {}

    def add(self, connection: DelayedConnection) -> None:
        """Have a connection write its refusals after the delay. Each has its own: written all at
        once, they would all be asked for again at once, and keep other callers waiting."""
        loop = asyncio.get_running_loop()
        if not self._due:
            loop.call_later(DELAY, self._write)
        # Last in line also if it is still listed, having written the one before itself.
        self._due.pop(connection, None)
        self._due[connection] = loop.time() + DELAY

    def _write(self) -> None:
        """Write the refusals that are due, in the order in which they came."""
        loop = asyncio.get_running_loop()
        by = loop.time() + _TICK
        first = itertools.islice(self._due.items(), _AT_ONCE)
        due = [connection for connection, at in first if at <= by]
        for connection in due:
            del self._due[connection]
        # Before they are written, since each may be added again at once: while any waits, exactly
        # one timer runs.
        if self._due:
            at = next(iter(self._due.values()))
            loop.call_later(max(0.0, at - loop.time()), self._write)
        for connection in due:
            connection.flush_refusals()


class RefusalWriter:
    """Writes the refusals of one connection that stays open, at once or after the delay."""

    __slots__ = ("_connection", "_delayed", "_refused_at", "unread", "waiting")

    def __init__(self, connection: Any, delayed: DelayedRefusals) -> None:
        """`connection` is the `HttpProtocol`, whose transport comes later than this."""
        self._connection = connection
        self._delayed = delayed
        self._refused_at = 0.0
        # Refusals to be written, and what came since and is read after that.
        self.waiting = self.unread = b""

    def is_due(self) -> bool:
        """Tell whether a refusal may be written at once, which counts as written."""
        now = time.monotonic()
        if self.waiting or now - self._refused_at <= AGAIN:
            return False
        self._refused_at = now
        return True

    def delay(self, answer: bytes, *, is_last: bool) -> None:
        """Write a refusal after the delay. `is_last` says that no more has come from the caller;
        where more has, reading stops until the refusal is written."""
        if not self.waiting:
            self._delayed.add(self._connection)
        self.waiting += answer
        if not is_last:
            self._connection.flow.pause_reading()
        if len(self.waiting) > MAX_DELAYED_BYTES:
            self.flush()

    def postpone(self, data: bytes) -> bool:
        """Keep what came until the refusals are written, and tell whether that is possible."""
        if len(data) > MAX_UNREAD_BYTES:
            self.flush()
            return False
        self.unread = data
        self._connection.flow.pause_reading()
        return True

    def flush(self) -> None:
        """Write the refusals that wait, before anything else is written; read on."""
        waiting, self.waiting = self.waiting, b""
        unread, self.unread = self.unread, b""
        connection = self._connection
        if waiting and not connection.transport.is_closing():
            self._refused_at = time.monotonic()
            connection.write_refusals(waiting)
            connection.flow.resume_reading()
            if unread:
                connection.data_received(unread)

    def clear(self) -> None:
        """The connection is gone."""
        self.waiting = self.unread = b""
