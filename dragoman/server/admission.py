"""Overload: what is accepted stays fast, and the rest is told so before its body is read.

What a server runs out of is the time of its event loop. If timers are late and stay so, there is
more to do than time. From then on a batch of requests begins, goes through together, and only then
the next one: as many as leave the loop some rest. Requests that wait, for a task or a reader, take
no time and do not count. In overload those give way first who ask most.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from dragoman.server.limits import network

logger = logging.getLogger("dragoman")

# Seconds from one look, or batch, to the next.
BATCH = 0.040
# Seconds a look may be late, and how many in a row that are later make an overload: a few may be
# single slow things.
LATE = 0.060
_LOOKS = 2
# Seconds it is late if a batch was too small, or too large.
_RESTED = 0.004
_BUSY = 0.012
# Seconds without a refusal after which it is over.
OVER_AFTER = 1.0
# Seconds after which, in overload, a request that has not begun is too old to begin.
_MAX_AGE = 0.1
# Of the time it is late, the part that counts also if our thread did not work: it may be that an
# agent blocks the loop.
_STILL = 1 / 8
# Requests that may begin in one turn, or in one batch, at most and at least.
MOST = 1024
LEAST = 16
# There may be so many times as many of those that are preferred.
_PREFERENCE = 4
# Connections whose principal is remembered.
_MAX_KNOWN = 16_384

Clock = Callable[[], float]


class Admission:
    """Decides about each request whether it may begin."""

    def __init__(self, now: Clock = time.monotonic, work: Clock = time.thread_time) -> None:
        self._now = now
        self._work = work
        # Whether requests are being refused, or were a moment ago.
        self.is_overloaded = False
        # How many requests may begin in a turn or batch, and how many have.
        self.most = float(MOST)
        self.begun = 0
        # For whoever shows figures.
        self.admitted = 0
        self.refused = 0

        self._is_watching = False
        # When the next look is due, and how late it was in the middle of the batch.
        self._due = self._late = 0.0
        # How long to it, and what our thread had worked before.
        self._interval = self._worked = 0.0
        self._is_middle = False
        # Looks that were late so far, and what began before them.
        self._late_looks = self._crowd = 0
        self._was_full = False
        self._refused_at = 0.0
        # Who has begun how many in this batch, and how many there were in the last one.
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
            who = self.who(connection)
            share = self._shares.get(who, 0)
            if self.begun >= self.most and not self._may_exceed(share, is_preferred=is_preferred):
                return self._refuse()
            self._shares[who] = share + 1
        elif self.begun >= self.most:
            return self._refuse()
        self.begun += 1
        self.admitted += 1
        return True

    def who(self, connection: object) -> object:
        """Return whom the requests of a connection count for, until someone else is known to
        speak there."""
        return self._known.get(connection) or _place(connection)

    def turns_away(self, who: object) -> bool:
        """Tell whether there is no room in this batch for what someone asks who is not preferred:
        it is refused, and `enter` would have told nothing else."""
        most, begun = self.most, self.begun
        if begun < most:
            return False
        if begun < _PREFERENCE * most and self._shares.get(who, 0) < most / (self._sharers + 1):
            return False
        self._was_full = True
        self.refused += 1
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

    # Looks

    def _watch(self) -> None:
        """Look at the loop from here on, for as long as anyone comes."""
        self._is_watching = True
        self._look_in(BATCH)

    def _look_in(self, seconds: float) -> None:
        self._due, self._interval = self._now() + seconds, seconds
        self._worked = self._work()
        asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """See how late it is."""
        now = self._now()
        late = now - self._due
        # What others had of the processor is not our load.
        ours = self._work() - self._worked - self._interval
        late = max(min(late, ours), late * _STILL)
        if not self.is_overloaded:
            self._look_for_overload(now, late)
        elif self._is_middle:
            self._late = late
        else:
            self._end_batch(now, max(late, self._late))
        if self.is_overloaded:
            self._is_middle = not self._is_middle
            self._look_in(BATCH / 2)
        elif self.begun:
            self.begun = 0
            self._look_in(BATCH)
        else:
            self._is_watching = False

    def _look_for_overload(self, now: float, late: float) -> None:
        if late > LATE:
            self._late_looks += 1
            self._crowd += self.begun
        else:
            self._late_looks = self._crowd = 0
        # Where only few begin, it is not they who make it late.
        is_crowd = self._late_looks >= _LOOKS and self._crowd >= LEAST * self._late_looks
        if is_crowd or self._was_full:
            self.is_overloaded, self._is_middle = True, False
            self._refused_at = now
            logger.warning(
                "overload: the loop is %.0f ms late; some are told to come back", late * 1000
            )
            fits = min(self.begun, MOST) * BATCH / (BATCH + max(0.0, late))
            self.most = max(float(LEAST), fits)
            self.begun = 0
        self._was_full = False

    def _end_batch(self, now: float, late: float) -> None:
        if late > _BUSY:
            self.most = max(float(LEAST), self.most * (0.7 if late > BATCH else 0.9))
        elif late < _RESTED:
            self.most = min(float(MOST), self.most * 1.1 + 1)
        if self._was_full:
            self._refused_at = now
        elif now - self._refused_at > OVER_AFTER:
            self.is_overloaded = False
            logger.info("the overload is over")
            self.most = float(MOST)
            self._late_looks = self._crowd = 0
        self._was_full = False
        self.begun = 0
        self._sharers = len(self._shares)
        self._shares.clear()


def _place(connection: object) -> object:
    """Return whom a connection counts for while nobody knows who speaks there: its address, or
    many connections would be many sharers."""
    match connection:
        case (str() as host, int()):
            return network(host)
        case _:
            return connection
