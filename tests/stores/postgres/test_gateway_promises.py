"""PostgreSQL keeps every promise of what a gateway stores."""

from collections.abc import AsyncIterator

import pytest

from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.testing.promises import GatewayStorePromises, SampleRules


class TestPostgres(GatewayStorePromises):
    @pytest.fixture
    async def store(self, database: str) -> AsyncIterator[GatewayStore]:
        self._url = database
        self._open: list[PostgresGatewayStore] = []
        yield await self.successor()
        for store in self._open:
            await store.close()

    async def successor(self, store: GatewayStore | None = None) -> GatewayStore:
        later = PostgresGatewayStore(Addresses(self._url), SampleRules())
        await later.open()
        self._open.append(later)
        return later
