"""Gives an open store up when its files are no longer those that were opened.

From then on nothing is acknowledged: it would be in a file that is lost.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NoReturn

import apsw

from dragoman.errors import StoreBroken, StoreLost
from dragoman.stores.sqlite.files.generations import Generations
from dragoman.stores.sqlite.files.watch import FileWatch, Loss, StoreFilePart
from dragoman.stores.sqlite.schema import Row, run
from dragoman.stores.sqlite.workers import Workers
from dragoman.stores.sqlite.writer import Writer

# How often a loss has to be seen before it is one, and seconds between two checks.
_CHECKS = 3
_BETWEEN_CHECKS = 0.05

# Runs a function that reads, on a thread.
ReadTx = Callable[[Callable[[apsw.Connection], list[Row]]], Awaitable[list[Row]]]


class FileGuard:
    """Checks the files of one open store."""

    def __init__(
        self,
        watch: FileWatch,
        generations: Generations,
        workers: Workers,
        writer: Writer,
        reader: apsw.Connection,
        read_tx: ReadTx,
    ) -> None:
        self._watch = watch
        self._generations = generations
        self._workers = workers
        self._writer = writer
        self._reader = reader
        self._read_tx = read_tx
        # Whether the files that have the names now are not ours to change or to delete.
        self.keeps_log = False
        self._checking: asyncio.Task[None] | None = None

    async def check(self, *, is_alone: bool) -> None:
        """Raise `StoreBroken` if the files are not those that were opened."""
        if self._writer.fault is not None:
            raise self._writer.fault
        loss = await self._loss()
        if loss is not None:
            await self.give_up(loss)
        elif is_alone and self._watch.is_settled:
            # On a full disk the next renewal does it.
            with contextlib.suppress(OSError):
                self._generations.settle(self._workers.lock)

    def check_soon(self) -> None:
        """Check before the next renewal: something went wrong."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_again())

    async def close(self) -> None:
        """Wait for a check that is under way."""
        if self._checking is not None:
            await asyncio.gather(self._checking, return_exceptions=True)

    async def give_up(self, loss: Loss) -> NoReturn:
        """Acknowledge nothing more, save what can be saved, and raise `StoreLost`."""
        self._writer.refuse_all(StoreLost(loss.sentence()))
        self.keeps_log = loss.part is not StoreFilePart.LOCK
        is_rescued = loss.part is StoreFilePart.LOG_NAME and await self._rescue()
        fault = StoreLost(loss.sentence(is_rescued=is_rescued))
        self._writer.give_up(fault)
        raise fault

    async def _check_again(self) -> None:
        with contextlib.suppress(StoreBroken):
            await self.check(is_alone=False)

    async def _loss(self) -> Loss | None:
        """Return what is lost. More than one check has to see it: another process may be bringing
        the log into the file, or beginning it anew."""
        loss = None
        for _ in range(_CHECKS):
            loss = self._watch.loss(self._reader)
            if loss is None:
                return None
            await asyncio.sleep(_BETWEEN_CHECKS)
        return loss

    async def _rescue(self) -> bool:
        """Bring the log that lost its name into the file; true: the file has everything."""
        try:
            (found,) = await self._read_tx(lambda scans: run(scans, "PRAGMA wal_checkpoint(full)"))
            is_busy, frames, copied = found
            is_whole = not is_busy and frames == copied
            if is_whole:
                self._generations.close_whole(self._workers.lock)
        except (apsw.Error, OSError):
            return False
        return is_whole
