"""The memory store keeps every promise of a store, for as long as the process lives."""

import pytest

from dragoman.stores.interface import Store
from dragoman.stores.memory import MemoryStore
from dragoman.testing.promises import StorePromises


class TestMemory(StorePromises):
    @pytest.fixture
    async def store(self) -> Store:
        store = MemoryStore()
        await store.open()
        return store

    async def successor(self, store: Store) -> Store:
        await store.open()
        return store
