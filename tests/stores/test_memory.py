"""The memory store keeps every promise of a store, for as long as the process lives."""

import pytest

pytest.register_assert_rewrite("dragoman.testing.stores")

from dragoman.stores.interface import Store  # noqa: E402
from dragoman.stores.memory import MemoryStore  # noqa: E402
from dragoman.testing.stores import StorePromises  # noqa: E402


class TestMemory(StorePromises):
    @pytest.fixture
    async def store(self) -> Store:
        store = MemoryStore()
        await store.open()
        return store
