"""Several workers on one file in one process, under a clock that moves when a test says so.

Locks belong to open files and not to processes, so two stores in one process are to each other what
two processes are.
"""

import asyncio
import os
from pathlib import Path

from dragoman.stores.interface import Store
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.promises.samples import WITHIN

LEASE = 30.0


class Pair:
    """The workers of a file: two, mostly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Milliseconds since the machine started.
        self.now = 1_000_000
        self._stores: list[SQLiteStore] = []

    def make(self, lease: float = LEASE, patience: float = WITHIN) -> SQLiteStore:
        """Return one more worker, not open yet, and how long it waits for one that is frozen."""
        store = SQLiteStore(self.path, lease=lease, clock=lambda: self.now)
        store._patience = patience
        self._stores.append(store)
        return store

    async def open(self, lease: float = LEASE, patience: float = WITHIN) -> SQLiteStore:
        """Return one more worker, at work."""
        store = self.make(lease, patience)
        await asyncio.wait_for(store.open(), WITHIN)
        return store

    async def stop(self, store: Store) -> None:
        """Freeze a worker: it does nothing any more by itself."""
        assert isinstance(store, SQLiteStore)
        for chore in store._chores:
            chore.cancel()
        await asyncio.gather(*store._chores, return_exceptions=True)

    async def freeze(self, store: Store) -> None:
        """Freeze a worker until its lease has ended and the others know."""
        await self.stop(store)
        self.now += int(LEASE * 1000)
        for other in self._stores:
            if other is not store:
                await asyncio.wait_for(other.renew(), WITHIN)

    async def kill(self, store: Store) -> None:
        """End a worker as a killed process ends: its locks go, its row and its files stay."""
        assert isinstance(store, SQLiteStore)
        await self.stop(store)
        self._stores.remove(store)
        await store._writer.close()
        await asyncio.to_thread(store._scanner.shutdown)
        store._reader.close()
        store._scans.close()
        for lock in (store._workers._own, store._workers._shared):
            assert lock is not None
            os.close(lock)

    async def end(self, store: Store) -> None:
        """Close a worker in good order."""
        assert isinstance(store, SQLiteStore)
        self._stores.remove(store)
        await asyncio.wait_for(store.close(), WITHIN)

    async def close(self) -> None:
        """Close whoever is left."""
        for store in list(self._stores):
            await self.end(store)
