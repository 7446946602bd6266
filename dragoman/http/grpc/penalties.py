"""How long an address waits whose connections had to be ended.

A caller that is sent away could come back at once with a full purse, and have a server do nothing
else. So each fault is paid from what its address may do wrong; an address that has used it up may
connect, but is not read for a while. Its connections that are open are not touched, for a proxy has
one address for many callers.
"""

from collections.abc import Callable

from dragoman.http.grpc.frames import ENHANCE_YOUR_CALM

# What an address may do wrong at once, and what a second forgives.
_ALLOWED = 10.0
_PER_SECOND = 2.0
# What a fault costs, and a flood.
_FAULT, _FLOOD = 1.0, 5.0
LONGEST = 3.0
# Addresses that are remembered.
_MOST = 1_024


class Penalties:
    """What the addresses of a process have done wrong of late."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # When each will be forgiven all.
        self._until: dict[str, float] = {}

    def add(self, address: str, code: int) -> None:
        """A connection was ended with a code of HTTP/2."""
        now = self._now()
        cost = _FLOOD if code == ENHANCE_YOUR_CALM else _FAULT
        until = max(now, self._until.pop(address, now)) + cost / _PER_SECOND
        # What takes longer to be forgiven would punish those who come later for it.
        self._until[address] = min(until, now + _ALLOWED / _PER_SECOND + LONGEST)
        if len(self._until) > _MOST:
            # The oldest: the others had a fault since.
            del self._until[next(iter(self._until))]

    def wait(self, address: str) -> float:
        """Return for how many seconds a new connection is not read."""
        until = self._until.get(address)
        if until is None:
            return 0.0
        now = self._now()
        if until <= now:
            del self._until[address]
        return min(LONGEST, max(0.0, until - now - _ALLOWED / _PER_SECOND))
