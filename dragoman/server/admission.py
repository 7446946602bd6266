"""Overload: what is accepted stays fast, and the rest is told so before its body is read.

What a server runs out of is the time of its event loop. If timers are late and stay so, or it has
no rest and even the quickest requests take long, there is more to do than time. From then on only
so many requests are under way at once as are answered soon, and another one begins when one of them
is answered. Requests that wait, for a task or a reader, take no time and do not count for long. In
overload those give way first who ask most.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable

from dragoman.server.limits import network

logger = logging.getLogger("dragoman")

# Seconds from one look to the next.
LOOK = 0.040
# Seconds a look may be late, and how many in a row that are later make an overload: a few may be
# single slow things.
LATE = 0.060
_LATE_LOOKS = 2
# Seconds a request may take while the loop has no rest, and how many looks in a row that see only
# slower ones make an overload. A turn of the loop is short if what comes is spread over many, and
# each request takes several of them, so timers alone do not tell.
SLOW = 0.080
SLOW_LOOKS = 5
# Of the time, what our thread works that has no rest; the writer's thread has some of it too.
_RESTLESS = 0.75
# Seconds the quickest of a look take, in overload, if too few are under way, and if too many.
SHORT = 0.040
LONG = 0.055
# Looks for which a request counts as under way: one that takes longer waits for something else.
LOOKS_UNDER_WAY = 5
# Seconds without a refusal after which it is over.
OVER_AFTER = 1.0
# Seconds after which, in overload, a request that has not begun is too old to begin.
_MAX_AGE = 0.1
# Of the time it is late, the part that counts also if our thread did not work: it may be that an
# agent blocks the loop.
_STILL = 1 / 8
# Requests that may begin from one look to the next, and those that may always be under way.
MOST = 1024
LEAST = 16
# There may be so many times as many of those that are preferred.
_PREFERENCE = 4
# For each that may be under way, how many may be refused at once from one look to the next; those
# beyond are told so later.
_AT_ONCE = 8
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
        # How many requests may be under way in overload, and how many are.
        self.most = float(MOST)
        self.under_way = 0
        # For whoever shows figures.
        self.admitted = 0
        self.refused = 0

        self._is_watching = False
        # When the next look is due, and what our thread had worked before.
        self._due = self._worked = 0.0
        # What began since the last look, and how far refusals may be counted that are given at
        # once, since they are so few that it takes little.
        self._begun = 0
        self.at_once = 0.0
        # When the looks were since which requests count as under way, the oldest first, and how
        # many that began after each are.
        self._looked_at = deque([-math.inf], LOOKS_UNDER_WAY)
        self._since = deque([0], LOOKS_UNDER_WAY)
        # What the quickest request took that was answered since the last look.
        self._took = math.inf
        # Looks that were late so far, and what began before them; looks that saw only slow ones.
        self._late_looks = self._crowd = self._slow_looks = 0
        self._was_full = False
        self._refused_at = 0.0
        # Who has begun how many since the last look, how many of everyone's are few, and who had
        # more before it.
        self._shares: dict[object, int] = {}
        self._few = 0.0
        self._loud: set[object] = set()
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
            if self.under_way >= self.most and not self._may_exceed(who, is_preferred=is_preferred):
                return self._refuse()
            self._shares[who] = self._shares.get(who, 0) + 1
        elif self._begun >= MOST:
            return self._refuse()
        self._begun += 1
        self.admitted += 1
        return True

    def who(self, connection: object) -> object:
        """Return whom the requests of a connection count for, until someone else is known to
        speak there."""
        return self._known.get(connection) or _place(connection)

    def turns_away(self, who: object) -> bool:
        """Tell whether there is no room at present for what someone asks who is not preferred:
        it is refused, and `enter` would have told nothing else."""
        if self.under_way < self.most or (who not in self._loud and self._may_exceed(who)):
            return False
        self._was_full = True
        self.refused += 1
        return True

    def _may_exceed(self, who: object, *, is_preferred: bool = False) -> bool:
        """Tell whether one more may begin although there are enough: the few requests of those
        who ask little are not what makes the load."""
        if self.under_way >= _PREFERENCE * self.most:
            return False
        return is_preferred or (who not in self._loud and self._shares.get(who, 0) < self._few)

    def _refuse(self) -> bool:
        self._was_full = True
        self.refused += 1
        return False

    def begin(self) -> float:
        """Count a request as under way; return when it began."""
        self.under_way += 1
        self._since[-1] += 1
        return self._now()

    def end(self, began: float, *, is_stream: bool) -> None:
        """A request that began at some time has its whole answer."""
        looked_at, since = self._looked_at, self._since
        for age in range(len(since) - 1, -1, -1):
            if began >= looked_at[age]:
                since[age] -= 1
                self.under_way -= 1
                break
        # A stream lasts as long as its task.
        if not is_stream and (took := self._now() - began) < self._took:
            self._took = took

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
        self._look_again()

    def _look_again(self) -> None:
        now = self._now()
        if len(self._since) == LOOKS_UNDER_WAY:
            self.under_way -= self._since[0]
        self._since.append(0)
        self._looked_at.append(now)
        self._due, self._worked = now + LOOK, self._work()
        asyncio.get_running_loop().call_later(LOOK, self._look)

    def _look(self) -> None:
        """See how late it is, and how long it takes."""
        now = self._now()
        late = now - self._due
        worked = self._work() - self._worked
        is_restless = worked > _RESTLESS * (LOOK + late)
        took, self._took = self._took if is_restless else 0.0, math.inf
        if self.is_overloaded:
            self._adapt(now, took)
        else:
            # What others had of the processor is not our load.
            late = max(min(late, worked - LOOK), late * _STILL)
            self._look_for_overload(now, late, took)
        if self.is_overloaded or self._begun:
            self._begun = 0
            self._was_full = False
            self.at_once = self.refused + _AT_ONCE * self.most
            self._look_again()
        else:
            self._is_watching = False

    def _look_for_overload(self, now: float, late: float, took: float) -> None:
        if late > LATE:
            self._late_looks += 1
            self._crowd += self._begun
        else:
            self._late_looks = self._crowd = 0
        if took <= SLOW:
            self._slow_looks = 0
        elif took < math.inf and self._begun >= LEAST:
            self._slow_looks += 1
        # Where only few begin, it is not they who make it late.
        is_late = self._late_looks >= _LATE_LOOKS and self._crowd >= LEAST * self._late_looks
        if is_late or self._slow_looks >= SLOW_LOOKS or self._was_full:
            self.is_overloaded = True
            self._refused_at = now
            logger.warning(
                "overload: the loop is %.0f ms late; some are told to come back", late * 1000
            )
            fits = min(self._begun, MOST) * LOOK / (LOOK + max(0.0, late))
            self.most = max(float(LEAST), fits)

    def _adapt(self, now: float, took: float) -> None:
        if LONG < took < math.inf:
            self.most = max(float(LEAST), self.most * max(0.8, LONG / took))
        elif took < SHORT and self._was_full:
            self.most = min(float(MOST), self.most * 1.1 + 1)
        if self._was_full:
            self._refused_at = now
        elif now - self._refused_at > OVER_AFTER:
            self.is_overloaded = False
            logger.info("the overload is over")
            self._late_looks = self._crowd = self._slow_looks = 0
        if self._shares:
            self._few = min(self.most, self._begun) / (len(self._shares) + 1)
            self._loud = {who for who, share in self._shares.items() if share >= self._few}
            self._shares.clear()


def _place(connection: object) -> object:
    """Return whom a connection counts for while nobody knows who speaks there: its address, or
    many connections would be many sharers."""
    match connection:
        case (str() as host, int()):
            return network(host)
        case _:
            return connection
