"""The store's secret, read or made in a thread: that takes longer than all the rest of a start."""

import asyncio
import contextlib
from os import urandom
from pathlib import Path

from dragoman.stores.sealed_values import SECRET_BYTES
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import connect
from dragoman.stores.sqlite.seals import Seals


class StoreSecret:
    """What the store seals with what it hands out, once it is in memory."""

    def __init__(
        self, path: Path, seals: Seals, synchronous: str, *, is_read_only: bool = False
    ) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._seals = seals
        self._synchronous = synchronous
        self.value = b""
        self._finding: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Have the value in memory. Callers at the same moment share one thread."""
        if self.value:
            return
        if self._finding is None:
            finding = asyncio.to_thread(self._find)
            self._finding = asyncio.get_running_loop().create_task(finding)
            self._finding.add_done_callback(self._found)
        # A caller that is cancelled does not cancel it for the others.
        await asyncio.shield(self._finding)

    async def close(self) -> None:
        """Wait for a thread that is under way."""
        if self._finding is not None:
            await asyncio.gather(self._finding, return_exceptions=True)

    def _find(self) -> None:
        # A connection of its own: this runs in a thread.
        if self._is_read_only:
            with contextlib.closing(open_to_read(self._path)) as connection:
                # One that was never made seals what is handed out for as long as this process runs.
                self.value = self._seals.secret(connection) or urandom(SECRET_BYTES)
            return
        with contextlib.closing(connect(str(self._path), self._synchronous)) as connection:
            self.value = self._seals.secret(connection) or self._seals.make_secret(connection)

    def _found(self, _: asyncio.Task[None]) -> None:
        self._finding = None
