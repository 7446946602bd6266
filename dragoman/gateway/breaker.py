"""Leaves an agent alone that keeps failing, and finds out whether it is back.

A breaker is closed while an agent works, open while it is not called at all, and half-open while
one call tries it. It has no task or timer of its own: whoever asks makes it look at the clock.
Whose calls one counts is decided in `circuits`.

    wait = breaker.admit()
    if wait:
        raise AgentOffline(retryAfter=math.ceil(wait))
    era = breaker.era
    try: ...                                    # the call
    except Unreachable: breaker.failed(era, is_connection=True)
    except A2AError: breaker.failed(era)        # 5xx, timeouts, what cannot be read: the agent's
    except CancelledError: breaker.left(era)    # nothing was learnt
    else: breaker.succeeded(era)                # also a refusal such as 4xx: it answers
"""

import time
from collections.abc import Callable
from typing import Literal

import msgspec

from dragoman.gateway.budget import Window

# It opens at this share of failures, among at least so many outcomes in the window.
SHARE = 0.5
LEAST = 20
# An agent that is asked once a minute never has that many outcomes, and each of its callers would
# wait for a connection that nobody accepts. So many in a row without one success are enough: a
# connection that fails says nothing about the request, only about the agent.
CONNECTIONS = 5
# Seconds it stays open at first; each time it opens again soon after, twice as long.
FIRST = 5.0
LONGEST = 60.0
# Seconds that an agent may ask to be left alone for, at most.
LONGEST_WISH = 600.0
# Seconds closed after which an agent is trusted as before. One that flaps never gets there.
FORGIVEN = 60.0
# Seconds after which a try that was never heard of again gives up its place.
PROBE_FOR = 60.0
# Seconds that others are told to wait while one call tries.
_WHILE_TRYING = 1.0

State = Literal["closed", "open", "half-open"]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker for operators to look at."""

    state: State
    # Outcomes in the window, and how many of them were failures.
    outcomes: int
    failures: int
    # How often it opened since the agent was last trusted, and seconds until a try.
    opened: int
    retry_in: float


class Breaker:
    """The breaker of one agent.

    With `is_probed`, an open circuit is tried by probes alone (`admit(is_probe=True)`) and never
    at a caller's expense, for as long as there are any."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, *, is_probed: bool = False
    ) -> None:
        self._now = now
        self._is_probed = is_probed
        self._outcomes = Window(now)
        self._failures = Window(now)
        # Failed connections since the last success.
        self._lost = 0
        self._opened = 0
        self._closed_at = now()
        # When an open circuit may be tried; 0: it is closed.
        self._try_at = 0.0
        # When a try that is under way loses its place; 0: there is none.
        self._trying_until = 0.0
        # Rises with each change. An outcome of a call from an earlier era says nothing about now.
        self.era = 0

    @property
    def state(self) -> State:
        """Whether calls go through; half-open: it is time for one that tries."""
        if not self._try_at:
            return "closed"
        return "open" if self._now() < self._try_at else "half-open"

    def admit(self, *, is_probe: bool = False) -> float:
        """Return 0 if a call may go to the agent, else for how many seconds it may not."""
        if not self._try_at:
            return 0.0
        now = self._now()
        # Where probes are due but nobody sends any, callers find out for themselves.
        is_left_to_probes = self._is_probed and not is_probe
        try_at = self._try_at + (LONGEST if is_left_to_probes else 0.0)
        if now < try_at:
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
        """Note that the agent did not answer, or not as an agent that works. `wait` are the seconds
        for which it wants to be left alone."""
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

    def left(self, era: int | None = None) -> None:
        """Note that a call ended without an outcome: whoever made it went away."""
        if not self._is_past(era):
            self._trying_until = 0.0

    def snapshot(self) -> Snapshot:
        """Return how it stands."""
        return Snapshot(
            state=self.state,
            outcomes=self._outcomes.total(),
            failures=self._failures.total(),
            opened=self._opened,
            retry_in=max(0.0, self._try_at - self._now()) if self._try_at else 0.0,
        )

    def _is_past(self, era: int | None) -> bool:
        """Say whether an outcome is not of the present: of a call made before the circuit changed,
        or of none at all while nothing goes out."""
        if era is not None and era != self.era:
            return True
        return bool(self._try_at) and self._now() >= self._trying_until

    def _open(self, wait: float) -> None:
        now = self._now()
        if not self._try_at and now - self._closed_at >= FORGIVEN:
            self._opened = 0
        usual = min(LONGEST, FIRST * 2 ** min(self._opened, 10))
        # Whoever is told when to come back is told the truth.
        self._try_at = now + max(usual, min(wait, LONGEST_WISH))
        self._opened += 1
        self._trying_until = 0.0
        self.era += 1

    def _close(self) -> None:
        self._try_at = self._trying_until = 0.0
        self._closed_at = self._now()
        # What was counted before it opened is about another time.
        self._outcomes.clear()
        self._failures.clear()
        self.era += 1
