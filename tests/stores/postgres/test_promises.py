"""The PostgreSQL store keeps every promise of a store."""

import pytest

from dragoman.stores.interface import Store
from dragoman.stores.postgres import PostgresStore
from dragoman.testing.promises import StorePromises
from tests.stores.postgres.conftest import Opener


class TestPostgres(StorePromises):
    @pytest.fixture(autouse=True)
    def opens(self, opener: Opener) -> None:
        self._opener = opener

    async def successor(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return await self._opener.successor(store)
