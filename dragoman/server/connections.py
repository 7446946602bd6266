"""All open connections of a process: how many there may be, how long each may keep us waiting, and
what was refused.

One timer looks at all of them once a second; a good request arms none of its own.
"""

import asyncio
import json
import math
from collections import Counter
from http import HTTPStatus
from typing import NamedTuple, Protocol

from dragoman.config import Settings
from dragoman.server.admission import Admission
from dragoman.server.refusals import Refusals

# Seconds for a request's head, from its first byte; the first one's from the connection on.
HEAD_SECONDS = 10.0
# Seconds for a body; a longer one is read on while it comes at least this fast.
BODY_SECONDS = 30.0
BYTES_PER_SECOND = 4 * 1024
# Seconds without a request after which a connection is closed.
IDLE_SECONDS = 60.0
# Seconds a caller has to take a plain answer, besides what its size takes at the rate above.
WRITE_SECONDS = 60.0
# Seconds we go on listening after a refusal: closing at once would take the answer back.
LINGER_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
NEVER = math.inf

_SWEEP_SECONDS = 1.0
# How many are let go at once, and what is between them and the next.
_AT_ONCE = 50
_PAUSE_SECONDS = 0.01
# Of the places, how many are freed at once when there are none.
_FREED_SHARE = 64


class Refusal(NamedTuple):
    """Why a request or a connection is not served, as a problem of RFC 9457."""

    status: int
    # What it is counted as.
    reason: str
    answer: bytes


def refusal(status: int, reason: str, detail: str, *, closes: bool = True) -> Refusal:
    """Return a refusal with its whole answer, made once."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    content = json.dumps(body, separators=(",", ":")).encode()
    later = b"retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else b""
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
        b"x-content-type-options: nosniff\r\n%b%b\r\n"
    )
    last = b"connection: close\r\n" if closes else b""
    written = head % (status, title.encode(), len(content), later, last)
    return Refusal(status, reason, written + content)


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

    # When to look at it, because it should have been heard or should have read by then.
    read_by: float
    write_by: float

    @property
    def address(self) -> str:
        """Who is at the other end."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being done for it: its next request has not fully come."""
        ...

    def expire(self) -> None:
        """See what it is late with."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """The open connections of one process, their limits and their clock."""

    def __init__(
        self,
        settings: Settings,
        admission: Admission | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        # Decides in overload who may begin; None: whoever comes.
        self.admission = admission
        # Knows who has asked too often.
        self.refusals = refusals or Refusals()
        self.max_body_bytes = settings.max_body_bytes
        self.max_connections = settings.max_connections
        self.max_per_address = settings.max_connections_per_address
        # Seconds in which we listened. A process that was held up did not, and that is not the
        # fault of those who were talking.
        self.now = 0.0
        # For whoever shows figures: connections taken, and what was refused for which reason.
        self.opened = 0
        self.refused = Counter[str]()
        self._open: set[Watched] = set()
        self._by_address: dict[str, int] = {}
        self._swept_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Watched) -> Refusal | None:
        """Take a connection in, or say why not."""
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

    def count(self, reason: str) -> None:
        """Remember that something was refused."""
        self.refused[reason] += 1

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and see who is late."""
        self.now += seconds
        now = self.now
        self._expire([one for one in self._open if one.read_by <= now or one.write_by <= now])

    def _expire(self, late: list[Watched]) -> None:
        """Let go of those who are late, some at a time: between them others have their turn."""
        for one in late[:_AT_ONCE]:
            if one.read_by <= self.now or one.write_by <= self.now:
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
        """Close the connections nearest to their end that have said nothing yet.

        So those who only hold places lose them to those who come with a request, and many are
        closed at once, because finding them takes a look at all.
        """
        waiting = sorted((one for one in self._open if one.is_waiting), key=lambda one: one.read_by)
        freed = waiting[: max(1, self.max_connections // _FREED_SHARE)]
        for one in freed:
            self.count(EVICTED)
            self.forget(one)
            one.drop()
        return bool(freed)
