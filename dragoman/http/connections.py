"""All open connections of a process: how many there may be, which of them are late, and what was
refused.

One timer looks at all of them once a second; a good request arms none of its own.
"""

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import Protocol

import msgspec

from dragoman.config import Settings
from dragoman.http.admission import Admission
from dragoman.http.deadlines import Deadlines
from dragoman.http.grpc.front import GrpcFront
from dragoman.http.known_heads import HeadTotal
from dragoman.http.refusals.delayed import DelayedRefusals
from dragoman.http.refusals.limited_callers import LimitedCallers

_SWEEP_SECONDS = 1.0
# How many are expired at once, and the seconds between them and the next.
_AT_ONCE = 50
_PAUSE_SECONDS = 0.01
# How often a server that ends looks whether its connections are closed.
_LOOK_SECONDS = 0.02
# The share of all connections that is closed at once when there is no room: one in so many.
_FREED_SHARE = 64


class CountedRefusal(msgspec.Struct, frozen=True):
    """Why a request or a connection is not served, as a problem of RFC 9457."""

    status: int
    # What it is counted as.
    reason: str
    answer: bytes


def refusal(status: int, reason: str, detail: str, *, closes: bool = True) -> CountedRefusal:
    """Return a refusal with its whole answer, made once."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    content = msgspec.json.encode(body)
    later = b"retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else b""
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
        b"x-content-type-options: nosniff\r\n%b%b\r\n"
    )
    last = b"connection: close\r\n" if closes else b""
    written = head % (status, title.encode(), len(content), later, last)
    return CountedRefusal(status, reason, written + content)


BUSY = refusal(503, "overload", "The server is busy; try again later", closes=False)
FULL = refusal(503, "connections", "There are too many connections; try again later")
CROWDED = refusal(503, "address", "There are too many connections from this address")
# What the app refused before, and would again.
LIMITED = "rate"
# Ends without an answer that have a count all the same.
IDLE = "idle"
UNREAD = "unread"
EVICTED = "evicted"


class Watched(Protocol):
    """A connection as seen from here."""

    deadlines: Deadlines

    @property
    def address(self) -> str:
        """Where the caller connects from."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether no request of it is being answered: the next one has not fully come."""
        ...

    def expire(self) -> None:
        """Act on the deadline that has passed."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...

    def shutdown(self) -> None:
        """Close it once what it was asked is answered."""
        ...


class Connections:
    """The open connections of one process, their limits and their clock."""

    def __init__(
        self,
        settings: Settings,
        admission: Admission | None = None,
        refusals: LimitedCallers | None = None,
    ) -> None:
        # Decides in overload which requests may begin; None: all may.
        self.admission = admission
        # Knows the callers who have asked too often.
        self.refusals = refusals or LimitedCallers()
        self.delayed = DelayedRefusals()
        # Takes connections of HTTP/2; None: there is no gRPC here. Ports that take nothing else.
        self.grpc: GrpcFront | None = None
        self.grpc_ports: frozenset[int] = frozenset()
        # Whether requests with a head that was read before skip the parser; tests turn it off.
        self.keeps_heads = True
        self.known_heads = HeadTotal()
        # Whether the server ends: each connection takes one more request at most.
        self.is_stopping = False
        # Whether it ends without waiting for what is under way.
        self.is_forced = False
        self.max_body_bytes = settings.http.max_body_bytes
        self.max_connections = settings.http.max_connections
        self.max_per_address = settings.http.max_connections_per_address
        # Seconds in which this process was able to read. While it was held up it did not read, and
        # its callers are not late for that.
        self.now = 0.0
        # For figures: connections taken, and what was refused for which reason.
        self.opened = 0
        self.refused = Counter[str]()
        self._open: set[Watched] = set()
        # What answers the requests that are under way.
        self.tasks: set[asyncio.Task[None]] = set()
        self._by_address: dict[str, int] = {}
        self._swept_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Watched) -> CountedRefusal | None:
        """Take a connection in, or return why not."""
        address = connection.address
        count = self._by_address.get(address, 0)
        if self.max_per_address and count >= self.max_per_address:
            return CROWDED
        if len(self._open) >= self.max_connections and not self._make_room():
            return FULL
        self.opened += 1
        self._by_address[address] = count + 1
        self._open.add(connection)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._swept_at = loop.time()
            self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep, loop)
        return None

    def forget(self, connection: Watched) -> None:
        """A connection is gone, if it was not before."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        left = self._by_address[connection.address] - 1
        if left:
            self._by_address[connection.address] = left
        else:
            del self._by_address[connection.address]

    async def close(self, within: float) -> int:
        """Have every connection end with what it was asked, and wait for that, but not longer than
        some seconds: then what still answers is cancelled. Return how many requests were."""
        self.is_stopping = True
        for one in list(self._open):
            one.shutdown()
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        is_open = True
        while is_open and not self.is_forced and loop.time() < until:
            # Also when there is none: one may just have been accepted.
            await asyncio.sleep(_LOOK_SECONDS)
            is_open = bool(self._open or self.tasks)
        for task in self.tasks:
            task.cancel()
        return len(self.tasks)

    def count(self, reason: str) -> None:
        """Remember that something was refused."""
        self.refused[reason] += 1

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and expire the connections that are late."""
        self.now += seconds
        self._expire([one for one in self._open if one.deadlines.is_late()])

    def _expire(self, late: list[Watched]) -> None:
        """Expire late connections, some at a time: the loop does other work in between."""
        for one in late[:_AT_ONCE]:
            if one.deadlines.is_late():
                one.expire()
        if len(late) > _AT_ONCE:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._expire, late[_AT_ONCE:])

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        passed = loop.time() - self._swept_at
        self._swept_at += passed
        self.pass_time(min(passed, 2 * _SWEEP_SECONDS))
        timer = loop.call_later(_SWEEP_SECONDS, self._sweep, loop) if self._open else None
        self._timer = timer

    def _make_room(self) -> bool:
        """Close the idle connections that are nearest to their deadline.

        A caller that only holds a connection loses it to one that comes with a request. Many are
        closed at once, because finding them takes a look at all.
        """
        idle = (one for one in self._open if one.is_waiting)
        waiting = sorted(idle, key=lambda one: one.deadlines.read_by)
        freed = waiting[: max(1, self.max_connections // _FREED_SHARE)]
        for one in freed:
            self.count(EVICTED)
            self.forget(one)
            one.drop()
        return bool(freed)
