"""The tasks this process works on: their logs and workers, and the limits on how many there are.

Only the process that holds a task writes its log. How tasks come here from the store is in
`recovery`, how they begin in `intake`.
"""

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.engine.agent_code import AgentCode
from dragoman.engine.event_hooks import HookCalls
from dragoman.engine.log import Bell, LogLimits, TaskLog
from dragoman.engine.running.isolation import Isolation
from dragoman.engine.running.worker import Worker
from dragoman.errors import Overloaded, RateLimited, StoreRefused
from dragoman.model.clock import Clock
from dragoman.model.identity import Principal, Scope, TaskId
from dragoman.model.task import TaskState
from dragoman.shares import Shares
from dragoman.stores.interface import Store, TaskRow
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

MessageKey = tuple[Scope, bytes]
# Callers of 0.x may name their tasks, so tasks of two callers may have one id.
TaskKey = tuple[Scope, TaskId]


class EngineContext(msgspec.Struct, frozen=True):
    """What all parts of one engine work with."""

    code: AgentCode
    store: Store
    settings: Settings
    clock: Clock
    # Of all engines of the process.
    shares: Shares
    hooks: HookCalls
    # Whether only this machine reaches the server.
    is_local: bool = False


def task_key(task: TaskRow) -> TaskKey:
    """Return what a task is found by, as `TaskLog.key`."""
    return task.scope, task.task_id


class OpeningRead(msgspec.Struct, eq=False):
    """A read of what is to be written here: of a task, or of what became of a message. It lasts as
    long as its block."""

    # A struct would print the id of a message.
    __repr__ = object.__repr__

    _reads: "dict[TaskKey | MessageKey, list[OpeningRead]]"
    _key: TaskKey | MessageKey
    # Whether a log or a worker was let go of meanwhile: the answer may lack what it wrote.
    is_outdated: bool = False

    def __enter__(self) -> "OpeningRead":
        self._reads.setdefault(self._key, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        others = self._reads[self._key]
        others.remove(self)
        if not others:
            del self._reads[self._key]


class LiveTasks:
    """Logs and workers by task."""

    def __init__(self, context: EngineContext, isolation: Isolation) -> None:
        self._context = context
        self._settings = context.settings
        self._store = context.store
        # The running tasks of each principal in all replicas, where they are counted.
        self._seats = context.shares.running
        self.bell = Bell()
        self.limits = LogLimits(
            context.settings.engine.max_events, context.settings.engine.max_task_bytes
        )
        self._logs: dict[TaskKey, TaskLog] = {}
        self._reads: dict[TaskKey | MessageKey, list[OpeningRead]] = {}
        self._workers: dict[TaskKey, Worker] = {}
        # How many workers each principal has; callers without authentication are not counted.
        self._of_principal: Counter[Principal] = Counter()
        # Messages whose keys may not be in the store yet: the worker of each, and its position.
        self._arriving: dict[MessageKey, tuple[Worker, int]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.is_stopped = False
        # Called with each log that is let go of: it may have failed.
        self.on_retired: Callable[[TaskLog], None] | None = None
        self.isolation = isolation
        isolation.watch(self._workers)
        name = context.code.name
        self._gauges = [
            figures.tasks_running.watch(self._count_running, name),
            figures.messages_waiting.watch(self._count_waiting, name),
        ]

    def _count_running(self) -> float:
        return len(self._workers)

    def _count_waiting(self) -> float:
        # A copy: metrics may be read in another thread.
        return sum(worker.queued for worker in list(self._workers.values()))

    # Finding

    @property
    def count(self) -> int:
        """How many tasks are here."""
        return len(self._workers)

    @property
    def logs(self) -> list[TaskLog]:
        """The logs that are written here."""
        return list(self._logs.values())

    def get(self, scope: Scope, task_id: TaskId) -> TaskLog | None:
        """Return the log of a task that is being written here."""
        return self._logs.get((scope, task_id))

    def worker(self, head: TaskRow) -> Worker | None:
        """Return the worker of a task, even if its code has ended."""
        return self._workers.get(task_key(head))

    def running(self, scope: Scope, task_id: TaskId) -> Worker | None:
        """Return the worker of a task if its code runs."""
        worker = self._workers.get((scope, task_id))
        return worker if worker is not None and worker.is_running else None

    def arriving(self, key: MessageKey) -> tuple[Worker, int] | None:
        """Return the worker that a recent message was given to, and its position in the log. None
        also if it was refused."""
        found = self._arriving.get(key)
        return found if found is not None and found[0].log.failure is None else None

    async def is_elsewhere(self, head: TaskRow) -> bool:
        """Tell whether another process that is alive holds a task."""
        return (
            head.holder not in (0, self._store.worker)
            and task_key(head) not in self._workers
            and await self._store.is_live(head.holder)
        )

    # Coming and going

    def adopt(self, log: TaskLog) -> None:
        """Register a log that has no worker yet, so that no second one is made for its task."""
        self._logs[log.key] = log

    def reading(self, key: TaskKey | MessageKey) -> OpeningRead:
        """Notice if the log of a task, or the worker that a message was given to, is let go of
        while the store is asked for it."""
        return OpeningRead(self._reads, key)

    def drop(self, log: TaskLog) -> None:
        """Let go of a log that has no worker."""
        key = log.key
        if self._logs.get(key) is log:
            del self._logs[key]
        log.is_retired = True
        if self._reads:
            self._outdate(key)

    def _outdate(self, key: TaskKey | MessageKey) -> None:
        for read in self._reads.get(key, ()):
            read.is_outdated = True

    def add(self, worker: Worker, message_key: MessageKey | None, seq: int = 1) -> None:
        """Register a worker by its task and by its message."""
        log = worker.log
        key = log.key
        self._logs[key] = log
        if log.scope.owner and key not in self._workers:
            self._of_principal[log.scope.principal] += 1
            if self._seats is not None:
                self._seats.enter(log.scope.principal)
        self._workers[key] = worker
        if message_key is not None:
            self._arriving[message_key] = worker, seq
            worker.keys.append(message_key)

    def start(self, worker: Worker) -> None:
        """Start a worker; let go of it when its task rests and everything is written."""
        log = worker.log
        log.on_idle = worker.on_end = functools.partial(self._retire, worker, log)
        if log.transform is not None:
            log.on_refused = functools.partial(worker.end, TaskState.FAILED)
        if worker.is_suspect or self.isolation.is_on:
            if worker.is_suspect:
                self.isolation.suspect(worker)
            worker.gate = self.isolation.enter
        worker.start()

    def _retire(self, worker: Worker, log: TaskLog) -> None:
        """Let go of a worker, if its code has ended and everything is written."""
        if not (log.failure or log.is_held or log.is_idle):
            return
        if worker.is_running:
            if log.failure is not None:
                # Nothing it does can be recorded; its end calls this again.
                worker.dismiss()
            return
        if self.on_retired is not None:
            self.on_retired(log)
        self.forget(worker)
        # Otherwise each task leaves a cycle behind that only the garbage collector finds, which
        # stops the loop while it looks.
        log.on_idle = worker.on_end = log.on_refused = None

    def forget(self, worker: Worker) -> None:
        """Let go of a worker and, unless a successor has it, of its log."""
        log = worker.log
        key = log.key
        present = self._workers.get(key)
        if present is worker:
            del self._workers[key]
            if log.scope.owner:
                self._leave(log.scope.principal)
            self.drop(log)
        elif present is None:
            self.drop(log)
        if log.is_held:
            # There is no task after all: fail callers that wait for its first write.
            log.on_idle = None
            log.fail(StoreRefused("there is no task"))
        for message_key in worker.keys:
            self._arriving.pop(message_key, None)
            if self._reads:
                self._outdate(message_key)

    def _leave(self, principal: Principal) -> None:
        if self._seats is not None:
            self._seats.leave(principal)
        self._of_principal[principal] -= 1
        if not self._of_principal[principal]:
            del self._of_principal[principal]

    def make_room(self, scope: Scope) -> None:
        """Refuse a task beyond a limit, unless code that only waits for its caller can be stopped
        instead."""
        if len(self._workers) >= self._settings.engine.max_live_tasks:
            self._dismiss_one(None, Overloaded())
        # Without authentication all callers share one owner: no limit per owner.
        if scope.owner and self._is_full(scope.principal):
            self._dismiss_one(scope.principal, RateLimited("Too many tasks are running"))

    def _is_full(self, principal: Principal) -> bool:
        """Tell whether a principal has enough tasks, here or with other replicas."""
        if self._of_principal[principal] >= self._settings.engine.max_tasks_per_caller:
            return True
        return self._seats is not None and self._seats.is_full(principal)

    def _dismiss_one(self, principal: Principal | None, otherwise: Overloaded) -> None:
        for worker in self._workers.values():
            is_candidate = principal is None or worker.log.scope.principal == principal
            log = worker.log
            if is_candidate and worker.is_running and log.is_idle and not log.is_active:
                worker.dismiss()
                return
        raise otherwise

    def stop(self) -> None:
        """Let go of running tasks; another process takes them over."""
        self.is_stopped = True
        self.isolation.stop(self._workers)
        for unwatch in self._gauges:
            unwatch()
        for worker in list(self._workers.values()):
            worker.abandon()
        for task in self._background:
            task.cancel()
        self._workers.clear()
        for principal in list(self._of_principal.elements()):
            self._leave(principal)
        self._logs.clear()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that no caller waits for; it ends with the process at the latest."""

        async def run() -> None:
            try:
                await work
            except StoreRefused as error:
                logger.warning("put off: %s", error)
            except Exception:
                logger.exception("work beside a request failed")

        task = asyncio.get_running_loop().create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        # A task cancelled before its first step leaves its coroutine unawaited.
        task.add_done_callback(lambda _: work.close())
