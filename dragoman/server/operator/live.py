"""What the operator API has at hand while the app runs: samples of figures, and whether lists have
changed."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from dragoman.model.task import INTERRUPTED, TaskState
from dragoman.server.operator.tasks.quiet import LastSign, QuietTasks, usual_milliseconds
from dragoman.stores.interface import Store, Survey, TaskRow
from dragoman.telemetry import page
from dragoman.telemetry.sampling import EVERY, SampleRing

if TYPE_CHECKING:
    # Loaded once the start is over.
    from dragoman.server.operator.shapes import TopLists
    from dragoman.server.operator.viewing import Viewer

logger = logging.getLogger("dragoman")

# Seconds for which a look at the latest task holds for all consoles of one viewer.
LOOK_EVERY = 1.0
_MOST_VIEWERS = 1000
# Seconds after which a read of the same thing by the same caller is recorded again.
_READ_AGAIN = 300.0
# Seconds between two measures of the store, and how many are kept.
_MEASURED_EVERY = 60.0
_MEASURED = 15
_MOST_READS = 10_000
_AT_WORK = (TaskState.SUBMITTED, TaskState.WORKING)


class LiveFigures:
    """Samples, and the latest change of what each viewer sees."""

    def __init__(self, store: Store, share: Callable[[Survey], Awaitable[float]]) -> None:
        """`share` tells which share of some tasks count: a gateway and an agent of one server may
        have two for one piece of work."""
        self.ring = SampleRing(page.everything)
        self._store = store
        self._share = share
        self._quiet = QuietTasks(store)
        # By the minutes of which they are: when they were counted, and what came of it.
        self.top_lists: dict[int, tuple[float, TopLists]] = {}
        # How large the store was in the last minutes.
        self._sizes: deque[tuple[float, int]] = deque(maxlen=_MEASURED)
        self._chore: asyncio.Task[None] | None = None
        # When a read was recorded: who, what it did, and of what.
        self._reads: dict[tuple[str, ...], float] = {}
        # By the name of the viewer: when it was looked, and what was seen.
        self._seen: dict[tuple[str, ...], tuple[float, tuple[int, int]]] = {}

    def start(self) -> None:
        """Begin to take samples."""
        self.ring.look(time.time_ns() // 1_000_000)
        self._chore = asyncio.get_running_loop().create_task(self._sample())

    async def stop(self) -> None:
        """End."""
        if self._chore is not None:
            self._chore.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._chore

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.take_sample(time.time_ns() // 1_000_000)
                await self._measure()
            except Exception:
                # Whatever it was: charts have a gap, and nothing else is wrong.
                logger.exception("the figures could not be sampled")

    async def take_sample(self, at: int) -> None:
        """Count what happened since the sample before."""
        # In a thread: it reads what other workers counted.
        await asyncio.to_thread(self.ring.look, at)
        await self._count_tasks()

    async def _count_tasks(self) -> None:
        """Have the last sample say how many tasks work and how many wait for people, which only
        the store knows, and count each piece of work once."""
        if not self.ring.samples:
            return
        last = self.ring.samples[-1]
        counts = await self._store.counts()
        since = last.at - round(1000 * last.seconds)
        is_changed = last.started or last.ended
        share = await self._share(Survey(limit=0, status_since=since)) if is_changed else 1.0
        self.ring.samples[-1] = last._replace(
            started=round(last.started * share),
            ended=round(last.ended * share),
            failed=round(last.failed * share),
            running=await self._count(counts, _AT_WORK),
            waiting=await self._count(counts, INTERRUPTED),
        )

    async def _count(self, counts: dict[TaskState, int], states: Iterable[TaskState]) -> int:
        found = 0
        for state in states:
            if count := counts.get(state, 0):
                found += round(count * await self._share(Survey(limit=0, state=state)))
        return found

    async def _measure(self) -> None:
        """Note how large the store is, once in a minute."""
        now = asyncio.get_running_loop().time()
        if not self._sizes or now - self._sizes[-1][0] >= _MEASURED_EVERY:
            self._sizes.append((now, (await self._store.size()).used))

    def growth(self) -> int | None:
        """Return by how many bytes the store grows in an hour; None: that is not known yet."""
        if len(self._sizes) < 2:
            return None
        (began, before), (ended, now) = self._sizes[0], self._sizes[-1]
        return int((now - before) / (ended - began) * 3600)

    def is_first_read(self, *read: str) -> bool:
        """Tell whether such a read was not recorded lately. A page that is looked at is drawn anew
        every second, and one line of the audit log says as much as a thousand."""
        now = asyncio.get_running_loop().time()
        if now - self._reads.get(read, -_READ_AGAIN) < _READ_AGAIN:
            return False
        if len(self._reads) >= _MOST_READS:
            self._reads.clear()
        self._reads[read] = now
        return True

    async def quiet_tasks(self, served: Iterable[str]) -> list[tuple[TaskRow, LastSign]]:
        """Return tasks under way that show nothing, the longest first. `served` are the agents of
        this process: others in the figures are behind its gateway, whose tasks theirs are."""
        usual = usual_milliseconds(list(self.ring.samples))
        behind = max((usual[name] for name in usual.keys() - set(served)), default=0.0)
        usual = dict.fromkeys(served, behind) | usual
        return await self._quiet.look(usual, time.time_ns() // 1_000_000)

    async def latest(self, viewer: "Viewer") -> tuple[int, int]:
        """Return the place of the first task of a viewer's list. One look a second serves all
        consoles of the same viewer."""
        name, now = tuple(viewer.name), asyncio.get_running_loop().time()
        looked_at, place = self._seen.get(name, (-LOOK_EVERY, (0, 0)))
        if now - looked_at < LOOK_EVERY:
            return place
        if len(self._seen) >= _MOST_VIEWERS:
            self._seen.clear()
        # Before it is asked: others that ask meanwhile get what was seen before.
        self._seen[name] = now, place
        heads = await viewer.tasks(self._store, limit=1)
        place = (heads[0].standing.status_at, heads[0].number) if heads else (0, 0)
        self._seen[name] = now, place
        return place
