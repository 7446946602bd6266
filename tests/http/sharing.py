"""Three replicas that count the limits of callers together, on one database, in this process."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from harness.waiting import WAIT

from dragoman.config.formats import Rate
from dragoman.errors import StoreUnavailable
from dragoman.http.rates import Bucketing
from dragoman.http.sharing.shared_rates import SharedRates
from dragoman.http.sharing.shared_seats import SharedSeats
from dragoman.stores.interface import Draw, Drawn, SharedLimits
from dragoman.stores.postgres import limits as database_limits
from dragoman.stores.postgres.connections import Addresses
from dragoman.stores.postgres.store import PostgresStore

REPLICAS = 3


class Counting:
    """Counts the round trips that are over, and does not answer when it is told so."""

    def __init__(self, limits: SharedLimits) -> None:
        self._limits = limits
        self.trips = 0
        self.is_away = False
        # Whether what is drawn is drawn, and the answer lost on its way.
        self.is_cut = False
        self.error: Exception = StoreUnavailable("it is away")
        # How long a round trip takes besides.
        self.seconds = 0.0

    @property
    def worker(self) -> int:
        return self._limits.worker

    @property
    def workers(self) -> int:
        return self._limits.workers

    async def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        try:
            if self.is_away:
                raise self.error
            await asyncio.sleep(self.seconds)
            drawn = await self._limits.draw(draws)
            if self.is_cut:
                raise self.error
            return drawn
        finally:
            self.trips += 1


class Three:
    """The rates of three replicas."""

    def __init__(self, stores: list[PostgresStore], limits: list[Counting]) -> None:
        self.stores = stores
        self.limits = limits
        self.rates = [SharedRates(one, "service") for one in limits]

    def buckets(self, rate: Rate, name: str = "rate") -> list[Bucketing]:
        return [rates.buckets(name, rate) for rates in self.rates]

    def seats(self, most: int) -> list[SharedSeats]:
        return [rates.seats("seats", most) for rates in self.rates]

    async def rows(self, place: int, sql: str, *values: Any) -> list[Any]:
        return await self.stores[place]._connections.rows(sql, *values)

    @property
    def trips(self) -> int:
        return sum(one.trips for one in self.limits)


@contextlib.asynccontextmanager
async def three_on(database: str) -> AsyncGenerator[Three]:
    async with contextlib.AsyncExitStack() as stack:
        # Requests wait a second for an answer, and a busy machine may take longer: then each
        # replica counts for itself, which is another test.
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(database_limits, "_ANSWER_WITHIN", WAIT)
        stores = [PostgresStore(Addresses(database), grace=1.0) for _ in range(REPLICAS)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        three = Three(stores, [Counting(store.limits) for store in stores])
        for rates in three.rates:
            stack.push_async_callback(rates.close)
        yield three
