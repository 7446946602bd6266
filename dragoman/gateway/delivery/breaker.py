"""Stops calls to an agent that keeps failing, and finds out when it works again.

A breaker is closed while an agent works, open while it is not called at all, and half-open while
one call tries it. It has no task or timer of its own: it reads the clock when it is used.
`circuits` decides which calls a breaker counts.

    wait = breaker.admit()
    if wait:
        raise AgentOffline(retryAfter=math.ceil(wait))
    era = breaker.era
    try: ...                                    # the call
    except Unreachable: breaker.failed(era, is_connection=True)
    except A2AError: breaker.failed(era)        # 5xx, time-outs, unreadable answers
    except CancelledError: breaker.abandoned(era)    # no outcome
    else: breaker.succeeded(era)                # also a refusal such as 4xx: it answers
"""

import time
from collections.abc import Callable
from typing import Literal

import msgspec

from dragoman.gateway.delivery.retry_budget import Window

# It opens at this share of failures, among at least so many outcomes in the window.
SHARE = 0.5
LEAST = 20
# An agent that is called once a minute never has that many outcomes, and each caller would wait
# for a connection that is not accepted. So many failed connections in a row without one success are
# enough: a failed connection says nothing about the request, only about the agent.
CONNECTIONS = 5
# Seconds it stays open at first; each time it opens again soon after, twice as long.
FIRST = 5.0
LONGEST = 60.0
# Seconds of an agent's `Retry-After` that are honoured, at most.
LONGEST_RETRY_AFTER = 600.0
# Seconds closed after which earlier openings are forgotten. An agent that flaps never gets there.
FORGIVEN = 60.0
# Seconds after which a trial call without an outcome no longer blocks the next one.
PROBE_FOR = 60.0
# Seconds that other callers are told to wait while one call tries.
_WHILE_TRYING = 1.0
# Seconds by which two processes may differ about the same opening.
_SAME = 0.5

State = Literal["closed", "open", "half-open"]


class BreakerState(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker, as operators see it."""

    state: State
    # Outcomes in the window, and how many of them were failures.
    outcomes: int
    failures: int
    # How often it opened since it was last reset, and seconds until a trial call.
    opened: int
    retry_in: float


class Breaker:
    """The breaker of one agent."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        *,
        changed: Callable[["Breaker"], None] | None = None,
    ) -> None:
        """`changed` hears of every time that it opens or closes by what was noted here."""
        self._now = now
        self._changed = changed
        self._outcomes = Window(now)
        self._failures = Window(now)
        # Failed connections since the last success.
        self._lost = 0
        self._opened = 0
        self._closed_at = now()
        # When an open circuit may be tried; 0: it is closed.
        self._try_at = 0.0
        # Until when a trial call blocks the next one; 0: there is none.
        self._trying_until = 0.0
        # Rises with each change. An outcome of a call from an earlier era says nothing about now.
        self.era = 0

    @property
    def state(self) -> State:
        """Whether calls go through; half-open: a trial call is due."""
        if not self._try_at:
            return "closed"
        return "open" if self._now() < self._try_at else "half-open"

    @property
    def retry_in(self) -> float:
        """The seconds until a call may try the agent; 0: at once."""
        return max(0.0, self._try_at - self._now()) if self._try_at else 0.0

    def admit(self) -> float:
        """Return 0 if a call may go to the agent, else for how many seconds it may not."""
        if not self._try_at:
            return 0.0
        now = self._now()
        if now < self._try_at:
            return max(_WHILE_TRYING, self._try_at - now)
        if now < self._trying_until:
            return _WHILE_TRYING
        self._trying_until = now + PROBE_FOR
        self.era += 1
        return 0.0

    def succeeded(self, era: int | None = None) -> None:
        """Note that the agent answered, whatever it said."""
        if self._is_past(era):
            return
        if self._try_at:
            self._close()
        self._lost = 0
        self._outcomes.add()

    def failed(
        self, era: int | None = None, *, is_connection: bool = False, wait: float = 0.0
    ) -> None:
        """Note that the agent did not answer, or not as a working agent. `wait` are the seconds of
        its `Retry-After`."""
        if self._is_past(era):
            return
        if self._try_at:
            self._open(wait)
            return
        self._outcomes.add()
        self._failures.add()
        if is_connection:
            self._lost += 1
        outcomes = self._outcomes.total()
        if outcomes >= LEAST:
            is_enough = self._failures.total() >= SHARE * outcomes
        else:
            is_enough = self._lost >= CONNECTIONS
        if is_enough:
            self._open(wait)

    def abandoned(self, era: int | None = None) -> None:
        """Note that a call ended without an outcome: its caller went away."""
        if not self._is_past(era):
            self._trying_until = 0.0

    @property
    def opened(self) -> int:
        """How often it opened in a row; 0: it is closed."""
        return self._opened if self._try_at else 0

    def adopt(self, open_for: float, opened: int) -> None:
        """Take over what another process found: that it opened, for so many seconds from now, or
        that it closed."""
        if not opened:
            if self._try_at:
                self._shut()
        elif open_for > 0 and self._now() + open_for > self._try_at + _SAME:
            self._try_at = self._now() + open_for
            self._opened = max(self._opened, opened)
            self._trying_until = 0.0
            self.era += 1

    def snapshot(self) -> BreakerState:
        """Return its present state."""
        return BreakerState(
            state=self.state,
            outcomes=self._outcomes.total(),
            failures=self._failures.total(),
            opened=self._opened,
            retry_in=self.retry_in,
        )

    def _is_past(self, era: int | None) -> bool:
        """Say whether an outcome no longer counts: its call was made before the circuit changed, or
        no call was admitted while the circuit is open."""
        if era is not None and era != self.era:
            return True
        return bool(self._try_at) and self._now() >= self._trying_until

    def _open(self, wait: float) -> None:
        now = self._now()
        if not self._try_at and now - self._closed_at >= FORGIVEN:
            self._opened = 0
        usual = min(LONGEST, FIRST * 2 ** min(self._opened, 10))
        # The seconds that a caller is told are those for which calls are stopped.
        self._try_at = now + max(usual, min(wait, LONGEST_RETRY_AFTER))
        self._opened += 1
        self._trying_until = 0.0
        self.era += 1
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self)

    def _close(self) -> None:
        self._shut()
        self._tell()

    def _shut(self) -> None:
        self._try_at = self._trying_until = 0.0
        self._closed_at = self._now()
        # Counts from before it opened say nothing about the agent now.
        self._outcomes.clear()
        self._failures.clear()
        self.era += 1
