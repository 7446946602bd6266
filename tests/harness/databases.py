"""One PostgreSQL server for all tests of a process, and an empty database for each that asks.

All servers that tests start begin as copies of one cluster, because making one takes half a second.
"""

import asyncio
import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from dragoman.stores.interface import Store
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.testing.servers import PostgresServer
from harness.waiting import eventually

_TEMPLATE = "dragoman_template"
# No process looks through hundreds of databases for rows to vacuum, and little log is kept.
_SETTINGS = {"autovacuum": "off", "max_wal_size": "128MB", "min_wal_size": "32MB"}

# What `psql` prints once a statement has ended.
_DONE = "done"

_SILENT = "UPDATE beats SET at = at - interval '1 s' WHERE worker = $1 RETURNING worker"


def copy_clusters() -> None:
    """Let servers of this process and its forks begin as copies of one cluster."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-cluster-"))
    made = PostgresServer.make_cluster
    owner = os.getpid()

    def copy(server: PostgresServer) -> None:
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                made(server)
                subprocess.run(["cp", "-a", server.data, folder / "made"], check=True)
                return
        subprocess.run(["cp", "-a", folder / "made", server.data], check=True)

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder)

    PostgresServer.make_cluster = copy  # type: ignore[method-assign]
    atexit.register(remove)


class Databases:
    """Makes databases that have the present schema and nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer(folder / "postgres", **_SETTINGS).start()
        self._session = _Session(self.server)
        self._has_template = False

    @classmethod
    @contextmanager
    def of_own(cls) -> Generator["Databases"]:
        """Serve databases from a folder of their own. It is not in pytest's, which a second run
        closes to all but its user: PostgreSQL does not run as root."""
        with tempfile.TemporaryDirectory(prefix="dragoman-tests-") as folder:
            databases = cls(Path(folder))
            yield databases
            databases.stop()

    def make(self) -> str:
        """Return the address of a new database; call it where no loop runs."""
        if not self._has_template:
            self.server.sql(f"CREATE DATABASE {_TEMPLATE}")
            asyncio.run(_migrate(self.server.url(_TEMPLATE)))
            self._has_template = True
        name = f"d{uuid4().hex[:12]}"
        # Files are copied in a tenth of the time that it takes to log each of their pages.
        self._session.run(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE} STRATEGY FILE_COPY")
        return self.server.url(name)

    def drop(self, url: str) -> None:
        """End who uses a database, and remove it."""
        self._session.run(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def stop(self) -> None:
        """End the server at once: nobody reads its data again."""
        self._session.close()
        self.server.stop(signal.SIGQUIT)


class _Session:
    """One `psql` for all databases that are made and dropped: starting it for each, and a process
    of the server, took a third of the time of both."""

    def __init__(self, server: PostgresServer) -> None:
        self._psql = subprocess.Popen(
            [str(server._bin / "psql"), "-X", "-q", "-d", server.url()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lock = threading.Lock()

    def run(self, sql: str) -> None:
        """Run a statement to its end; raises AssertionError with what the server said."""
        assert self._psql.stdin is not None and self._psql.stdout is not None
        with self._lock:
            self._psql.stdin.write(f"{sql};\n\\echo {_DONE}\n")
            self._psql.stdin.flush()
            said = ""
            while (line := self._psql.stdout.readline()) and line.strip() != _DONE:
                said += line
        # Without a last line the connection was lost, and `psql` ended.
        assert line and "ERROR:" not in said, f"{sql}: {said}"

    def close(self) -> None:
        self._psql.communicate()


async def new_database(request: pytest.FixtureRequest) -> str:
    """Return the address of a new database, which goes when what asks for it ends; no server is
    started where no test asks for one."""
    databases: Databases = request.getfixturevalue("databases")
    url = await asyncio.to_thread(databases.make)
    request.addfinalizer(lambda: databases.drop(url))
    return url


async def buried(store: Store, dead: int) -> None:
    """Return when a worker knows that another is dead. The server notices a moment after its end;
    that the other was not heard for half a second since need not be waited for."""
    if isinstance(store, PostgresStore):
        await store._connections.rows(_SILENT, dead)

    async def is_known() -> bool:
        await store.renew()
        return not await store.is_live(dead)

    await eventually(is_known)


async def _migrate(url: str) -> None:
    store = PostgresStore(Addresses(url))
    await store.open()
    await store.close()
