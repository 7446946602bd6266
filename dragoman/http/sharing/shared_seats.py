"""How many of something a caller may have at once, over all replicas: open streams, tasks that run.

Seats are drawn from the store in portions as the tokens of rates are, and go back when they are
not used. A replica that dies holds none any more.
"""

import asyncio
import time
from collections.abc import Hashable

from dragoman.config.formats import Rate
from dragoman.http.sharing.drawing import Drawer, Portion
from dragoman.http.sharing.shared_buckets import CREDIT, IDLE, digest


class _Seats:
    """The seats of one caller here."""

    __slots__ = ("on_credit", "portion")

    def __init__(self, portion: Portion) -> None:
        # Drawn and free ones are the tokens of the portion.
        self.portion = portion
        # In use without the knowledge of the store.
        self.on_credit = 0


class SharedSeats:
    """One count for each key, shared with the other replicas."""

    def __init__(self, name: str, most: int, drawer: Drawer) -> None:
        self.most = most
        # Nothing flows in by itself.
        self._rate = Rate(most, 0)
        self._name = name
        self._drawer = drawer
        self._seats: dict[Hashable, _Seats] = {}
        # Under which number of ours the seats were drawn.
        self._worker = 0
        self._tidying: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._seats)

    async def prepare(self, key: Hashable) -> None:
        """Have a seat ready, if there is one."""
        if self._may_owe(key):
            return
        portion = self._of(key).portion
        while not portion.tokens:
            if self._drawer.is_away or time.monotonic() < portion.refused_until:
                return
            await asyncio.shield(self._drawer.draw(portion, 1))

    def is_full(self, key: Hashable) -> bool:
        """Tell whether there is no seat, by what we last heard."""
        if self._may_owe(key):
            return False
        seats = self._of(key)
        if seats.portion.tokens:
            return False
        if self._drawer.is_away:
            share = max(1, self.most // max(1, self._drawer.workers))
            return seats.portion.used + seats.on_credit >= share
        return not (seats.portion.is_known and seats.portion.left - seats.portion.owed >= 1)

    def enter(self, key: Hashable) -> None:
        """Take a seat, whether or not there is one."""
        seats = self._of(key)
        portion = seats.portion
        portion.used_at = time.monotonic()
        if portion.tokens:
            portion.tokens -= 1
        elif self._may_owe(key):
            seats.on_credit += 1
            return
        else:
            portion.owed += 1
            self._drawer.pay(portion)
        portion.used += 1

    def leave(self, key: Hashable) -> None:
        """Give a seat back."""
        seats = self._of(key)
        portion = seats.portion
        portion.used_at = time.monotonic()
        if portion.used:
            portion.used -= 1
            portion.tokens += 1
            portion.refused_until = 0.0
        elif seats.on_credit:
            seats.on_credit -= 1

    def _may_owe(self, key: Hashable) -> bool:
        """Tell whether a seat may be taken without the store."""
        replicas = self._drawer.workers
        if not replicas:
            return False
        seats = self._seats.get(key)
        return (0 if seats is None else seats.on_credit) < int(self.most * CREDIT / replicas)

    def _of(self, key: Hashable) -> _Seats:
        found = self._seats.get(key)
        if found is None:
            portion = Portion(self._name, digest(key), self._rate, time.monotonic())
            found = self._seats[key] = _Seats(portion)
            if self._tidying is None:
                self._worker = self._worker or self._drawer.worker
                self._tidying = asyncio.get_running_loop().call_later(IDLE, self._tidy)
        return found

    def _tidy(self) -> None:
        """Give back what lies unused; take again what we have, if others took us for dead."""
        now = time.monotonic()
        has_lapsed = self._worker != self._drawer.worker
        self._worker = self._drawer.worker
        for key, seats in list(self._seats.items()):
            portion = seats.portion
            if has_lapsed:
                portion.owed, portion.tokens = portion.used, 0
                if portion.owed:
                    self._drawer.pay(portion)
            if portion.drawing is not None or now - portion.used_at < IDLE:
                continue
            if portion.tokens:
                self._drawer.settle(portion)
            elif not (portion.used or seats.on_credit or portion.owed):
                del self._seats[key]
        self._tidying = None
        if self._seats:
            self._tidying = asyncio.get_running_loop().call_later(IDLE, self._tidy)

    def close(self) -> None:
        """Look after nothing any more: what a worker that leaves has taken counts no more."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
