"""Stores on a database of the test's own."""

import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.databases import buried
from harness.waiting import within

from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.testing.promises import SampleRules
from dragoman.testing.servers import PostgresServer
from tests.stores.postgres.gateways import Opening


class Opener:
    """Opens stores on one database, and closes them in the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open: list[PostgresStore] = []

    async def open(self, url: str = "", **given: Any) -> PostgresStore:
        """Return an open store. No grace: the server does not restart unless a test says so."""
        store = PostgresStore(Addresses(url or self.url), **{"grace": 0, **given})
        await store.open()
        self._open.append(store)
        return store

    async def successor(self, store: PostgresStore, **given: Any) -> PostgresStore:
        """Return another worker, for which the first one's lease has ended."""
        later = await self.open(**given)
        dead = store.worker
        await store._workers.vanish()
        await buried(later, dead)
        return later

    async def close(self) -> None:
        while self._open:
            await within(self._open.pop().close())


@pytest.fixture
async def opener(database: str) -> AsyncIterator[Opener]:
    opener = Opener(database)
    yield opener
    await opener.close()


@pytest.fixture
async def store(opener: Opener) -> PostgresStore:
    return await opener.open()


@pytest.fixture
async def opening(database: str) -> AsyncIterator[Opening]:
    """Open stores of a gateway on one database, as its replicas would."""
    stores: list[PostgresGatewayStore] = []

    async def opened() -> PostgresGatewayStore:
        store = PostgresGatewayStore(Addresses(database), SampleRules(), grace=0)
        await store.open()
        stores.append(store)
        return store

    yield opened
    for store in stores:
        await within(store.close())


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may stop."""
    with tempfile.TemporaryDirectory(prefix="dragoman-tests-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "own").start()
        yield server
        server.stop(signal.SIGQUIT)
