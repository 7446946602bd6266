"""Buckets of which all replicas take, with the same methods as those of one process.

A caller that asks seldom is let in on credit, without the store. A caller that asks more draws
portions ahead of its requests; only one that has used up its portion waits for a round trip. While
the store does not answer, each replica gives an equal share.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b
from typing import cast

from dragoman.config.formats import Rate
from dragoman.http.rates import MAX_KEYS, Bucketing, BucketLevel, Buckets
from dragoman.http.sharing.drawing import Drawer, Portion
from dragoman.model.identity import Principal

# The part of a bucket that all replicas together give on credit.
CREDIT = 0.05
# A further portion is drawn ahead while a bucket has so many times what all replicas have of it.
_AMPLE = 32
# Seconds after which what is not used goes back, and after which a caller is forgotten.
IDLE = 1.0
_FORGOTTEN = 60.0


class SharedBuckets(Bucketing):
    """One bucket for each key, shared with the other replicas."""

    def __init__(self, name: str, rate: Rate, drawer: Drawer) -> None:
        """`name` says which limit of which service it is. Another rate is another limit."""
        self.rate = rate
        self._name = f"{name} {rate.count}/{rate.seconds}s"
        self._drawer = drawer
        self._portions: OrderedDict[Hashable, Portion] = OrderedDict()
        # For how many replicas the next two are made.
        self._workers = 0
        self._credit: Buckets | None = None
        self._alone: Buckets | None = None
        self._tidying: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._portions)

    # Taking

    async def prepare(self, key: Hashable, count: int = 1) -> None:
        """Have as many ready to take, if the bucket has them. What follows takes them at once,
        before anything else is awaited."""
        if self._may_owe(key, count):
            return
        portion = self._portion(key)
        while portion.tokens < count:
            if self._drawer.is_away or time.monotonic() < portion.refused_until:
                return
            await asyncio.shield(self._drawer.draw(portion, count))
        self._draw_ahead(portion, count)

    def take(self, key: Hashable, now: float, count: int = 1) -> float:
        """Take so many, or none; return 0, or the seconds until there are as many to take."""
        if count == 1 and self._credit is not None and not self._credit.take(key, now):
            portion = self._portion(key)
            portion.owed += 1
        else:
            portion = self._portion(key)
            if portion.tokens < count:
                if self._drawer.is_away:
                    return self._take_alone(portion, key, now, count)
                if not self._may_take_early(portion, now, count):
                    return max(portion.refused_until - now, portion.step)
                portion.owed += count - portion.tokens
                portion.tokens = count
                self._drawer.pay(portion)
            portion.tokens -= count
        portion.taken += count
        portion.used_at = now
        return 0.0

    def count(self, key: Hashable, now: float) -> None:
        """Count something that has happened already."""
        portion = self._portion(key)
        portion.taken += 1
        portion.used_at = now
        if portion.tokens:
            portion.tokens -= 1
        else:
            # The one that is drawn is the one that happened: it is not there to be taken.
            portion.owed += 1
            self._drawer.draw(portion, 1)

    def give_back(self, key: Hashable, count: int = 1) -> None:
        """Put back what was taken for nothing."""
        self._portion(key).tokens += count

    def _may_owe(self, key: Hashable, count: int) -> bool:
        if self._workers != self._drawer.workers:
            self._workers = self._drawer.workers
            most = int(self.rate.count * CREDIT / self._workers)
            self._credit = Buckets(Rate(most, self.rate.seconds)) if most else None
            self._alone = None
        return (
            count == 1 and self._credit is not None and not self._credit.wait(key, time.monotonic())
        )

    def _may_take_early(self, portion: Portion, now: float, count: int) -> bool:
        """Tell whether the bucket has as many, by what we last heard: they are drawn afterwards.
        So something that takes several, or some time after `prepare`, is not refused."""
        there = portion.left_at(now) + portion.tokens - portion.owed
        return portion.is_known and now >= portion.refused_until and there >= count

    def _draw_ahead(self, portion: Portion, count: int) -> None:
        """Draw the next portion before this one is used up, where others lose nothing by it."""
        ahead = portion.left / (_AMPLE * max(1, self._workers))
        if ahead >= 1 and portion.drawing is None and portion.tokens - count < ahead:
            self._drawer.draw(portion, 1)

    def _take_alone(self, portion: Portion, key: Hashable, now: float, count: int) -> float:
        """Take from our equal share of what we last knew to be left."""
        replicas = max(1, self._workers)
        if self._alone is None:
            self._alone = Buckets(Rate(max(1, self.rate.count // replicas), self.rate.seconds))
        if portion.is_known:
            portion.is_known = False
            gone = int((self.rate.count - max(0.0, portion.left_at(now))) / replicas)
            if gone:
                self._alone.take(key, now, min(gone, self._alone.rate.count))
        wait = self._alone.take(key, now, count)
        if not wait:
            portion.taken += count
            portion.owed += count
            self._drawer.pay(portion)
        return wait

    # Looking

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until there may be one to take, and take none."""
        portion = self._portions.get(key)
        if portion is None or portion.tokens:
            return 0.0
        if self._credit is not None and not self._credit.wait(key, now):
            return 0.0
        if self._drawer.is_away and self._alone is not None:
            return self._alone.wait(key, now)
        return max(0.0, portion.refused_until - now)

    def mark(self, key: Hashable) -> float:
        """Return a number that changes as soon as one is taken."""
        portion = self._portions.get(key)
        return 0.0 if portion is None else float(portion.taken)

    def left(self, key: Hashable, now: float) -> BucketLevel:
        """Return how many there are to take, as far as we know, and in how many seconds the bucket
        is full."""
        portion = self._portions.get(key)
        if portion is None:
            return BucketLevel(self.rate.count, 0.0)
        there = portion.left_at(now) + portion.tokens - portion.owed
        there = min(max(there, 0.0), float(self.rate.count))
        return BucketLevel(int(there + 1e-6), (self.rate.count - there) * portion.step)

    # Keeping

    def _portion(self, key: Hashable) -> Portion:
        found = self._portions.get(key)
        if found is None:
            if len(self._portions) >= MAX_KEYS:
                self._drawer.settle(self._portions.popitem(last=False)[1])
            found = Portion(self._name, digest(key), self.rate, time.monotonic())
            self._portions[key] = found
            if self._tidying is None:
                loop = asyncio.get_running_loop()
                self._tidying = loop.call_later(IDLE, self._tidy)
        return found

    def _tidy(self) -> None:
        """Give back what lies unused, and forget callers that are gone."""
        now = time.monotonic()
        for key, portion in list(self._portions.items()):
            if portion.drawing is not None or now - portion.used_at < IDLE:
                continue
            if portion.tokens:
                self._drawer.settle(portion)
            elif now - max(portion.used_at, portion.refused_until) > _FORGOTTEN:
                # The little that it may owe is forgotten too.
                del self._portions[key]
        self._tidying = None
        if self._portions:
            self._tidying = asyncio.get_running_loop().call_later(IDLE, self._tidy)

    def close(self) -> None:
        """Give everything back."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        for portion in self._portions.values():
            if portion.tokens and not self._drawer.is_away:
                self._drawer.settle(portion)


def digest(key: Hashable) -> bytes:
    """Return what a key is called in the store: the same in all replicas, and no name."""
    return blake2b(_text(key).encode(errors="surrogatepass"), digest_size=16).digest()


def _text(key: Hashable) -> str:
    if isinstance(key, Principal):
        return f"principal {key.tenant!r} {key.owner!r}"
    if isinstance(key, tuple):
        return " for ".join(map(_text, cast("tuple[Hashable, ...]", key)))
    return repr(key)
