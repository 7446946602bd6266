"""Runs tasks that may have ended a process one at a time.

Code can end its process, and with it every task beside it. So a task is charged with the end of a
process only if it ran alone. A task that was under way when two processes ended is a suspect: it
runs alone for a few seconds, which its log records before its code begins. Other tasks wait to
begin meanwhile. That time is bounded: a suspect that still runs then continues beside the others,
and after some suspects all others begin.

While a suspect continues, no other is alone. The others have their turns all the same, and a
process that dies in the turn of one tells which task has to be alone in the next process. So the
number of processes that a task can end does not grow with the number of long tasks.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from dragoman.engine.log import LogIsFull
from dragoman.engine.running.turn_ends import Ended
from dragoman.engine.running.worker import Worker
from dragoman.errors import A2AError, StoreRefused

logger = logging.getLogger("dragoman")

# Others wait for at most this many times the seconds of one suspect; longer only for one turn whose
# seconds were doubled more often.
_MAX_WAIT = 6
# How often those seconds are doubled for one that outlived its turns and is still a suspect.
_DOUBLINGS = 5
# Seconds between two checks of what is under way.
_CHECK_EVERY = 0.02


class Isolation:
    """Decides when the code of a process's tasks may begin."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        # The workers of each agent.
        self._groups: list[Mapping[Any, Worker]] = []
        # Those whose turn has not come, each with what tells it so.
        self._suspects: dict[Worker, asyncio.Future[None]] = {}
        self._gathering = 0
        self._turns: asyncio.Task[None] | None = None
        # Whether what begins has to wait.
        self.is_on = False
        # Whether everything that was under way has ended so far.
        self._may_be_alone = True
        self._open = asyncio.Event()
        self._open.set()

    def watch(self, workers: Mapping[Any, Worker]) -> None:
        """Watch the workers of one more agent."""
        self._groups.append(workers)

    def stop(self, workers: Mapping[Any, Worker]) -> None:
        """Stop watching the workers of an agent that is no longer served."""
        self._groups = [group for group in self._groups if group is not workers]
        if self._turns is not None and not self._groups:
            self._turns.cancel()

    @contextlib.contextmanager
    def gathering(self) -> Generator[None]:
        """Have those that are taken over wait for each other: which of them are suspects is known
        once all of them are read."""
        self._gathering += 1
        self._open.clear()
        try:
            yield
        finally:
            self._gathering -= 1
            if not self._gathering:
                self._go_on()

    def suspect(self, worker: Worker) -> None:
        """Have a worker wait for its turn to be alone."""
        self._suspects[worker] = asyncio.get_running_loop().create_future()
        if not self._gathering:
            self._go_on()

    def _go_on(self) -> None:
        if self._suspects and self._turns is None:
            self._open.clear()
            # In no task's context: it is for all of them.
            context = contextvars.Context()
            loop = asyncio.get_running_loop()
            self.is_on = True
            self._turns = loop.create_task(self._take_turns(), context=context)
        elif self._turns is None:
            self._open.set()

    async def enter(self, worker: Worker) -> None:
        """Return when the code of a worker may begin."""
        turn = self._suspects.get(worker)
        if turn is not None:
            await turn
        elif not worker.is_suspect:
            while not self._open.is_set():
                await self._open.wait()

    async def _take_turns(self) -> None:
        until = self._now() + _MAX_WAIT * self._seconds
        is_first = self._may_be_alone = True
        try:
            while self._suspects:
                worker = min(self._suspects, key=_order)
                seconds = self._seconds * 2 ** min(worker.replay.turns, _DOUBLINGS)
                if not is_first and self._now() + seconds > until:
                    break
                if worker.is_running:
                    is_first = False
                    await self._have_turn(worker, self._suspects[worker], seconds)
                del self._suspects[worker]
        except Exception:
            # The tasks that wait for their turn go on, whatever it was.
            logger.exception("suspects do not run one at a time any more")
        finally:
            self._turns = None
            self.is_on = False
            for turn in self._suspects.values():
                _tell(turn)
            self._suspects.clear()
            if not self._gathering:
                self._open.set()

    async def _have_turn(self, worker: Worker, turn: asyncio.Future[None], seconds: float) -> None:
        """Let a suspect begin once nothing else is under way, and wait for it for a while."""
        # What did not end once is not waited for again.
        patience = self._seconds if self._may_be_alone else 0.0
        is_alone = await self._until(lambda: not self._others(worker), patience)
        self._may_be_alone = is_alone
        is_marked = await _marked(worker, is_on=True, is_alone=is_alone)
        is_alone = is_alone and is_marked
        logger.warning(
            "task %s was under way when %d processes ended; it runs %s",
            worker.log.task_id,
            worker.replay.deaths,
            "alone" if is_alone else "beside others, which do not end",
        )
        # Here, and not with its first slice: it is waited for from now on.
        worker.is_begun = True
        _tell(turn)
        await self._until(lambda: not worker.is_at_work, seconds)
        if is_marked and worker.is_running and worker.log.is_active:
            # On record before anything else begins.
            await _marked(worker, is_on=False)

    def _others(self, worker: Worker) -> bool:
        return any(
            other is not worker and other.is_at_work
            for group in self._groups
            for other in group.values()
        )

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so; false: it is not so in time."""
        until = self._now() + seconds
        while not is_so():
            if self._now() >= until:
                return False
            await asyncio.sleep(_CHECK_EVERY)
        return True


def _order(worker: Worker) -> tuple[int, int, int]:
    """Have those first that ended a process when they were alone; then those in whose turn one
    ended, which counts for two turns; then those that seldom had one, so that each has; then those
    that were there most often."""
    replay = worker.replay
    return -replay.tries, replay.turns - 2 * replay.times_caught, -replay.deaths


def _tell(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


async def _marked(worker: Worker, *, is_on: bool, is_alone: bool = False) -> bool:
    """Record a turn of a worker, or its end; false: that cannot be recorded."""
    try:
        await worker.mark_turn(is_on=is_on, is_alone=is_alone)
    except (Ended, StoreRefused, LogIsFull, A2AError):
        return False
    return True
