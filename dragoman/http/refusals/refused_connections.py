"""Connections whose last request was refused in overload: they are read beside the loop's own
reading, many in one callback, so that one more refusal costs little besides the system's read and
write. At five times the load four of five requests are refused.

A connection stays here while whole requests come that are refused or have a known head, each after
the answer to the one before. Anything else, and the end of the overload, takes it back to the loop.
Where the system has no epoll, and with TLS, the loop reads all connections.
"""

import asyncio
import contextlib
import os
import select
from typing import Protocol

from dragoman.http.connections import BUSY, Connections
from dragoman.http.deadlines import IDLE_SECONDS, Deadlines
from dragoman.http.refusals.early import EarlyRefusals

CAN_POLL = hasattr(select, "epoll")
# How many requests are read before the loop does something else, and the most bytes of one: what
# has as many is the loop's, because more may follow without another event.
_AT_ONCE = 1024
_MAX_BYTES = 16 * 1024


class RefusedConnection(Protocol):
    """A connection that may be read here."""

    early: EarlyRefusals
    deadlines: Deadlines

    @property
    def is_answered(self) -> bool:
        """Whether no answer is under way or unsent."""
        ...

    def read_together(self, data: bytes) -> bool:
        """Refuse or begin what came, and tell whether that was possible; otherwise the loop has to
        read it."""
        ...

    def return_to_loop(self, data: bytes, unsent: bytes = b"") -> None:
        """Be read by the loop from here on: write what the system did not take of a refusal, and
        begin with what was read already."""
        ...


class RefusedConnections:
    """The connections of a process whose last request was refused."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._by_descriptor: dict[int, RefusedConnection] = {}
        self._poll: select.epoll | None = None

    def __len__(self) -> int:
        return len(self._by_descriptor)

    def add(self, descriptor: int, connection: RefusedConnection) -> None:
        """Read a connection here from now on: the loop must not read it any more."""
        if self._poll is None:
            # The loop sees one readable file, however many connections there are.
            self._poll = select.epoll()
            asyncio.get_running_loop().add_reader(self._poll.fileno(), self._read)
        # Told once of what comes: all of it is read, and asking for the same again is work.
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._by_descriptor[descriptor] = connection
        self._tell(len(self))

    def remove(self, descriptor: int, connection: RefusedConnection) -> None:
        """Read a connection no more; one that is gone may have left its descriptor to another."""
        if self._poll is None or self._by_descriptor.get(descriptor) is not connection:
            return
        del self._by_descriptor[descriptor]
        self._tell(len(self))
        with contextlib.suppress(OSError):
            # Closing it has done the same.
            self._poll.unregister(descriptor)
        if not self._by_descriptor:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _tell(self, count: int) -> None:
        if self._connections.admission is not None:
            self._connections.admission.refused_connections = count

    def write(self, descriptor: int, connection: RefusedConnection, answer: bytes) -> None:
        """Write a refusal."""
        try:
            written = os.write(descriptor, answer)
        except OSError:
            # There is no room, or the caller is gone.
            written = 0
        if written != len(answer):
            connection.return_to_loop(b"", answer[written:])

    def _read(self) -> None:
        """Refuse or begin what came; give back the connections on which something else came."""
        assert self._poll is not None
        read, write, find = os.read, os.write, self._by_descriptor.get
        connections = self._connections
        admission = connections.admission
        read_by = connections.now + IDLE_SECONDS
        busy, size = BUSY.answer, len(BUSY.answer)
        # How many may be refused by a comparison with the request before, and how many were.
        left, refused = self._left_at_once(), 0
        who, is_full = None, False
        for descriptor, _ in self._poll.poll(0, _AT_ONCE):
            connection = find(descriptor)
            if connection is None:
                continue
            try:
                data = read(descriptor, _MAX_BYTES)
            except OSError:
                # The loop finds out what is wrong, or that nothing has come.
                data = b""
            early, length = connection.early, len(data)
            if (
                length == early.length < _MAX_BYTES
                and data.startswith(early.head)
                and refused < left
            ):
                caller = early.counts_for
                if caller is None and connection.is_answered:
                    # A request began here since.
                    caller = early.find_caller()
                if caller is not who:
                    who = caller
                    is_full = who is not None and admission is not None and admission.is_full(who)
                if is_full:
                    refused += 1
                    connection.deadlines.read_by = read_by
                    try:
                        written = write(descriptor, busy)
                    except OSError:
                        written = 0
                    if written != size:
                        connection.return_to_loop(b"", busy[written:])
                    continue
            # One that begins is under way.
            who, is_full = None, False
            if not 0 < length < _MAX_BYTES or not connection.read_together(data):
                connection.return_to_loop(data)
        if refused and admission is not None:
            admission.turn_away(refused)
            connections.refused[BUSY.reason] += refused

    def _left_at_once(self) -> int:
        """Return how many requests may be refused without a look at their callers' rates, and
        without a delay."""
        admission = self._connections.admission
        if admission is None or not admission.is_overloaded or self._connections.refusals.is_alert:
            return 0
        return int(min(admission.at_once - admission.refused, _AT_ONCE))
