"""Whether a call may go to an address of an agent, and which breakers its outcome counts for.

All callers of an address share one breaker. It counts refused connections only: those say nothing
about the message. Every other failure (a status of 500, an unreadable answer, silence, a connection
that breaks) may be caused by the message. It counts for a breaker of that caller alone, so that a
caller who sends poison does not take the agent from the others.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from dragoman.client.second_tries import wished_wait
from dragoman.errors import A2AError
from dragoman.gateway.delivery import retries
from dragoman.gateway.delivery.breaker import Breaker, BreakerState
from dragoman.model.identity import Principal

# Callers of one agent whose calls failed recently; beyond that the oldest is dropped.
MOST_CALLERS = 1_000


class Circuits:
    """The breakers of one agent."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        changed: Callable[[str, Principal | None, Breaker], None] | None = None,
    ) -> None:
        """`changed` hears of every breaker that opens or closes here: its address, and whose it is
        (None: all callers share it)."""
        self._now = now
        self._changed = changed
        self._addresses: dict[str, Breaker] = {}
        # Only of callers whose calls failed.
        self._callers: OrderedDict[tuple[str, Principal], Breaker] = OrderedDict()

    def address(self, url: str) -> Breaker:
        """Return the breaker that all callers of an address share."""
        found = self._addresses.get(url)
        if found is None:
            found = self._addresses[url] = self._made(url, None)
        return found

    def _made(self, url: str, caller: Principal | None) -> Breaker:
        changed = self._changed
        if changed is None:
            return Breaker(self._now)
        return Breaker(self._now, changed=lambda breaker: changed(url, caller, breaker))

    def adopt(self, url: str, caller: Principal | None, open_for: float, opened: int) -> None:
        """Take over what another process found of an address."""
        if caller is None:
            self.address(url).adopt(open_for, opened)
        elif opened or self.caller(url, caller) is not None:
            self.failing(url, caller).adopt(open_for, opened)
            self.drop_recovered(url, caller)

    def caller(self, url: str, caller: Principal) -> Breaker | None:
        """Return the breaker of one caller at an address, if calls of that caller failed."""
        return self._callers.get((url, caller)) if self._callers else None

    def is_open(self, url: str, caller: Principal) -> bool:
        """Say whether a caller's calls do not go to an address at present."""
        return self.retry_in(url, caller) > 0

    def retry_in(self, url: str, caller: Principal) -> float:
        """Return the seconds until a caller may try an address; 0: at once."""
        breaker = self._addresses.get(url)
        wait = 0.0 if breaker is None else breaker.retry_in
        if not self._callers:
            return wait
        own = self._callers.get((url, caller))
        return wait if own is None else max(wait, own.retry_in)

    def tripped(self) -> list[tuple[str, Principal | None, BreakerState]]:
        """Return the circuits that are not closed: address, whose it is (None: all callers share
        it) and state."""
        own = [(url, caller, one) for (url, caller), one in self._callers.items()]
        every = [*((url, None, one) for url, one in self._addresses.items()), *own]
        return [(url, who, one.snapshot()) for url, who, one in every if one.state != "closed"]

    def call(self, url: str, caller: Principal) -> "CircuitCall":
        """Return a call to an address, which is not admitted yet."""
        return CircuitCall(self, url, caller)

    def failing(self, url: str, caller: Principal) -> Breaker:
        """Return the breaker of a caller at an address; it is made if there is none."""
        found = self._callers.get((url, caller))
        if found is None:
            found = self._callers[url, caller] = self._made(url, caller)
            if len(self._callers) > MOST_CALLERS:
                self._callers.popitem(last=False)
        return found

    def drop_recovered(self, url: str, caller: Principal) -> None:
        """Drop the breaker of a caller whose calls no longer fail."""
        own = self.caller(url, caller)
        if own is not None and own.state == "closed" and not own.snapshot().failures:
            del self._callers[url, caller]


class CircuitCall:
    """One call to an address: first it is admitted, then exactly one outcome is noted. A success
    may be noted early, and counts whatever comes after it."""

    __slots__ = ("_address", "_caller", "_circuits", "_era", "_own_era", "_url")

    def __init__(self, circuits: Circuits, url: str, caller: Principal) -> None:
        self._circuits = circuits
        self._url, self._caller = url, caller
        self._address = circuits.address(url)
        self._era = self._own_era = 0

    def retry_in(self) -> float:
        """Return the seconds for which the circuit is open; 0: the call may be admitted."""
        return self._circuits.retry_in(self._url, self._caller)

    def admit(self) -> float:
        """Return 0 if the call may go, else for how many seconds it may not."""
        if wait := self._address.admit():
            return wait
        self._era = self._address.era
        own = self._circuits.caller(self._url, self._caller)
        if own is None:
            return 0.0
        if wait := own.admit():
            # This call does not go out: another one may try the address.
            self._address.abandoned(self._era)
            return wait
        self._own_era = own.era
        return 0.0

    def succeeded(self) -> None:
        """Note that the agent answered, whatever it said."""
        self._address.succeeded(self._era)
        own = self._circuits.caller(self._url, self._caller)
        if own is not None:
            own.succeeded(self._own_era)
            self._circuits.drop_recovered(self._url, self._caller)

    def failed(self, error: A2AError | TimeoutError) -> None:
        """Note that the agent did not answer, or not as a working agent."""
        if retries.is_absence(error):
            self._address.failed(self._era, is_connection=True)
            self._abandon_own()
            return
        if retries.is_answer(error):
            self._address.succeeded(self._era)
        else:
            self._address.abandoned(self._era)
        own = self._circuits.failing(self._url, self._caller)
        wait = 0.0 if isinstance(error, TimeoutError) else wished_wait(error)
        own.failed(self._own_era, wait=wait)

    def abandoned(self) -> None:
        """Note that the call ended without an outcome."""
        self._address.abandoned(self._era)
        self._abandon_own()

    def _abandon_own(self) -> None:
        own = self._circuits.caller(self._url, self._caller)
        if own is not None:
            own.abandoned(self._own_era)
