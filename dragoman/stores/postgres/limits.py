"""Limits that all workers count together, in tables: a few round trips for a busy caller."""

import asyncio
import time
from collections.abc import Callable, Sequence

from dragoman.errors import StoreUnavailable
from dragoman.stores.interface.limits import Draw, Drawn
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import DatabaseConnections, Row

_SQL = statements("dragoman.stores.postgres", "limits.sql")
# Seconds for an answer: a request waits for it.
_ANSWER_WITHIN = 1.0
# Seconds between two looks for what is of no more use.
_CLEAN_EVERY = 300.0


class Limits:
    """Draws from the buckets and seats of the database."""

    def __init__(self, connections: DatabaseConnections, worker: Callable[[], int]) -> None:
        self._connections = connections
        self._worker = worker
        self._workers = 0
        self._cleaned_at = time.monotonic()

    @property
    def worker(self) -> int:
        """Our number, under which seats are taken."""
        return self._worker()

    @property
    def workers(self) -> int:
        """How many workers there were at the last draw; 0: there was none."""
        return self._workers

    async def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        """Take from several buckets in one round trip, and seats in another."""
        rates = [one for one in draws if one.seconds]
        seats = [one for one in draws if not one.seconds]
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                of_rates = await self._of_rates(rates)
                of_seats = await self._of_seats(seats)
                await self._clean()
        except TimeoutError:
            raise StoreUnavailable("PostgreSQL does not answer in time") from None
        rows, others = iter(of_rates), iter(of_seats)
        found = [next(rows if one.seconds else others) for one in draws]
        self._workers = found[0][2]
        return [Drawn(granted, left) for granted, left, _ in found]

    async def _of_rates(self, draws: Sequence[Draw]) -> list[Row]:
        if not draws:
            return []
        rows = [(d.name, d.key, d.count, d.seconds, d.need, d.want, d.back) for d in draws]
        columns = zip(*rows, strict=True)
        return await self._connections.rows(_SQL["draw_limits"], *columns)

    async def _of_seats(self, draws: Sequence[Draw]) -> list[Row]:
        if not draws:
            return []
        rows = [(d.name, d.key, d.count, d.need, d.want, d.held) for d in draws]
        columns = zip(*rows, strict=True)
        return await self._connections.rows(_SQL["draw_seats"], self.worker, *columns)

    async def _clean(self) -> None:
        """Forget buckets that are full and seats of workers that are gone, now and then."""
        if time.monotonic() - self._cleaned_at > _CLEAN_EVERY:
            self._cleaned_at = time.monotonic()
            await self._connections.rows(_SQL["forget_limits"])
            await self._connections.rows(_SQL["forget_seats"])
