"""Overload: what is accepted stays fast, and the rest is told so before its body is read.

What a server runs out of is the time of its event loop. If timers are late and stay so, or a few
turns of the loop take long, there is more to do than time. From then on only so many requests are
under way at once as are answered soon, and another one begins when one of them is answered. Those
that wait, for a task or a reader, take no time: they make no turn longer, and do not count as under
way for long. In overload those give way first who have most under way.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from dragoman.model.identity import Who
from dragoman.server.limits import network

logger = logging.getLogger("dragoman")

# Seconds from one look to the next.
LOOK = 0.040
# Seconds a look may be late, and how many in a row that are later make an overload: a few may be
# single slow things.
LATE = 0.060
_LATE_LOOKS = 2
# Turns of the loop that a short task takes, from its message to its answer; seconds they may take,
# and for how many seconds they take longer if it is an overload. A turn is short if what comes is
# spread over many, so timers alone do not tell.
TURNS = 6
SLOW = 0.100
SLOW_FOR = 0.3
# Seconds they take, in overload, if too few are under way, and if too many.
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
# After which look a request began, and whose it is; None: nobody asked yet.
Ticket = tuple[int, object]


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
        # How many looks there were; and whose requests are under way, in all and since each look
        # for which they count, the oldest first.
        self._looks = 0
        self._of: Counter[object] = Counter()
        self._since: deque[Counter[object]] = deque([Counter()], LOOKS_UNDER_WAY)
        # Turns that are being timed, and what the last ones took.
        self._is_timing = False
        self._took: float | None = None
        # Looks that were late so far, and what began before them; for how long turns have been
        # slow, and what began since the last ones were timed.
        self._late_looks = self._crowd = 0
        self._slow_for = 0.0
        self._came = 0
        self._was_full = False
        self._refused_at = 0.0
        self._known: dict[object, Who] = {}

    # Requests

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> Ticket | None:
        """Let a request begin, which came just now or at some time; None: it may not. Preferred
        are those that only read, and those that go on with what was accepted before."""
        if not self._is_watching:
            self._watch()
        who = None
        if self.is_overloaded:
            if came_at is not None and self._now() - came_at > _MAX_AGE:
                return self._refuse()
            who = self.who(connection)
            if self.under_way >= self.most and not self._may_exceed(who, is_preferred=is_preferred):
                return self._refuse()
        elif self._begun >= MOST:
            return self._refuse()
        self._begun += 1
        self.admitted += 1
        self.under_way += 1
        self._of[who] += 1
        self._since[-1][who] += 1
        return self._looks, who

    def end(self, ticket: Ticket) -> None:
        """A request has its whole answer, or nobody who waits for it."""
        look, who = ticket
        age = self._looks - look
        if age < len(self._since):
            self._since[-1 - age][who] -= 1
            self._leave(who, 1)

    def _leave(self, who: object, count: int) -> None:
        self.under_way -= count
        self._of[who] -= count
        if not self._of[who]:
            del self._of[who]

    def who(self, connection: object) -> object:
        """Return whom the requests of a connection count for, until someone else is known to
        speak there."""
        return self._known.get(connection) or _place(connection)

    def turns_away(self, who: object) -> bool:
        """Tell whether there is no room at present for what someone asks who is not preferred:
        it is refused, and `enter` would have told nothing else."""
        if self.under_way < self.most or self._may_exceed(who):
            return False
        self._was_full = True
        self.refused += 1
        return True

    def _may_exceed(self, who: object, *, is_preferred: bool = False) -> bool:
        """Tell whether one more may begin although there are enough: the few requests of those
        who ask little are not what makes the load."""
        of, most = self._of, self.most
        if self.under_way >= _PREFERENCE * most:
            return False
        return is_preferred or of.get(who, 0) < most / (len(of) + 1)

    def _refuse(self) -> None:
        self._was_full = True
        self.refused += 1

    def know(self, connection: object, principal: Who) -> None:
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
        if len(self._since) == LOOKS_UNDER_WAY:
            for who, count in self._since[0].items():
                self._leave(who, count)
        self._since.append(Counter())
        self._looks += 1
        self._due, self._worked = self._now() + LOOK, self._work()
        loop = asyncio.get_running_loop()
        loop.call_later(LOOK, self._look)
        if not self._is_timing:
            self._is_timing = True
            loop.call_soon(self._turn, loop, TURNS, self._now(), self._work())

    def _turn(
        self, loop: asyncio.AbstractEventLoop, left: int, began: float, worked: float
    ) -> None:
        """Time some turns of the loop: nothing in them waits but for what others have it do."""
        if left > 1:
            loop.call_soon(self._turn, loop, left - 1, began, worked)
            return
        self._is_timing = False
        # What others had of the processor is not our load.
        self._took = min(self._now() - began, self._work() - worked)

    def _look(self) -> None:
        """See how late it is, and how long it takes."""
        now = self._now()
        took, self._took = self._took, None
        if self.is_overloaded:
            self._adapt(now, took)
        else:
            late = now - self._due
            late = max(min(late, self._work() - self._worked - LOOK), late * _STILL)
            self._look_for_overload(now, late, took)
        if self.is_overloaded or self._begun or self.under_way:
            self._begun = 0
            self._was_full = False
            self.at_once = self.refused + _AT_ONCE * self.most
            self._look_again()
        else:
            # Nobody came, and nobody is left: what was slow is over.
            self._is_watching = False
            self._slow_for = 0.0

    def _look_for_overload(self, now: float, late: float, took: float | None) -> None:
        if late > LATE:
            self._late_looks += 1
            self._crowd += self._begun
        else:
            self._late_looks = self._crowd = 0
        # Where only few begin, it is not they who make it late, or slow.
        is_late = self._late_looks >= _LATE_LOOKS and self._crowd >= LEAST * self._late_looks
        self._came += self._begun
        if took is not None:
            is_slow = took > SLOW and self._came >= LEAST
            # Slow once is not slow for long, however slow.
            self._slow_for = self._slow_for + min(took, SLOW_FOR / 2) if is_slow else 0.0
            self._came = 0
        if is_late or self._slow_for >= SLOW_FOR or self._was_full:
            self.is_overloaded = True
            self._refused_at = now
            logger.warning(
                "overload: the loop is %.0f ms late, %d turns of it take %.0f ms; some are told to "
                "come back",
                late * 1000,
                TURNS,
                (took or 0.0) * 1000,
            )
            fits = min(self._begun, MOST) * LOOK / (LOOK + max(0.0, late))
            self.most = max(float(LEAST), fits)

    def _adapt(self, now: float, took: float | None) -> None:
        if took is not None and took > LONG:
            self.most = max(float(LEAST), self.most * max(0.8, LONG / took))
        elif took is not None and took < SHORT and self._was_full:
            self.most = min(float(MOST), self.most * 1.1 + 1)
        if self._was_full:
            self._refused_at = now
        elif now - self._refused_at > OVER_AFTER:
            self.is_overloaded = False
            logger.info("the overload is over")
            self._late_looks = self._crowd = 0
            self._slow_for = 0.0


def _place(connection: object) -> object:
    """Return whom a connection counts for while nobody knows who speaks there: its address, or
    many connections would be many sharers."""
    match connection:
        case (str() as host, int()):
            return network(host)
        case _:
            return connection
