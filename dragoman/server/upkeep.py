"""What a running app does by itself: renews its lease, takes over tasks that other processes left,
forgets old ones, keeps streams open or ends them, watches the store. No caller asks for any of it,
so a failure is logged and the chore goes on."""

import asyncio
import contextlib
import logging
import time

from dragoman.engine.store_clock import StoreClock
from dragoman.errors import StoreBroken, StoreUnavailable
from dragoman.server.site import Site
from dragoman.server.store_marks import drained_processes
from dragoman.stores.interface import Duty, Rung

logger = logging.getLogger("dragoman")

PRUNE_EVERY = 3600.0
SWEEP_EVERY = 1.0
EXPIRE_EVERY = 0.5
LOOK_EVERY = 0.75
DRAIN_LOOK_EVERY = 2.0
INDEX_EVERY = 2.0
# While there are words to index, that takes at most a tenth of the time; a fiftieth while other
# work takes more than this part of a processor: a search reads what is not indexed by itself.
INDEX_REST, INDEX_REST_BUSY = 9, 49
_BUSY = 0.25


class Upkeep:
    """The chores of an app, each in a task of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # Set when another worker left tasks: they do not wait for the next sweep.
        self._freed = asyncio.Event()
        site.store.listen(self._heard)
        chores = [
            self._keep_streams_alive(),
            self._end_expired_streams(),
            self._look(),
            self._watch_store(),
        ]
        if not site.settings.stores.read_only:
            chores += [
                self._renew_lease(),
                self._sweep(),
                self._prune(),
                self._index_words(),
                self._watch_drains(),
            ]
        self.chores = [asyncio.get_running_loop().create_task(chore) for chore in chores]

    async def stop(self) -> None:
        """End all chores."""
        for chore in self.chores:
            chore.cancel()
        await asyncio.gather(*self.chores, return_exceptions=True)

    async def _keep_streams_alive(self) -> None:
        keepalive = self._site.settings.http.keepalive
        while True:
            await asyncio.sleep(keepalive / 4)
            self._site.streams.keep_alive(keepalive)

    async def _end_expired_streams(self) -> None:
        """End the streams of readers whose credential was revoked or has expired."""
        site = self._site
        while True:
            await asyncio.sleep(min(EXPIRE_EVERY, site.settings.http.keepalive / 4))
            if site.gatekeeper is not None:
                site.streams.end_expired(site.gatekeeper.holds)

    async def _renew_lease(self) -> None:
        """Renew our lease. Two renewals may be lost before another process takes our tasks over; if
        this process was only frozen, the fence stops it."""
        while True:
            await asyncio.sleep(self._site.settings.engine.lease / 3)
            try:
                await self._site.store.renew()
            except StoreBroken:
                # The chore that watches the store reports it.
                return
            except StoreUnavailable as error:
                logger.warning("the lease cannot be renewed: %s", error)
            except Exception:
                # Whatever it was: without the next renewal another process takes our tasks over.
                logger.exception("the lease could not be renewed")

    async def _sweep(self) -> None:
        """Take over tasks that other processes left, and end those that are overdue. The server
        answers before the first sweep is done: there may be thousands of tasks."""
        while True:
            try:
                await self._take_over()
            except StoreUnavailable as error:
                logger.warning("tasks cannot be looked after: %s", error)
            except Exception:
                # Whatever it was: tasks of dead processes depend on the next sweep.
                logger.exception("no task could be taken over; trying again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(SWEEP_EVERY, self._site.settings.engine.lease / 4)):
                    await self._freed.wait()
            self._freed.clear()

    async def _look(self) -> None:
        """Look for what other processes wrote, should a ring of theirs have been lost."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                for engine in list(self._site.engines.values()):
                    if not self._site.store.knows_all:
                        await engine.look()
            except StoreUnavailable:
                # It says so itself.
                continue
            except Exception:
                # Whatever it was: readers of a task whose ring was lost depend on the next look.
                logger.exception("tasks of other processes could not be looked at; trying again")

    def _heard(self, rung: Rung | None) -> None:
        if rung is not None and rung.freed:
            self._freed.set()

    async def _take_over(self) -> None:
        if self._site.streams.is_stopping:
            # What we took now we would hand on in a moment, begun once more for nothing.
            return
        for engine in list(self._site.engines.values()):
            await engine.sweep()
        if self._site.push is not None and await self._site.store.lead(Duty.CLAIM_PUSHES):
            await self._site.push.claim()

    async def _prune(self) -> None:
        settings, clock = self._site.settings, StoreClock(self._site.store)
        while True:
            ended_before = clock.now() - int(settings.stores.retain_seconds * 1000)
            try:
                count = 0
                if await self._site.store.lead(Duty.PRUNE):
                    count = await self._site.store.prune(
                        ended_before=ended_before, keep=settings.stores.retain_tasks
                    )
                if count:
                    logger.info("forgot %d finished tasks", count)
            except StoreUnavailable as error:
                logger.warning("finished tasks cannot be forgotten yet: %s", error)
            except Exception:
                # Whatever it was: without the next round the store grows without end.
                logger.exception("finished tasks could not be forgotten; trying again")
            await asyncio.sleep(PRUNE_EVERY)

    async def _index_words(self) -> None:
        """Add the words of tasks to the index, behind the tasks."""
        store, pause = self._site.store, INDEX_EVERY
        while True:
            rested_at, worked = time.monotonic(), time.process_time()
            await asyncio.sleep(pause)
            began, has_more = time.monotonic(), False
            is_busy = time.process_time() - worked > _BUSY * (began - rested_at)
            try:
                if await store.lead(Duty.INDEX_WORDS):
                    # Loaded when it is first done: no start waits for it.
                    from dragoman.server.operator.tasks.words import index_some

                    has_more = await index_some(store)
            except StoreBroken:
                # The chore that watches the store reports it.
                return
            except StoreUnavailable:
                # It says so itself.
                pass
            except Exception:
                # Whatever it was: without the next round a search misses older tasks.
                logger.exception("words of tasks could not be indexed; trying again")
            took = time.monotonic() - began
            pause = index_pause(took, is_busy=is_busy) if has_more else INDEX_EVERY

    async def _watch_drains(self) -> None:
        """End this process once an operator asked for it in another one."""
        store, drained = self._site.store, drained_processes(self._site.store)
        while True:
            await asyncio.sleep(DRAIN_LOOK_EVERY)
            try:
                # A process that is alone is asked by no other.
                is_asked = not store.knows_all and await drained.has(str(store.worker))
            except StoreUnavailable:
                # It says so itself.
                continue
            except Exception:
                # Whatever it was: an operator may still ask.
                logger.exception("whether this process is drained could not be read; trying again")
                continue
            if is_asked and self._site.end_process is not None:
                logger.info("an operator drains this process")
                self._site.end_process()
                return

    async def _watch_store(self) -> None:
        """Stop serving once the store is lost or the disk lost a write: what the store holds is
        unknown until it is read again, which the next process does."""
        self._site.fault = await self._site.store.broken()
        logger.critical("%s; nothing more is acknowledged", self._site.fault)
        if self._site.end_process is not None:
            self._site.end_process()


def index_pause(took: float, *, is_busy: bool) -> float:
    """Return the seconds until more words are indexed, where some took so long."""
    return (INDEX_REST_BUSY if is_busy else INDEX_REST) * took
