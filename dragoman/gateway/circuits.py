"""Whether a call may go to an address of an agent, and of whom its outcome speaks.

An address has one breaker for everybody: it counts connections that nobody accepted, which say
nothing of the message, only of the agent. Every other failure may be the message's own doing: a
status of 500, nonsense, silence, a connection that breaks over it. Those count for a breaker of
that caller's alone, so that one who sends poison takes the agent from nobody else.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from dragoman.errors import A2AError
from dragoman.gateway import retrying
from dragoman.gateway.breaker import Breaker
from dragoman.model.identity import Principal

# Callers of one agent whose calls failed lately; beyond that the longest known is forgotten.
MOST_CALLERS = 1_000


class Circuits:
    """The breakers of one agent."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._addresses: dict[str, Breaker] = {}
        # Of those whose calls failed; others have none.
        self._callers: OrderedDict[tuple[str, Principal], Breaker] = OrderedDict()

    def address(self, url: str) -> Breaker:
        """Return the breaker that all callers of an address share."""
        found = self._addresses.get(url)
        if found is None:
            found = self._addresses[url] = Breaker(self._now)
        return found

    def caller(self, url: str, who: Principal) -> Breaker | None:
        """Return the breaker of one caller at an address, if calls of theirs failed."""
        return self._callers.get((url, who)) if self._callers else None

    def is_open(self, url: str, who: Principal) -> bool:
        """Say whether a caller's calls do not go to an address at present."""
        own = self.caller(url, who)
        is_away = self.address(url).state == "open"
        return is_away or (own is not None and own.state == "open")

    def retry_in(self, url: str, who: Principal) -> float:
        """Return the seconds until a caller may try an address; 0: at once."""
        found = [self.address(url), self.caller(url, who)]
        return max(one.snapshot().retry_in for one in found if one is not None)

    def call(self, url: str, who: Principal) -> "Passage":
        """Return the way of one call to an address."""
        return Passage(self, url, who)

    def failing(self, url: str, who: Principal) -> Breaker:
        """Return the breaker of a caller at an address, from here on."""
        found = self._callers.get((url, who))
        if found is None:
            found = self._callers[url, who] = Breaker(self._now)
            if len(self._callers) > MOST_CALLERS:
                self._callers.popitem(last=False)
        return found

    def forgive(self, url: str, who: Principal) -> None:
        """Forget the breaker of a caller whose calls do not fail any more."""
        own = self.caller(url, who)
        if own is not None and own.state == "closed" and not own.snapshot().failures:
            del self._callers[url, who]


class Passage:
    """One call to an address: first it is admitted, then exactly one outcome is noted. A success
    may be noted early, and counts whatever comes after it."""

    def __init__(self, circuits: Circuits, url: str, who: Principal) -> None:
        self._circuits = circuits
        self._url, self._who = url, who
        self._address = circuits.address(url)
        self._era = self._callers_era = 0

    def admit(self) -> float:
        """Return 0 if the call may go, else for how many seconds it may not."""
        if wait := self._address.admit():
            return wait
        self._era = self._address.era
        own = self._circuits.caller(self._url, self._who)
        if own is None:
            return 0.0
        if wait := own.admit():
            # The place of a try is for somebody who makes one.
            self._address.left(self._era)
            return wait
        self._callers_era = own.era
        return 0.0

    def succeeded(self) -> None:
        """Note that the agent answered, whatever it said."""
        self._address.succeeded(self._era)
        own = self._circuits.caller(self._url, self._who)
        if own is not None:
            own.succeeded(self._callers_era)
            self._circuits.forgive(self._url, self._who)

    def failed(self, error: A2AError | TimeoutError) -> None:
        """Note that the agent did not answer as one that works."""
        if retrying.is_absence(error):
            self._address.failed(self._era, is_connection=True)
            self._leave_own()
            return
        if retrying.is_answer(error):
            self._address.succeeded(self._era)
        else:
            self._address.left(self._era)
        own = self._circuits.failing(self._url, self._who)
        wait = 0.0 if isinstance(error, TimeoutError) else retrying.wish(error)
        own.failed(self._callers_era, wait=wait)

    def left(self) -> None:
        """Note that the call ended without an outcome."""
        self._address.left(self._era)
        self._leave_own()

    def _leave_own(self) -> None:
        own = self._circuits.caller(self._url, self._who)
        if own is not None:
            own.left(self._callers_era)
