"""Portions of shared buckets, drawn from the store: one round trip at a time, for all callers that
need one at that moment."""

import asyncio
import logging
import time

from dragoman.config.formats import Rate
from dragoman.errors import StoreUnavailable
from dragoman.stores.interface.limits import Draw, Drawn, SharedLimits

logger = logging.getLogger("dragoman")

# Buckets in one round trip.
_MOST_AT_ONCE = 500
# Seconds for which the store is not asked after it did not answer.
AWAY_FOR = 1.0
# The least seconds between two draws from an empty bucket: what flows in meanwhile is drawn at
# once.
PAUSE = 0.05
# The same for seats, which are given back at any time.
SEATS_PAUSE = 0.25


class Portion:
    """What we have of one bucket, and what we last heard of it."""

    __slots__ = (
        "digest",
        "drawing",
        "heard_at",
        "is_known",
        "left",
        "name",
        "need",
        "owed",
        "rate",
        "refused_until",
        "taken",
        "tokens",
        "used",
        "used_at",
        "want",
    )

    def __init__(self, name: str, digest: bytes, rate: Rate, now: float) -> None:
        self.name = name
        self.digest = digest
        self.rate = rate
        self.tokens = 0
        # Seats that were taken here, of those that the store knows of.
        self.used = 0
        # What was used and not yet taken from the bucket; and what was used in all.
        self.owed = 0
        self.taken = 0
        self.used_at = now
        # What was left in the bucket when we last heard of it, if we did.
        self.left = float(rate.count)
        self.heard_at = now
        self.is_known = False
        # Until then there is nothing to draw.
        self.refused_until = 0.0
        # Done when the next draw is; and what those who wait for it need.
        self.drawing: asyncio.Future[None] | None = None
        self.need = self.want = 0

    @property
    def step(self) -> float:
        """The seconds until what one takes is there again."""
        return self.rate.seconds / self.rate.count

    def left_at(self, now: float) -> float:
        """Return what should be left in the bucket by now, if no other took of it."""
        if not self.rate.seconds:
            return self.left
        return min(self.left + (now - self.heard_at) / self.step, float(self.rate.count))

    def heard(self, drawn: Drawn, need: int, want: int, now: float) -> None:
        """Take in the answer to a draw. If it is less than was wanted, there is no more for now:
        those who go without are refused, and do not wait for what flows in."""
        self.tokens += drawn.granted
        self.left, self.heard_at, self.is_known = drawn.left, now, True
        if drawn.granted < want:
            pause = PAUSE if self.rate.seconds else SEATS_PAUSE
            self.refused_until = now + max((need - drawn.left) * self.step, pause)

    def draw(self) -> Draw:
        """Return what to ask the store for, and owe nothing from here on."""
        rate, owed = self.rate, self.owed
        self.owed = 0
        return Draw(
            self.name,
            self.digest,
            rate.count,
            rate.seconds,
            self.need,
            self.want,
            back=-owed,
            held=self.used + self.tokens,
        )


class Drawer:
    """Draws for all limits of a process."""

    def __init__(self, limits: SharedLimits) -> None:
        self._limits = limits
        self._wanted: dict[Portion, None] = {}
        self._drawing: asyncio.Task[None] | None = None
        self._away_until = 0.0
        # Those who used something while the store was away.
        self._debtors: dict[Portion, None] = {}
        self._paying: asyncio.TimerHandle | None = None

    @property
    def worker(self) -> int:
        """The number under which seats are taken."""
        return self._limits.worker

    @property
    def workers(self) -> int:
        """How many share the buckets; 0: not known yet."""
        return self._limits.workers

    @property
    def is_away(self) -> bool:
        """Whether the store did not answer a moment ago."""
        return time.monotonic() < self._away_until

    def draw(self, portion: Portion, count: int) -> "asyncio.Future[None]":
        """Draw for a request; the future is done when there is an answer, or none to be had."""
        portion.need = min(portion.need, count) if portion.need else count
        portion.want += count
        return self._send(portion)

    def pay(self, portion: Portion) -> None:
        """Take from the bucket what was used ahead of it; once the store is there, if it is not."""
        if self.is_away:
            self._debtors[portion] = None
        else:
            self._send(portion)

    def settle(self, portion: Portion) -> None:
        """Give back what a portion has left over."""
        portion.owed -= portion.tokens
        portion.tokens = 0
        self._send(portion)

    def _send(self, portion: Portion) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        if portion.drawing is None:
            portion.drawing = loop.create_future()
        self._wanted[portion] = None
        if self._drawing is None:
            self._drawing = loop.create_task(self._draw())
        return portion.drawing

    async def close(self) -> None:
        """Wait until what was asked for is done."""
        if self._paying is not None:
            self._paying.cancel()
            self._paying = None
        if self._drawing is not None:
            await asyncio.wait([self._drawing])

    async def _draw(self) -> None:
        try:
            while self._wanted:
                portions = [self._wanted.popitem()[0] for _ in range(self._batch())]
                await self._ask(portions)
        finally:
            self._drawing = None

    def _batch(self) -> int:
        return min(len(self._wanted), _MOST_AT_ONCE)

    async def _ask(self, portions: list[Portion]) -> None:
        waiting = [(one, one.drawing, one.need, one.want, one.owed) for one in portions]
        draws = [one.draw() for one in portions]
        for one in portions:
            # Those who come from here on wait for the next draw.
            one.drawing, one.need, one.want = None, 0, 0
        try:
            drawn = await self._limits.draw(draws)
            now = time.monotonic()
            for (one, _, need, want, _), answer in zip(waiting, drawn, strict=True):
                one.heard(answer, need, want, now)
        except Exception as error:
            # Whatever it was: requests that wait would ask for ever.
            if not isinstance(error, StoreUnavailable):
                logger.exception("limits cannot be counted with the other replicas")
            elif not self.is_away:
                logger.warning("limits are counted by this process alone for now: %s", error)
            self._away_until = time.monotonic() + AWAY_FOR
            for one, _, _, _, owed in waiting:
                one.owed += owed
                # Seats may have been given that we do not know of: what we have is said again.
                if owed or not one.rate.seconds:
                    self._debtors[one] = None
            self._pay_later()
        finally:
            for _, done, _, _, _ in waiting:
                if done is not None and not done.done():
                    done.set_result(None)

    def _pay_later(self) -> None:
        """Pay what was used while the store was away, once it may be back."""
        if self._paying is None:
            pause = max(0.0, self._away_until - time.monotonic())
            self._paying = asyncio.get_running_loop().call_later(pause, self._pay_all)

    def _pay_all(self) -> None:
        self._paying = None
        if self.is_away:
            self._pay_later()
            return
        debtors, self._debtors = self._debtors, {}
        for portion in debtors:
            self._send(portion)
