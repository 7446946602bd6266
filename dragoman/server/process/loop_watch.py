"""Names the code that blocks the event loop, so that everything else in the process waits.

A thread asks the loop for a sign of life. If none comes in time, it reads what the loop's thread
runs: the task, the skill, and the line of the author's code. `http/admission.py` measures the same
loop from within, and only while requests come: by then the code that blocked it is gone.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import msgspec

from dragoman.engine.running.author_code import libraries
from dragoman.engine.running.worker import worker_in
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

# Checks within the time after which the loop counts as blocked.
_LOOKS = 4
# Seconds between two log lines about the same skill, and after which one that goes on is logged.
TELL_EVERY = 60.0
TELL_AFTER = 10.0

Clock = Callable[[], float]


class Holder(msgspec.Struct, frozen=True):
    """The code that holds the loop; without an agent, code outside of any task."""

    agent: str
    skill: str
    task_id: str
    # File, line and function.
    place: str

    def __str__(self) -> str:
        if not self.agent:
            return self.place
        skill = f"skill {self.skill} of " if self.skill else ""
        return f"{skill}agent {self.agent}, task {self.task_id}, in {self.place}"


class LoopWatch:
    """Watches one loop. All but `look` runs on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, now: Clock = time.monotonic
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._now = now
        self._thread_id = threading.get_ident()
        self._worked = _work_of(self._thread_id)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # When the loop was asked, whether it has answered, and what held it when it was late.
        self._asked_at = self._looked_at = now()
        self._work = self._worked()
        self._has_answered = True
        self._holder: Holder | None = None
        self._told_at: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._watch, name="dragoman-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds / _LOOKS):
            try:
                self.look()
            except RuntimeError:
                # The loop has ended.
                return

    def look(self) -> None:
        """Check whether the loop has answered since it was asked."""
        now = self._now()
        kept = self._blocked_seconds(now)
        if self._has_answered:
            self._has_answered, self._asked_at = False, now - kept
            if kept >= self._seconds:
                # No other thread ran, this one neither: the loop could not even be asked.
                self._holder = self._found()
            self._loop.call_soon_threadsafe(self._answer)
            return
        held = now - self._asked_at
        if held < self._seconds:
            return
        if self._holder is None:
            self._holder = self._found()
        if self._holder is not None and held >= TELL_AFTER:
            self._tell(self._holder, held, "has held the event loop for")

    def _found(self) -> Holder | None:
        return _holder(sys._current_frames().get(self._thread_id))  # pyright: ignore[reportPrivateUsage]  # documented, for debuggers

    def _blocked_seconds(self, now: float) -> float:
        """Return for how many seconds the loop's thread kept this one from running. Time in which
        the whole process stood still does not count: then this thread is late too, but the loop's
        thread used no processor. If it did, its code lets no other thread run."""
        late = now - self._looked_at - self._seconds / _LOOKS
        work = self._worked()
        is_frozen = late > self._seconds / 2 and work - self._work < late / 2
        if is_frozen:
            self._asked_at += late
        self._looked_at, self._work = now, work
        return 0.0 if is_frozen else max(0.0, late)

    def _answer(self) -> None:
        holder, self._holder = self._holder, None
        self._has_answered = True
        if holder is None:
            return
        held = self._now() - self._asked_at
        figures.loop_blocked.add(holder.agent, holder.skill)
        figures.loop_blocked_seconds.add(holder.agent, holder.skill, by=held)
        self._tell(holder, held, "held the event loop for")

    def _tell(self, holder: Holder, held: float, how: str) -> None:
        key, now = (holder.agent, holder.skill), self._now()
        if now - self._told_at.get(key, -TELL_EVERY) < TELL_EVERY:
            return
        self._told_at[key] = now
        facts = {"task_id": holder.task_id, "agent": holder.agent}
        message = "%s %s %.1f s, and everything else waited; plain functions run in threads"
        logger.warning(message, holder, how, held, extra=facts)


def _holder(frame: FrameType | None) -> Holder | None:
    """Return whose code a thread runs; None: only the loop itself, so that nothing held it."""
    frames = list(_outwards(frame))
    worker = next((found for one in frames if (found := worker_in(one)) is not None), None)
    inner = next((one for one in frames if not _is_others(one)), None)
    if worker is not None:
        agent, skill = worker.log.scope.agent, worker.plan.name
        return Holder(agent, skill, worker.log.task_id, _place(inner or frames[0]))
    # An author's callback, or other code outside of any task.
    return None if inner is None else Holder("", "", "", _place(inner))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_others(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(tuple(folder + os.sep for folder in libraries()))


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} ({code.co_qualname})"


def _work_of(thread_id: int) -> Clock:
    """Return a clock of the processor time of a thread."""
    if sys.platform == "win32" or not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    clock = time.pthread_getcpuclockid(thread_id)
    return lambda: time.clock_gettime(clock)
