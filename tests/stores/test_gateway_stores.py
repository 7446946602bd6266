"""Memory and SQLite keep every promise of what a gateway stores."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.memory.gateway import MemoryGatewayStore
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from dragoman.stores.sqlite.ledger.task_orders import TaskOrders
from dragoman.testing.promises import GatewayStorePromises, SampleRules
from dragoman.testing.promises.samples import WITHIN


class TestMemory(GatewayStorePromises):
    @pytest.fixture
    async def store(self) -> GatewayStore:
        store = MemoryGatewayStore(SampleRules())
        await store.open()
        return store

    async def successor(self, store: GatewayStore) -> GatewayStore:
        await store.open()
        return store


class TestSQLite(GatewayStorePromises):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[GatewayStore]:
        self._path = tmp_path / "tasks.db"
        self._open: list[SQLiteGatewayStore] = []
        yield await self.successor()
        for store in reversed(self._open):
            await asyncio.wait_for(store.close(), WITHIN)

    async def successor(self, store: GatewayStore | None = None) -> GatewayStore:
        later = SQLiteGatewayStore(self._path, orders=TaskOrders(SampleRules()))
        await asyncio.wait_for(later.open(), WITHIN)
        self._open.append(later)
        return later
