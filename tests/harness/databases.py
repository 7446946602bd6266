"""One PostgreSQL server for all tests of a process, and an empty database for each that asks."""

import asyncio
import signal
from pathlib import Path

import pytest

from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.testing.servers import PostgresServer

_TEMPLATE = "dragoman_template"


class Databases:
    """Makes databases that have the present schema and nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer(folder / "postgres").start()
        self._has_template = False

    def make(self) -> str:
        """Return the address of a new database; call it in a thread."""
        if not self._has_template:
            self.server.sql(f"CREATE DATABASE {_TEMPLATE}")
            asyncio.run(_migrate(self.server.url(_TEMPLATE)))
            self._has_template = True
        return self.server.make_database(_TEMPLATE)

    def stop(self) -> None:
        """End the server at once: nobody reads its data again."""
        self.server.stop(signal.SIGQUIT)


async def new_database(request: pytest.FixtureRequest) -> str:
    """Return the address of a new database; no server is started where no test asks for one."""
    databases: Databases = request.getfixturevalue("databases")
    return await asyncio.to_thread(databases.make)


async def _migrate(url: str) -> None:
    store = PostgresStore(Addresses(url))
    await store.open()
    await store.close()
