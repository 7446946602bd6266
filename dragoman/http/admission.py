"""Overload: accepted requests stay fast, the others are refused before their body is read.

A server runs out of the time of its event loop. If timers are late and stay so, or a few turns of
the loop take long, there is more work than time. From then on only as many requests are under way
at once as can be answered soon, and another one begins when one of them is answered. Requests that
wait for a task or a reader take no time: they make no turn longer, and do not count as under way
for long. In overload callers with the most open requests are refused first.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from dragoman.http.limits import network
from dragoman.model.identity import Who

logger = logging.getLogger("dragoman")

# Seconds from one sample to the next.
SAMPLE = 0.040
# Seconds a sample may be late, and how many later ones in a row are an overload: single slow calls
# make a few late.
LATE = 0.060
_LATE_SAMPLES = 2
# Turns of the loop that a short task takes, from its message to its answer; seconds they may take,
# and for how many seconds they take longer in an overload. Timers alone do not tell: each turn is
# short if the work is spread over many.
TURNS = 6
SLOW = 0.100
SLOW_FOR = 0.3
# Seconds they take, in overload, if too few requests are under way, and if too many.
SHORT = 0.010
LONG = 0.014
# Samples for which a request counts as under way: one that takes longer waits for something else.
SAMPLES_UNDER_WAY = 5
# Seconds without a refusal after which the overload is over.
OVER_AFTER = 1.0
# Seconds after which, in overload, a request that has not begun is too old to begin.
_MAX_AGE = 0.1
# The part of a delay that counts also if our thread did not work: an agent may block the loop.
_STILL = 1 / 8
# Requests that may begin from one sample to the next if none of them is answered, and those that
# may always be under way: in all, and of a caller beside one that makes the load.
MOST = 1024
LEAST = 16
# There may be so many times as many preferred requests.
_PREFERENCE = 4
# For each that may be under way, how many may be refused at once from one sample to the next; the
# others are refused after a delay. As many as connections ask again in any case: a delay lets each
# of them ask once in about a sample, so that it would prevent nothing, and costs more than a
# refusal.
AT_ONCE = 8
# Connections whose principal is remembered.
_MAX_KNOWN = 16_384

Clock = Callable[[], float]
# Among which requests one counts, by caller, and for whom; None: that was not looked up.
Ticket = tuple[dict[object, int], object]


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
        # For figures.
        self._admitted = 0
        self.refused = 0

        self._is_watching = False
        # When the next sample is due, and what our thread had worked before.
        self._due = self._worked = 0.0
        # Requests that began since the last sample, and the count of refusals up to which they are
        # written at once: few of them cost little.
        self._begun = 0
        self.at_once = 0.0
        # Connections whose last request was refused.
        self.refused_connections = 0
        # The requests under way by caller: in all, as far as callers were looked up; those since
        # the last sample, and since each for which they count, the oldest first.
        self._of: dict[object, int] = {}
        self._latest: dict[object, int] = {}
        self._since = deque([self._latest], SAMPLES_UNDER_WAY)
        # Whether turns are being timed, and what the last ones took.
        self._is_timing = False
        self._took: float | None = None
        # Samples that were late so far, and requests that began before them; for how long turns
        # have been slow, and requests that began since the last ones were timed.
        self._late_samples = self._began_late = 0
        self._slow_for = 0.0
        self._began_slow = 0
        self._was_full = False
        self._refused_at = 0.0
        self._callers: dict[object, Who] = {}

    # Requests

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> Ticket | None:
        """Let a request begin, which came now or at `came_at`; None: it may not. Preferred are
        requests that only read, and those that continue what was accepted before."""
        if not self._is_watching:
            self._watch()
        who = None
        if self.is_overloaded:
            if came_at is not None and self._now() - came_at > _MAX_AGE:
                return self.turn_away(1)
            who = self.who(connection)
            if self.under_way >= self.most and not self._may_exceed(who, is_preferred=is_preferred):
                return self.turn_away(1)
        elif self._begun >= MOST and self.under_way >= MOST:
            # Those that were answered meanwhile are no crowd: reads are many in a sample.
            return self.turn_away(1)
        self._begun += 1
        self.under_way += 1
        latest = self._latest
        latest[who] = latest.get(who, 0) + 1
        if who is not None:
            self._of[who] = self._of.get(who, 0) + 1
        return latest, who

    @property
    def admitted(self) -> int:
        """How many requests could begin so far."""
        return self._admitted + self._begun

    def end(self, ticket: Ticket) -> None:
        """A request has its whole answer, or its caller is gone."""
        counted, who = ticket
        # None: it counts as under way no more.
        if count := counted.get(who):
            counted[who] = count - 1
            self.under_way -= 1
            if who is not None:
                self._forget_of(who, 1)

    def _forget_of(self, who: object, count: int) -> None:
        left = self._of[who] - count
        if left:
            self._of[who] = left
        else:
            del self._of[who]

    def who(self, connection: object) -> object:
        """Return what the requests of a connection count for: its caller once it is identified,
        until then its address."""
        return self._callers.get(connection) or _place(connection)

    def turns_away(self, who: object) -> bool:
        """Tell whether there is no room at present for a request that is not preferred, and count
        it as refused: a cheaper `enter` for most requests in overload."""
        if not self.is_full(who):
            return False
        self.turn_away(1)
        return True

    def is_full(self, who: object) -> bool:
        """Tell whether there is no room at present for a request that is not preferred."""
        return self.under_way >= self.most and not self._may_exceed(who)

    def turn_away(self, count: int) -> None:
        """Count requests for which there was no room as refused."""
        self._was_full = True
        self.refused += count

    def _may_exceed(self, who: object, *, is_preferred: bool = False) -> bool:
        """Tell whether one more may begin beyond the limit: the few requests of callers with few
        under way do not make the load."""
        of, most = self._of, self.most
        if self.under_way >= _PREFERENCE * most:
            return False
        return is_preferred or of.get(who, 0) < max(LEAST, most / (len(of) + 1))

    def identify(self, connection: object, principal: Who) -> None:
        """Remember the caller of a connection: from then on its requests count for that caller
        before they are read."""
        if self._callers.get(connection) != principal:
            if len(self._callers) >= _MAX_KNOWN:
                self._callers.clear()
            self._callers[connection] = principal

    def forget(self, connection: object) -> None:
        """A connection is gone."""
        self._callers.pop(connection, None)

    # Samples

    def _watch(self) -> None:
        """Sample the loop from here on, for as long as requests come."""
        self._is_watching = True
        self._sample_again()

    def _sample_again(self) -> None:
        if len(self._since) == SAMPLES_UNDER_WAY:
            oldest = self._since[0]
            for who, count in oldest.items():
                self.under_way -= count
                if count and who is not None:
                    self._forget_of(who, count)
            oldest.clear()
        self._latest = {}
        self._since.append(self._latest)
        self._due, self._worked = self._now() + SAMPLE, self._work()
        loop = asyncio.get_running_loop()
        loop.call_later(SAMPLE, self._sample)
        if not self._is_timing:
            self._is_timing = True
            loop.call_soon(self._turn, loop, TURNS, self._now(), self._work())

    def _turn(
        self, loop: asyncio.AbstractEventLoop, left: int, began: float, worked: float
    ) -> None:
        """Time some turns of the loop: they take as long as the work of all others."""
        if left > 1:
            loop.call_soon(self._turn, loop, left - 1, began, worked)
            return
        self._is_timing = False
        # Time that other processes had of the processor is not our load.
        self._took = min(self._now() - began, self._work() - worked)

    def _sample(self) -> None:
        """See how late the loop is, and how long its turns take."""
        now = self._now()
        took, self._took = self._took, None
        if self.is_overloaded:
            self._adapt(now, took)
        else:
            late = now - self._due
            late = max(min(late, self._work() - self._worked - SAMPLE), late * _STILL)
            self._detect_overload(now, late, took)
        if self.is_overloaded or self._begun or self.under_way:
            self._admitted += self._begun
            self._begun = 0
            self._was_full = False
            self.at_once = self.refused + max(AT_ONCE * self.most, self.refused_connections)
            self._sample_again()
        else:
            # No request came and none is left: what was slow is over.
            self._is_watching = False
            self._slow_for = 0.0

    def _detect_overload(self, now: float, late: float, took: float | None) -> None:
        if late > LATE:
            self._late_samples += 1
            self._began_late += self._begun
        else:
            self._late_samples = self._began_late = 0
        # Few requests do not make a loop late or slow; something else does.
        is_late = (
            self._late_samples >= _LATE_SAMPLES and self._began_late >= LEAST * self._late_samples
        )
        self._began_slow += self._begun
        if took is not None:
            is_slow = took > SLOW and self._began_slow >= LEAST
            # One slow measurement is not enough, however slow.
            self._slow_for = self._slow_for + min(took, SLOW_FOR / 2) if is_slow else 0.0
            self._began_slow = 0
        if is_late or self._slow_for >= SLOW_FOR or self._was_full:
            self.is_overloaded = True
            self._refused_at = now
            logger.warning(
                "overload: the loop is %.0f ms late, %d turns of it take %.0f ms; refusing some "
                "requests",
                late * 1000,
                TURNS,
                (took or 0.0) * 1000,
            )
            fits = min(self._begun, MOST) * SAMPLE / (SAMPLE + max(0.0, late))
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
            self._late_samples = self._began_late = 0
            self._slow_for = 0.0


def _place(connection: object) -> object:
    """Return what a connection counts for before its caller is identified: its address, so that
    many connections do not get many shares."""
    match connection:
        case (str() as host, int()):
            return network(host)
        case _:
            return connection
