"""How stored tasks come back to life here, and how tasks end that no code works on.

A task is taken over from a worker whose lease ended, or its code is started by a further message.
Either way the code begins with what the log says is done.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from dragoman.engine.agent_code import AgentCode
from dragoman.engine.hooked_log import LogHooks
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.live_tasks import EngineContext, LiveTasks, TaskKey, task_key
from dragoman.engine.log import LogIsFull, TaskLog
from dragoman.engine.reading import read_task
from dragoman.engine.running.failures import report_incident
from dragoman.engine.running.replay import Replay, read_replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.engine.task_events import CANCELED, status_update, trace_event
from dragoman.errors import A2AError, InvalidParams, StoreConflict, StoreRefused, TaskFailed
from dragoman.model.events import AttemptStarted, CancelRequested
from dragoman.model.identity import Scope, TaskId
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.model.record import TaskReading
from dragoman.model.task import OVERDUE, TaskState
from dragoman.stores.interface import TaskRow, died_alone
from dragoman.telemetry import figures, tracing

logger = logging.getLogger("dragoman")

# Seconds until a task whose disk failed is tried again.
RETRY_AFTER = 2.0
_CLAIM_AT_ONCE = 256
# Claimed tasks whose logs are read at the same time.
_LANES = 8


class Recovery:
    """Starts the code of stored tasks, and ends those that need no code."""

    def __init__(self, context: EngineContext, live: LiveTasks) -> None:
        self._context = context
        self._live = live
        self._code = context.code
        self._store = context.store
        self._clock = context.clock
        self._reviving: dict[TaskKey, asyncio.Task[Worker | None]] = {}
        # How often each task could not be written.
        self._retries: dict[TaskKey, int] = {}
        # Who held the tasks that were claimed and could not be revived yet.
        self._claimed_from: dict[TaskKey, int] = {}
        self._lapses = context.store.lapses
        # Logs that were written here when our lease ended, until it is known whose they are.
        self._doubtful: set[TaskLog] = set()
        live.on_retired = self._retired

    def stop(self) -> None:
        """Start no more code."""
        for task in self._reviving.values():
            task.cancel()

    # Reviving

    async def worker_of(self, head: TaskRow) -> Worker | None:
        """Return the worker of a task, started if there is none; None if the task ended."""
        worker = self._live.worker(head)
        if worker is not None and not worker.is_running:
            if worker.log.is_over:
                return None
            self._live.forget(worker)
            worker = None
        if worker is not None:
            return worker
        return await self._revived(head, self._held_by(head))

    def _held_by(self, head: TaskRow) -> int:
        """Return whose death an attempt has to record, as `claim` tells it."""
        if head.holder == self._store.worker:
            return self._claimed_from.get(task_key(head), head.holder)
        # A holder that died may have had more under way than this task: it did not die alone.
        return -abs(head.holder)

    async def _revived(self, head: TaskRow, held_by: int) -> Worker | None:
        """Start a task's code, once: concurrent callers wait for the same start."""
        key = task_key(head)
        reviving = self._reviving.get(key)
        if reviving is None:
            reviving = asyncio.get_running_loop().create_task(self._revive(head, held_by))
            self._reviving[key] = reviving
            reviving.add_done_callback(lambda _: self._reviving.pop(key, None))
        return await asyncio.shield(reviving)

    async def resumed_log(self, head: TaskRow) -> TaskLog | None:
        """Return the log of a stored task, ready to be written; None if there is no such task."""
        found: TaskRow | None = head
        while found is not None:
            with self._live.reading(task_key(found)) as read:
                ended_at = found.standing.last_seq
                reading = await read_task(self._store, found.number, ended_at=ended_at)
            if (log := self._live.get(found.scope, found.task_id)) is not None:
                return log
            is_complete = reading is not None and reading.seq == ended_at
            if reading is not None and is_complete and not read.is_outdated:
                log = self._resume_log(found, reading)
                if found.holder != self._store.worker:
                    log.take_over()
                # At once: a second caller must find this log and not read the store.
                self._live.adopt(log)
                return log
            # It moved on between the two reads.
            found = await self._store.head(head.scope, head.task_id)
        return None

    async def _opened(self, head: TaskRow) -> tuple[TaskLog | None, Replay | None]:
        """Return the log of a stored task and its progress, which is at least as recent."""
        log = await self.resumed_log(head)
        try:
            ended_at = None if log is None else log.seq
            return log, await read_replay(self._store, head.number, ended_at)
        except BaseException:
            if log is not None and log.is_idle and self._live.worker(head) is None:
                self._live.drop(log)
            raise

    def _resume_log(self, head: TaskRow, reading: TaskReading) -> TaskLog:
        shares = self._context.shares
        account = shares.account(head.scope.caller(frozenset()).who)
        log = TaskLog.resumed(
            self._store, self._live.bell, self._live.limits, head, reading, shares, account
        )
        if self._context.hooks.is_on:
            LogHooks(self._context.hooks, log, reading.task)
        return log

    async def _revive(self, head: TaskRow, held_by: int) -> Worker | None:
        """Start the code of a stored task: its turn from the beginning, with its finished steps."""
        log, replay = await self._opened(head)
        if log is not None and log.failure is not None:
            # Given up meanwhile: an end that it has is not on record, and the task goes on.
            raise StoreConflict("the log was given up") from log.failure
        if log is None or replay is None or log.is_over:
            return None
        if (worker := self._live.running(head.scope, head.task_id)) is not None:
            return worker
        log.has_withheld = log.has_withheld or replay.has_withheld
        if replay.is_cancelled:
            self._withdraw(log, replay, TaskState.CANCELED, CANCELED)
            return None
        if replay.deadline and replay.deadline <= self._clock.now():
            self._withdraw(log, replay, TaskState.FAILED, OVERDUE)
            return None
        try:
            if log.is_active:
                self._count_attempt(log, replay, held_by)
            plan = self._code.plan(replay.messages[replay.turn], replay.began)
            waiting = [
                (place, plan_further(self._code, operation, replay, None))
                for place, operation in replay.waiting
            ]
        except (A2AError, TaskFailed, LogIsFull) as error:
            sentence = str(error) if isinstance(error, LogIsFull) else error.public
            self._end(log, replay, TaskState.FAILED, sentence)
            return None
        except StoreRefused:
            raise
        except Exception as error:
            # The author's code, which reads the message: another attempt would fail as well.
            self._end(log, replay, TaskState.FAILED, report_incident(log.task_id, error))
            return None
        caller = head.scope.caller(replay.scopes_granted(replay.turn))
        worker = Worker(
            log, replay, plan, caller, self._clock, _no_reply, is_local=self._context.is_local
        )
        for place, further in waiting:
            worker.give(place, further, head.scope.caller(replay.scopes_granted(place)))
        worker.decide()
        if not log.is_idle:
            # The attempt is on record before it is made. Otherwise code that ends the process at
            # once would be tried for ever.
            worker.begins_after = log.seq
        if log.is_active and held_by != 0:
            worker.is_suspect = replay.is_suspect and not replay.is_asleep(self._clock.now())
            worker.gate = self._live.isolation.enter
        self._live.add(worker, None)
        self._live.start(worker)
        return worker

    def _count_attempt(self, log: TaskLog, replay: Replay, held_by: int) -> None:
        """Record that a worker died on the task; fail the task if that happened too often."""
        if held_by == 0:
            # It was released in good order: nothing speaks against the code.
            return
        if held_by == self._store.worker:
            # The disk failed: no attempt, but the code waits until the disk takes this.
            log.emit(AttemptStarted(replay.attempt, counts=False))
            return
        is_asleep = replay.is_asleep(self._clock.now())
        is_alone = died_alone(held_by) or replay.alone_in == abs(held_by)
        is_charged = is_alone and not is_asleep
        if is_charged and replay.tries >= self._context.settings.engine.max_attempts:
            raise TaskFailed(f"The agent did not finish in {replay.tries} attempts.")
        is_suspected = not (is_alone or is_asleep)
        started = AttemptStarted(
            replay.attempt + 1,
            counts=is_charged,
            suspected=is_suspected,
            caught=is_suspected and replay.turn_in == abs(held_by),
            at=self._clock.now(),
        )
        log.emit(started)
        replay.apply(started)

    # Trying again

    def _retired(self, log: TaskLog) -> None:
        if log.failure is not None:
            self._retry_later(log.scope, log.task_id)
        else:
            self._retries.pop(log.key, None)

    def _retry_later(self, scope: Scope, task_id: TaskId) -> None:
        """Resume a task that could not be written, if it is still ours: the disk may take writes
        again, or the conflicting write was our own."""
        key = scope, task_id

        async def resume() -> None:
            try:
                head = await self._store.head(scope, task_id)
                is_resting = head is None or head.standing.state.is_resting
                if head is None or is_resting or await self._live.is_elsewhere(head):
                    self._retries.pop(key, None)
                else:
                    await self.worker_of(head)
                self._claimed_from.pop(key, None)
            except Exception:
                # We hold it, so no other process will.
                logger.exception("task %s cannot go on yet", task_id)
                self._retry_later(scope, task_id)

        def begin() -> None:
            if not self._live.is_stopped:
                self._live.in_background(resume())

        # With growing pauses: each time the code repeats what is not recorded.
        tries = self._retries[key] = self._retries.get(key, 0) + 1
        pause = RETRY_AFTER * min(2 ** max(0, tries - 3), 30)
        asyncio.get_running_loop().call_later(pause, begin)

    # Ending

    def _withdraw(
        self, log: TaskLog, replay: Replay | None, state: TaskState, sentence: str
    ) -> None:
        """End a task that no code works on, and call off what its code gave to others."""
        if replay is not None and not log.is_over:
            self._code.withdraw(replay)
        self._end(log, replay, state, sentence)

    def _end(self, log: TaskLog, replay: Replay | None, state: TaskState, sentence: str) -> None:
        """End a task that no code works on."""
        update, at = status_update(log, state, [Part(text=sentence)])

        def let_go() -> None:
            self._live.drop(log)
            if log.failure is not None:
                self._retry_later(log.scope, log.task_id)

        # With `on_idle` set, a worker is about to end and lets go of the log itself.
        if log.on_idle is None:
            log.on_idle = let_go
        try:
            log.emit(update, at=at)
            if tracing.per_event:
                trace = None if replay is None else replay.trace
                trace_event(log, update, trace or tracing.of_task(log.task_id))
        except TaskIsFinished:
            # It ended a moment ago, and that end stands.
            if log.on_idle is let_go:
                let_go()

    async def cancel(self, head: TaskRow, note: int = 0) -> None:
        """End a task as canceled: its code is asked to stop, and stopped if it does not."""
        worker = self._live.running(head.scope, head.task_id)
        if worker is None:
            log, replay = await self._opened(head)
            if self._live.running(head.scope, head.task_id) is not None:
                # Its code was started meanwhile.
                return await self.cancel(head, note)
            if log is None:
                return
            if note:
                log.use_note(note)
            self._withdraw(log, replay, TaskState.CANCELED, CANCELED)
            await log.durable(log.seq)
            return
        log = worker.log
        if not worker.is_cancelled:
            if note:
                log.use_note(note)
            # On record, so that a process that takes the task over ends it. If the task ended a
            # moment ago, its end is awaited below.
            with contextlib.suppress(TaskIsFinished):
                log.emit(CancelRequested())
            worker.cancel()
        try:
            async with asyncio.timeout(self._context.settings.engine.cancel_grace):
                while not (log.is_over and log.is_idle):
                    await log.rest()
        except TimeoutError:
            worker.end(TaskState.CANCELED, CANCELED)
            await log.durable(log.seq)

    # Sweeping

    async def sweep(self) -> int:
        """Take over tasks of dead workers and end what is overdue; return how many were taken."""
        count = 0
        if self._lapses != self._store.lapses:
            self._lapses = self._store.lapses
            self._doubtful.update(self._live.logs)
        await self._give_up_lost()
        name = self._code.name
        while claimed := await self._store.claim(name, _CLAIM_AT_ONCE):
            with self._live.isolation.gathering():
                await self._revive_all(claimed)
            count += len(claimed)
            figures.takeovers.add(name, by=len(claimed))
            logger.info("took over %d tasks that no process held any more", len(claimed))
        for head in await self._store.overdue(name, self._clock.now()):
            try:
                await self._end_overdue(head)
            except Exception:
                # The others are overdue too.
                logger.exception("task %s is overdue and cannot be ended yet", head.task_id)
        return count

    async def _revive_all(self, claimed: Sequence[tuple[TaskRow, int]]) -> None:
        waiting = iter(claimed)

        async def revive_next() -> None:
            for head, held_by in waiting:
                await self._revive_claimed(head, held_by)
                # Callers have their turn between thousands of tasks.
                await asyncio.sleep(0)

        # Several logs are read at once where each read is a way to another machine and back.
        lanes = _LANES if self._store.is_far else 1
        await asyncio.gather(*(revive_next() for _ in range(lanes)))

    async def _revive_claimed(self, head: TaskRow, held_by: int) -> None:
        try:
            # A message may have come for it since it was claimed, and started it.
            if self._live.running(head.scope, head.task_id) is None:
                await self._revived(head, held_by)
        except Exception:
            # One task that cannot be taken over must not keep the others from going on.
            logger.exception("task %s cannot be taken over", head.task_id)
            self._claimed_from[task_key(head)] = held_by
            self._retry_later(head.scope, head.task_id)

    async def _give_up_lost(self) -> None:
        """Let go of tasks that others took over after our lease ended, and of those that they may
        take over at any time because the number is gone under which we held them. A log that was
        written to while its row was read is looked at again with the next sweep: the row may be
        older than what we wrote."""
        for log in list(self._doubtful):
            if log.is_retired or log.failure is not None:
                self._doubtful.discard(log)
                continue
            seq = log.seq
            # What is under way may be the last that we write under the number that is gone.
            if not log.is_idle:
                continue
            head = await self._store.head(log.scope, log.task_id)
            is_lost = head is not None and (log.is_lost(head) or not await self._is_ours(head))
            if log.seq != seq:
                continue
            self._doubtful.discard(log)
            if is_lost:
                log.fail(StoreConflict("another worker has the task"))

    async def _is_ours(self, head: TaskRow) -> bool:
        return head.holder in (0, self._store.worker) or await self._store.is_live(head.holder)

    async def _end_overdue(self, head: TaskRow) -> None:
        now = self._clock.now()
        worker = self._live.running(head.scope, head.task_id)
        if worker is not None:
            # Otherwise a question of the code is overdue, which the code gives up itself.
            if 0 < worker.deadline <= now:
                worker.end(TaskState.FAILED, OVERDUE)
            return
        if await self._live.is_elsewhere(head):
            return
        replay = await read_replay(self._store, head.number)
        if replay is not None and not 0 < replay.deadline <= now:
            # A question was not answered in time: the code continues without an answer.
            await self._revived(head, head.holder)
        elif (log := await self.resumed_log(head)) is not None:
            self._withdraw(log, replay, TaskState.FAILED, OVERDUE)


def plan_further(
    code: AgentCode, operation: SendMessage, replay: Replay, log: TaskLog | None
) -> Plan:
    """Return what a further message is for. Code that asked gets any message that comes."""
    if log is not None:
        is_answer = not log.is_active or replay.is_reply(operation.message)
        return code.plan(operation, replay.began, is_answer=is_answer)
    try:
        return code.plan(operation, replay.began)
    except InvalidParams:
        return code.plan(operation, replay.began, is_answer=True)


async def _no_reply(reply: Message) -> Message:
    """Return a reply unrecorded: a task that exists does not end in a bare message."""
    return reply
