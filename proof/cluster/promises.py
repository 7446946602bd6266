"""The promises of a store on PostgreSQL, every group of writes submitted twice.

After a broken connection a group is submitted again; here each is, whatever became of it, and the
second answer counts. A pytest process runs this file.
"""

# pyright: reportPrivateUsage=false
import asyncio
import contextlib
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.stores.interface import Store
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.postgres.connections import DatabaseConnections, ServerError
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.testing.promises import GatewayStorePromises, SampleRules, StorePromises
from dragoman.testing.servers import PostgresServer

_WITHIN = 600.0
_NOTICED_WITHIN = 60.0
_WRITES = "write_group"
_TEMPLATE = "proof_template"


class Twice:
    """A connection that submits every group a second time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchval(self, sql: str, *values: Any) -> Any:
        """Return the answer to the second submission; that to the first is lost."""
        if _WRITES in sql:
            # Refused: and so is the second.
            with contextlib.suppress(ServerError):
                await self._connection.fetchval(sql, *values)
        return await self._connection.fetchval(sql, *values)


class TwiceConnections(DatabaseConnections):
    """Connections of which the writing one does everything twice."""

    async def writer(self) -> Any:
        """Return the connection that writes."""
        return Twice(await super().writer())


def twice(store: PostgresStore) -> PostgresStore:
    """Have a store submit everything twice; before it is opened."""
    store._connections.__class__ = TwiceConnections
    return store


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    started = PostgresServer(tmp_path_factory.mktemp("promises") / "postgres").start()
    started.sql(f"CREATE DATABASE {_TEMPLATE}")
    asyncio.run(_migrated(started.url(_TEMPLATE)))
    yield started
    started.kill()


async def _migrated(url: str) -> None:
    store = PostgresStore(Addresses(url))
    await store.open()
    await store.close()


class TestTwice(StorePromises):
    """Every promise, with every group submitted twice."""

    @pytest.fixture
    async def store(self, server: PostgresServer) -> AsyncIterator[Store]:
        self._url = await asyncio.to_thread(server.make_database, _TEMPLATE)
        self._open: list[PostgresStore] = []
        yield await self._opened()
        for store in self._open:
            await store.close()

    async def successor(self, store: Store) -> Store:
        """Return a store that follows one which vanished."""
        assert isinstance(store, PostgresStore)
        later = await self._opened()
        dead = store.worker
        await store._workers.vanish()
        async with asyncio.timeout(_NOTICED_WITHIN):
            # The server notices when it next looks at the connection, and tells no one.
            while await later.is_live(dead):
                await later.renew()
        return later

    async def _opened(self) -> PostgresStore:
        store = twice(PostgresStore(Addresses(self._url), grace=0))
        await store.open()
        self._open.append(store)
        return store


class TestGatewayTwice(GatewayStorePromises):
    """Every promise of what a gateway stores, with every group submitted twice."""

    @pytest.fixture
    async def store(self, server: PostgresServer) -> AsyncIterator[GatewayStore]:
        self._url = await asyncio.to_thread(server.make_database, _TEMPLATE)
        self._open: list[PostgresGatewayStore] = []
        yield await self.successor()
        for store in self._open:
            await store.close()

    async def successor(self, store: GatewayStore | None = None) -> GatewayStore:
        """Return a further store."""
        later = PostgresGatewayStore(Addresses(self._url), SampleRules())
        twice(later)
        await later.open()
        self._open.append(later)
        return later


def keep(folder: Path, only: str = "") -> tuple[int, list[str]]:
    """Run them, or only those of this name; return how many there are and which were broken."""
    report = folder / "promises.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", only,
               f"--basetemp={folder / 'pytest'}", f"--junitxml={report}", __file__]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_WITHIN, stdin=subprocess.DEVNULL
    )
    cases = list(xml.parse(report).iter("testcase")) if report.exists() else []
    broken = [case.get("name", "") for case in cases if list(case)]
    if not cases or (done.returncode and not broken):
        broken.append((done.stdout + done.stderr)[-500:])
    return max(1, len(cases)), broken
