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

# Seconds a turn may take: where every one of them takes longer for a while, there is more to do
# than time. In overload they are kept shorter than that: as much is done, and sooner.
LONG_TURN = 0.075
SHORT_TURN = 0.020
# Seconds of long turns, and how many of them, that make an overload. A few may be slow things.
STANDING_AFTER = 0.1
_TURNS = 2
# Seconds without a refusal after which it is over.
OVER_AFTER = 1.0
# Seconds after which, in overload, a request that has not begun is too old to begin.
_MAX_AGE = 0.1
# Of what began in a turn that was too long, the least that may begin in the next.
_AT_ONCE = 0.5
# Requests that may begin in one turn, at most and at least.
MOST = 1024
LEAST = 16
# There may be so many times as many of those that are preferred.
_PREFERENCE = 4
# Connections whose principal is remembered.
_MAX_KNOWN = 16_384

# Heads that are remembered, and how long they may be.
_MAX_HEADS = 1024
_MAX_HEAD = 1024
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

    def __init__(self, now: Clock = time.monotonic) -> None:
        self._now = now
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
        self._began_at = 0.0
        # Since when turns are long, how many there were, and what began in them.
        self._long_since = 0.0
        self._long_turns = self._crowd = 0
        self._was_full = False
        self._refused_at = 0.0
        # Who has begun how many in this turn, and how many there were in the last one.
        self._shares: dict[object, int] = {}
        self._sharers = 1
        self._known: dict[object, str] = {}
        # Heads of plain requests, and how long the whole is.
        self._heads: dict[bytes, int] = {}

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

    def is_plain(self, data: bytes) -> bool:
        """Tell what `is_plain` does, sooner where the same head came before."""
        end = data.find(b"\r\n\r\n")
        head = data[:end]
        length = self._heads.get(head)
        if length is not None:
            return length == len(data)
        if not is_plain(data):
            return False
        if end <= _MAX_HEAD:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[head] = len(data)
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
        self._began_at = now
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """End a turn and begin one: what is scheduled here is called when the loop was around."""
        now = self._now()
        took, self._began_at = now - self._began_at, now
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
        if took > LONG_TURN:
            self._long_turns += 1
            self._crowd += self.begun
            if now - self._long_since > STANDING_AFTER and not self.is_overloaded:
                # Where so few begin in a turn, it is not they who make it long.
                is_crowd = self._crowd >= LEAST * self._long_turns
                self.is_overloaded = is_crowd and self._long_turns >= _TURNS
                self._refused_at = now
        else:
            self._long_since = now
            self._long_turns = self._crowd = 0
        if self.is_overloaded and took > SHORT_TURN:
            fits = min(self.most, self.begun) * max(_AT_ONCE, SHORT_TURN / took)
            self.most = max(float(LEAST), fits)
        else:
            self.most = min(float(MOST), self.most * 1.1 + 1 + idle * MOST)
        if self._was_full:
            self._was_full = False
            self.is_overloaded = True
            self._refused_at = now
        elif self.is_overloaded and now - self._refused_at > OVER_AFTER:
            self.is_overloaded = False
        if self.is_overloaded:
            self._sharers = len(self._shares)
            self._shares.clear()
