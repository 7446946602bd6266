"""What a caller may make a server do in vain.

Frames that ask for work and bring none - pings, settings, resets - are paid from a purse that fills
slowly, and faster while rpcs are answered. So is each stream that is opened, however it ends: what
it was opened for brings that back once its answer begins. A caller whose purse is empty is sent
away.
"""

from collections.abc import Callable

from dragoman.http.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault

# What is in it at most, what a second brings, and what a frame of ours does.
FULL = 1_000.0
_PER_SECOND = 100.0
PER_WRITE = 2.0
# What a stream costs, and what the beginning of its answer brings. One that is refused by its
# headers, breaks a rule or is given up has cost more than a frame, and brings nothing.
OPENED, ANSWERED = 5.0, 13.0
# What headers cost that are refused for their size, and had to be read.
TOO_LARGE = 20.0


class Purse:
    """The purse of one connection."""

    __slots__ = ("_amount", "_at", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._amount = FULL
        self._at = now()

    def earn(self, amount: float) -> None:
        """Something was done that its caller asked for."""
        self._amount = min(FULL, self._amount + amount)

    def pay(self, amount: float) -> None:
        """Something is asked that brings nothing; raises `ConnectionFault`."""
        self._amount -= amount
        if self._amount < 0:
            now = self._now()
            self._amount = min(FULL, self._amount + (now - self._at) * _PER_SECOND)
            self._at = now
            if self._amount < 0:
                raise ConnectionFault(ENHANCE_YOUR_CALM)
