"""How often something may happen: `100/60s`, and who has used how much of it.

A rate is a bucket that is full at first and fills evenly: so many at once, and that many in each
window from then on. What is kept of a caller is one number, when its bucket will be full again.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from dragoman.errors import ConfigError

# Callers whose use is remembered, for each rate: some megabytes at most.
MAX_KEYS = 65_536
# The longest kept of them that are looked at when one must make way.
_LOOK_AT = 8
_TEXT = re.compile(r"([0-9]{1,9})/([0-9]{0,6})(s|m|h|d)\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Rate(msgspec.Struct, frozen=True):
    """So many in a window of seconds."""

    count: int
    seconds: int


def parse(setting: str, text: str) -> Rate | None:
    """Return the rate of a setting; None: there is no limit. Raises `ConfigError`."""
    text = text.strip().lower()
    if not text or text == "off":
        return None
    found = _TEXT.match(text)
    if found is None or not int(found[1]) or found[2].strip("0") == "" != found[2]:
        raise ConfigError(f"{setting}: {text} is no rate; write 100/60s, 5/s, 1000/d or off")
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]])


class Buckets:
    """One bucket for each key, in bounded memory."""

    def __init__(self, rate: Rate, most: int = MAX_KEYS) -> None:
        self.rate = rate
        self._most = most
        # Seconds until what one takes is there again; and how much may be missing from a bucket
        # that still gives one (the sum of many such steps is not exact).
        self._step = rate.seconds / rate.count
        self._slack = rate.seconds - self._step + rate.seconds * 1e-9
        # When each bucket is full again. Who is not here has a full one.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float, count: int = 1) -> float:
        """Take so many, or none; return 0, or the seconds until there are as many to take. More
        than the bucket holds are never there."""
        full_at = self._full_at.get(key)
        if full_at is None:
            full_at = self._make_room(now) if len(self._full_at) >= self._most else now
        if full_at < now:
            full_at = now
        more = self._step * (count - 1)
        wait = full_at - now - self._slack + more
        if wait > 0:
            # Kept also if nothing was taken: it may stand in for one that made way.
            self._full_at[key] = full_at
            return wait
        self._full_at[key] = full_at + self._step + more
        return 0.0

    def give_back(self, key: Hashable, count: int = 1) -> None:
        """Put back what was taken for nothing."""
        if key in self._full_at:
            self._full_at[key] -= self._step * count

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until there is one to take, and take none."""
        return max(0.0, self._full_at.get(key, now) - now - self._slack)

    def mark(self, key: Hashable) -> float:
        """Return what is another number as soon as one was taken."""
        return self._full_at.get(key, 0.0)

    def left(self, key: Hashable, now: float) -> tuple[int, float]:
        """Return how many there are to take, and in how many seconds the bucket is full."""
        missing = max(0.0, self._full_at.get(key, now) - now)
        return int((self.rate.seconds - missing) / self._step + 1e-6), missing

    def _make_room(self, now: float) -> float:
        """Forget who has used least among the longest kept; return when that bucket is full.

        Whoever takes the place goes on from there: endless new names buy nobody a full bucket.
        """
        least, full_at = None, math.inf
        for _ in range(min(_LOOK_AT, len(self._full_at))):
            key = next(iter(self._full_at))
            self._full_at.move_to_end(key)
            if self._full_at[key] < full_at:
                least, full_at = key, self._full_at[key]
            if full_at <= now:
                break
        del self._full_at[least]
        return full_at
