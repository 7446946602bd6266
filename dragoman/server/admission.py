"""Overload: what is accepted stays fast, and the rest is told so before its body is read.

What a server runs out of is the time of its event loop. So this watches how much of it one turn of
the loop takes, and lets so many requests begin in each that turns stay short. Requests that wait,
for a task or a reader, take no turn and do not count. In overload those give way first who ask
most.
"""

import asyncio
import re
import time
from collections.abc import Callable

# Seconds of work in a turn. A crowd that comes at once may make it long; where it does not end,
# short turns are better: as much is done, and sooner.
LONG_TURN = 0.050
SHORT_TURN = 0.020
# A long turn in which fewer began may be a single slow thing; two in a row are not.
_CROWD = 64
# Seconds of refusals after which a crowd is overload, and without any after which it is over.
STANDING_AFTER = 0.25
OVER_AFTER = 1.0
# Seconds after which, in overload, a request that has not begun is too old to begin.
_MAX_AGE = 0.1
# Of what began in a turn that was too long, the least that may begin in the next.
_AT_ONCE = 0.25
# Requests that may begin in one turn, at most and at least.
MOST = 1024
LEAST = 32
# There may be so many times as many of those that are preferred.
_PREFERENCE = 4
# Of the time on the clock, the part that counts also if our thread did not work: it may have been
# others who had the processor, or an agent that blocked the loop.
_IDLE_SHARE = 1 / 8
# Connections whose principal is remembered.
_MAX_KNOWN = 16_384

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,5})\r\n")
_KEPT = b"\r\nconnection: keep-alive\r\n"

Clock = Callable[[], float]


def is_plain(data: bytes) -> bool:
    """Tell whether these bytes are one whole request and so plain that it can be refused unread:
    nobody could take its end to be elsewhere."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"POST /"):
        return False
    head = data[: end + 2].lower()
    length = _LENGTH.search(head)
    return (
        length is not None
        and len(data) == end + 4 + int(length[1])
        and head.count(b"content-length") == 1
        and head.count(b"\n") == head.count(b"\r\n")
        and 0 < head.find(b" http/1.1\r\n") < head.find(b"\r\n")
        # Other framing, a wait for our word, an end, or going on with a stream.
        and b"transfer-encoding" not in head
        and b"\r\nexpect" not in head
        and b"\r\nlast-event-id" not in head
        and (b"\r\nconnection" not in head or _KEPT in head)
    )


class Admission:
    """Decides about each request whether it may begin."""

    def __init__(self, now: Clock = time.monotonic, work: Clock = time.thread_time) -> None:
        self._now = now
        self._work = work
        # Whether requests are being refused, or were a moment ago.
        self.is_overloaded = False
        # How many requests may begin in a turn, and how many have.
        self.most = float(MOST)
        self.begun = 0
        # For whoever shows figures.
        self.admitted = 0
        self.refused = 0

        self._is_watching = False
        # The turn that is under way; the first one that is watched began in the middle.
        self._is_whole = False
        self._began_at = self._worked = 0.0
        self._was_full = False
        self._was_long = False

        self._refusing_since = self._refused_at = 0.0
        self._is_standing = False
        # Who has begun how many in this turn, and how many there were in the last one.
        self._shares: dict[object, int] = {}
        self._sharers = 1
        self._known: dict[object, str] = {}

    # Requests

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> bool:
        """Tell whether a request may begin, which came just now or at some time. Preferred are
        those that only read, and those that go on with what was accepted before."""
        if not self._is_watching:
            self._watch()
        if self.is_overloaded:
            if came_at is not None and self._now() - came_at > _MAX_AGE:
                return self._refuse()
            who = self._known.get(connection, connection)
            share = self._shares.get(who, 0)
            if self.begun >= self.most and not self._may_exceed(share, is_preferred=is_preferred):
                return self._refuse()
            self._shares[who] = share + 1
        elif self.begun >= self.most:
            return self._refuse()
        self.begun += 1
        self.admitted += 1
        return True

    def _may_exceed(self, share: int, *, is_preferred: bool) -> bool:
        """Tell whether one more may begin although there are enough: the few requests of those
        who ask little are not what makes the load."""
        if self.begun >= _PREFERENCE * self.most:
            return False
        return is_preferred or share < self.most / (self._sharers + 1)

    def _refuse(self) -> bool:
        self._was_full = True
        self.refused += 1
        return False

    def know(self, connection: object, principal: str) -> None:
        """Remember who speaks on a connection: from then on what comes there is counted as
        theirs before anyone has looked at it."""
        if self._known.get(connection) != principal:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[connection] = principal

    def forget(self, connection: object) -> None:
        """A connection is gone."""
        self._known.pop(connection, None)

    # Turns

    def _watch(self) -> None:
        """Look at the turns of the loop from here on. While nobody came they were short."""
        now = self._now()
        self.take_turn(now, 0.0, idle=now - self._began_at)
        self._is_watching, self._is_whole = True, False
        self._began_at, self._worked = now, self._work()
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """End a turn and begin one: what is scheduled here is called when the loop was around."""
        now, worked = self._now(), self._work()
        took = max(worked - self._worked, (now - self._began_at) * _IDLE_SHARE)
        self._began_at, self._worked = now, worked
        goes_on = self.begun > 0 or self._was_full
        if self._is_whole:
            self.take_turn(now, took)
        self.begun = 0
        self._is_whole = True
        if goes_on:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self._is_watching = False

    def take_turn(self, now: float, took: float, *, idle: float = 0.0) -> None:
        """Learn from a turn that took so many seconds, or from seconds in which nobody came."""
        limit = SHORT_TURN if self._is_standing else LONG_TURN
        if took > limit:
            is_load = self._is_standing or self._was_long or self.begun >= _CROWD
            if is_load and self.begun:
                fits = min(self.most, self.begun) * max(_AT_ONCE, limit / took)
                self.most = max(float(LEAST), fits)
            self._was_long = True
        else:
            self._was_long = False
            self.most = min(float(MOST), self.most * 1.1 + 1 + idle * MOST)
        if self._was_full:
            self._was_full = False
            self._refused_at = now
            if not self.is_overloaded:
                self.is_overloaded = True
                self._refusing_since = now
            self._is_standing |= now - self._refusing_since > STANDING_AFTER
        elif self.is_overloaded and now - self._refused_at > OVER_AFTER:
            self.is_overloaded = self._is_standing = False
        if self.is_overloaded:
            self._sharers = len(self._shares)
            self._shares.clear()
