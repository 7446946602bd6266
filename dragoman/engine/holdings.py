"""The tasks this process holds: their logs, the workers on them, and how tasks come and go.

A task is started here by a message, or taken over from a worker whose lease ended. Either way its
code begins with what the log says is done. Only the holder of a task writes its log; what another
process has to say to it comes as a note.
"""

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.engine.event_hooks import HookCalls
from dragoman.engine.hooked_log import LogHooks
from dragoman.engine.isolation import Isolation
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.log import Bell, Limits, LogIsFull, TaskLog, read_task
from dragoman.engine.replay import Replay, read_replay
from dragoman.engine.shares import Shares
from dragoman.engine.withholding import kept, placeholder
from dragoman.engine.worker import (
    CANCELED,
    FAILED,
    AgentCode,
    Plan,
    Worker,
    status_update,
    trace_event,
)
from dragoman.errors import (
    A2AError,
    InvalidParams,
    Overloaded,
    RateLimited,
    StoreConflict,
    StoreRefused,
    TaskFailed,
)
from dragoman.model.clock import Clock
from dragoman.model.events import AttemptStarted, CancelRequested, MessageAdded
from dragoman.model.identity import Caller, Principal, Scope, TaskId, Who, new_id
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.model.record import TaskReading, encode
from dragoman.model.task import OVERDUE, TaskState
from dragoman.stores.interface import Head, Note, Store, died_alone
from dragoman.telemetry import figures, logs, tracing

logger = logging.getLogger("dragoman")

# Seconds until a task whose disk failed is tried again.
RETRY_AFTER = 2.0
_CLAIM_AT_ONCE = 256
Key = tuple[Scope, bytes]
# Callers of 0.x may name their tasks, so two of them may have tasks of one name.
Held = tuple[Scope, TaskId]


class NoteBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process says to another about a task: a message, or that it is to end."""

    operation: SendMessage | None = None
    # What its sender's credential grants.
    scopes: list[str] = []

    def encoded(self) -> bytes:
        """Return it as it is stored."""
        return encode(self)

    @staticmethod
    def decoded(body: bytes) -> "NoteBody":
        """Return what was stored."""
        return _decode_note(body)


_decode_note = msgspec.json.Decoder(NoteBody).decode


def _held(task: Head | TaskLog) -> Held:
    return task.scope, task.task_id


class Holdings:
    """Logs and workers by task."""

    def __init__(
        self,
        code: AgentCode,
        store: Store,
        settings: Settings,
        clock: Clock,
        shares: Shares,
        isolation: Isolation | None = None,
        hooks: HookCalls | None = None,
        *,
        is_local: bool = False,
    ) -> None:
        self._hooks = hooks or HookCalls()
        self._code = code
        self._is_local = is_local
        self._store = store
        self._settings = settings
        self._clock = clock
        self._shares = shares
        self.bell = Bell()
        self._limits = Limits(settings.max_events, settings.max_task_bytes)
        self._logs: dict[Held, TaskLog] = {}
        self._workers: dict[Held, Worker] = {}
        # How many of them each principal has.
        self._of_principal: Counter[Principal] = Counter()
        # Messages whose keys may not be in the store yet: who has each, and its place in the log.
        self._arriving: dict[Key, tuple[Worker, int]] = {}
        self._reviving: dict[Held, asyncio.Task[Worker | None]] = {}
        self._later: set[asyncio.Task[None]] = set()
        # How often each task could not be written.
        self._retries: dict[Held, int] = {}
        # Notes dealt with that are still in the store, each with the log whose write takes it out;
        # None: none will.
        self._noted: dict[int, TaskLog | None] = {}
        self._reading_notes = asyncio.Lock()
        self._lapses = store.lapses
        self._is_stopped = False
        # Shared by all agents of the process.
        self._isolation = isolation or Isolation(settings.suspect_seconds)
        self._isolation.watch(self._workers)
        self._watched = [
            figures.tasks_running.watch(self._running_now, code.name),
            figures.messages_waiting.watch(self._waiting_now, code.name),
        ]
        store.listen(self._others_wrote)

    # What there is

    def _running_now(self) -> float:
        return len(self._workers)

    def _waiting_now(self) -> float:
        # A copy: whoever asks may be in another thread.
        return sum(worker.queued for worker in list(self._workers.values()))

    def get(self, scope: Scope, task_id: TaskId) -> TaskLog | None:
        """Return the log of a task that is being written here."""
        return self._logs.get((scope, task_id))

    @property
    def live(self) -> int:
        """How many tasks are here."""
        return len(self._workers)

    def running(self, scope: Scope, task_id: TaskId) -> Worker | None:
        """Return the worker of a task, if its code is under way."""
        worker = self._workers.get((scope, task_id))
        return worker if worker is not None and worker.is_running else None

    def arriving(self, key: Key) -> tuple[Worker, int] | None:
        """Return the worker that a message was given to a moment ago, and its place in the log."""
        return self._arriving.get(key)

    def is_elsewhere(self, head: Head) -> bool:
        """Tell whether another process holds a task and lives."""
        return (
            head.holder not in (0, self._store.worker)
            and _held(head) not in self._workers
            and self._store.is_live(head.holder)
        )

    def fresh_log(self, scope: Scope, message: Message, task_id: TaskId, who: Who) -> TaskLog:
        """Return the log of a task that is about to begin, and whom it counts for."""
        log = TaskLog(
            self._store,
            self.bell,
            self._limits,
            scope=scope,
            task_id=task_id,
            context_id=message.context_id,
            shares=self._shares,
            account=self._shares.account(who),
        )
        if self._hooks.is_on:
            log.hooks = LogHooks(self._hooks, log)
        return log

    # Coming and going

    def add(self, worker: Worker, key: Key | None, seq: int = 1) -> None:
        """Have a worker found from here on, by its task and its message."""
        log = worker.log
        held = _held(log)
        self._logs[held] = log
        if held not in self._workers:
            self._of_principal[log.principal] += 1
        self._workers[held] = worker
        if key is not None:
            self._arriving[key] = worker, seq
            worker.keys.append(key)

    def start(self, worker: Worker) -> None:
        """Start a worker and let go of it when its task rests and nothing is left to write."""
        log = worker.log

        def retire() -> None:
            if worker.is_running and log.failure is not None:
                # Nothing it does can be recorded; its end comes back here.
                worker.dismiss()
                return
            if worker.is_running or not (log.is_idle or log.failure or log.is_held):
                return
            if log.failure is not None:
                self._try_again_later(log.scope, log.task_id)
            else:
                self._retries.pop(_held(log), None)
            self.forget(worker)
            # Otherwise each task leaves a ring behind that only the collector finds, and that
            # stops the loop for as long as it looks.
            log.on_idle = worker.on_end = log.on_refused = None

        log.on_idle = worker.on_end = retire
        if log.hooks is not None:
            log.on_refused = functools.partial(worker.end, TaskState.FAILED)
        if worker.is_suspect:
            self._isolation.suspect(worker)
        if worker.is_suspect or self._isolation.is_on:
            worker.gate = self._isolation.enter
        worker.start()

    def forget(self, worker: Worker) -> None:
        """Let go of a worker and, unless a successor has it, of its log."""
        log = worker.log
        held = _held(log)
        if self._workers.get(held, worker) is worker:
            if self._workers.pop(held, None) is not None:
                self._leave(log.principal)
            if self._logs.get(held) is log:
                del self._logs[held]
            log.is_retired = True
        if log.is_held:
            # There was no task after all; whoever waits for its first write is told so.
            log.on_idle = None
            log.fail(StoreRefused("there is no task"))
        for key in worker.keys:
            self._arriving.pop(key, None)

    def _leave(self, principal: Principal) -> None:
        self._of_principal[principal] -= 1
        if not self._of_principal[principal]:
            del self._of_principal[principal]

    def make_room(self, principal: Principal) -> None:
        """Refuse what is too much, for us or for one principal; code that only waits for its
        caller makes way."""
        if len(self._workers) >= self._settings.max_live_tasks:
            self._dismiss_one(None, Overloaded())
        # Where nobody is asked who they are, all are one, and have what there is.
        most = self._settings.max_tasks_per_caller
        if principal.owner and self._of_principal[principal] >= most:
            self._dismiss_one(principal, RateLimited("Too many tasks are running"))

    def _dismiss_one(self, principal: Principal | None, otherwise: Overloaded) -> None:
        for worker in self._workers.values():
            is_theirs = principal is None or worker.log.principal == principal
            if is_theirs and worker.is_running and worker.log.is_idle and not worker.log.is_active:
                worker.dismiss()
                return
        raise otherwise

    def stop(self) -> None:
        """Let go of running tasks; another process takes them over."""
        self._is_stopped = True
        self._isolation.stop(self._workers)
        for forget in self._watched:
            forget()
        for worker in list(self._workers.values()):
            worker.abandon()
        for task in (*self._later, *self._reviving.values()):
            task.cancel()
        self._workers.clear()
        self._of_principal.clear()
        self._logs.clear()

    def soon(self, deed: Coroutine[Any, Any, None]) -> None:
        """Do something beside what the caller waits for; it ends with the process at the latest."""

        async def run() -> None:
            try:
                await deed
            except StoreRefused as error:
                logger.warning("put off: %s", error)
            except Exception:
                # Nobody waits for it, so nobody else would say so.
                logger.exception("what was to be done beside a request failed")

        task = asyncio.get_running_loop().create_task(run())
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        # It may be called off before it began.
        task.add_done_callback(lambda _: deed.close())

    # Reviving

    async def worker_of(self, head: Head) -> Worker | None:
        """Return the worker of a task, started if there is none; None if the task ended."""
        worker = self._workers.get(_held(head))
        if worker is not None and not worker.is_running:
            if worker.log.is_over:
                return None
            self.forget(worker)
            worker = None
        if worker is not None:
            return worker
        is_known = head.holder in (0, self._store.worker)
        # Who dies has more under way than what this message is for, as far as is known.
        return await self._revived(head, head.holder if is_known else -abs(head.holder))

    async def _revived(self, head: Head, held_by: int) -> Worker | None:
        """Start a task's code, once: whoever else wants that waits for the same."""
        held = _held(head)
        reviving = self._reviving.get(held)
        if reviving is None:
            reviving = asyncio.get_running_loop().create_task(self._revive(head, held_by))
            self._reviving[held] = reviving
            reviving.add_done_callback(lambda _: self._reviving.pop(held, None))
        # Others may wait for it too.
        return await asyncio.shield(reviving)

    async def resumed(self, head: Head) -> TaskLog | None:
        """Return the log of a stored task, ready to be written; None if there is no such task."""
        found: Head | None = head
        while found is not None:
            reading = await read_task(self._store, found.number)
            log = self._logs.get(_held(found))
            if log is not None:
                return log
            if reading is not None and reading.seq == found.standing.last_seq:
                log = self._resumed_log(found, reading)
                if found.holder != self._store.worker:
                    log.take_over()
                # Registered at once: whoever else wants it finds this log, not the store's state.
                self._logs[_held(found)] = log
                return log
            # It moved on between the two reads.
            found = await self._store.head(head.scope, head.task_id)
        return None

    def _resumed_log(self, head: Head, reading: TaskReading) -> TaskLog:
        account = self._shares.account(_caller(head.scope, frozenset()).who)
        log = TaskLog.resumed(
            self._store, self.bell, self._limits, head, reading, self._shares, account
        )
        if self._hooks.is_on:
            log.hooks = LogHooks(self._hooks, log, reading.task)
        return log

    async def _revive(self, head: Head, held_by: int) -> Worker | None:
        """Start the code of a stored task: its turn from the beginning, with what is done of it."""
        replay = await read_replay(self._store, head.number)
        log = await self.resumed(head)
        if log is None or replay is None or log.is_over:
            return None
        if (worker := self.running(head.scope, head.task_id)) is not None:
            return worker
        log.has_withheld = log.has_withheld or replay.has_withheld
        if replay.is_cancelled:
            self._code.withdraw(replay)
            self._end(log, replay, TaskState.CANCELED, CANCELED)
            return None
        if replay.deadline and replay.deadline <= self._clock.now():
            self._code.withdraw(replay)
            self._end(log, replay, TaskState.FAILED, OVERDUE)
            return None
        try:
            if log.is_active:
                self._count_attempt(log, replay, held_by)
            plan = self._code.plan(replay.messages[replay.turn], replay.began)
            waiting = [(place, self.plan_for(o, replay, None)) for place, o in replay.waiting]
        except (A2AError, TaskFailed, LogIsFull) as error:
            sentence = str(error) if isinstance(error, LogIsFull) else error.public
            self._end(log, replay, TaskState.FAILED, sentence)
            return None
        except StoreRefused:
            raise
        except Exception as error:
            # The author's code, which reads the message: it will do no better the next time.
            incident = new_id()
            message = "incident %s: agent code, task %s"
            logs.tell(logger, message, incident, log.task_id, error=error, incident=incident)
            self._end(log, replay, TaskState.FAILED, f"{FAILED} Incident {incident}.")
            return None
        caller = _caller(head.scope, replay.granted(replay.turn))
        worker = Worker(log, replay, plan, caller, self._clock, _no_reply, is_local=self._is_local)
        for place, further in waiting:
            worker.give(place, further, _caller(head.scope, replay.granted(place)))
        worker.decide()
        if not log.is_idle:
            # The attempt is on record before it is made, or code that takes the process with it at
            # once would be tried for ever.
            worker.begins_after = log.seq
        if log.is_active and held_by != 0:
            worker.is_suspect = replay.is_suspect and not replay.is_asleep(self._clock.now())
            worker.gate = self._isolation.enter
        self.add(worker, None)
        self.start(worker)
        return worker

    def _count_attempt(self, log: TaskLog, replay: Replay, held_by: int) -> None:
        """Note that a worker died on the task; give it up if that happened too often."""
        if held_by == 0:
            # It was let go in good order: nothing speaks against the code.
            return
        if held_by == self._store.worker:
            # The disk failed: no attempt, but the code waits until the disk takes this.
            log.emit(AttemptStarted(replay.attempt, counts=False))
            return
        is_asleep = replay.is_asleep(self._clock.now())
        is_alone = died_alone(held_by) or replay.alone_in == abs(held_by)
        is_charged = is_alone and not is_asleep
        if is_charged and replay.tries >= self._settings.max_attempts:
            raise TaskFailed(f"The agent did not finish in {replay.tries} attempts.")
        is_suspected = not (is_alone or is_asleep)
        started = AttemptStarted(
            replay.attempt + 1,
            counts=is_charged,
            suspected=is_suspected,
            caught=is_suspected and replay.turn_in == abs(held_by),
        )
        log.emit(started)
        replay.apply(started)

    def plan_for(self, operation: SendMessage, replay: Replay, log: TaskLog | None) -> Plan:
        """Return what a further message is for. Code that asked gets whatever comes."""
        if log is not None:
            is_answer = not log.is_active or replay.is_reply(operation.message)
            return self._code.plan(operation, replay.began, is_answer=is_answer)
        try:
            return self._code.plan(operation, replay.began)
        except InvalidParams:
            return self._code.plan(operation, replay.began, is_answer=True)

    def hand_over(self, worker: Worker, operation: SendMessage, plan: Plan, caller: Caller) -> int:
        """Record a further message and give it to the code; return the place in the log from which
        on the task is as the message leaves it."""
        log = worker.log
        is_withheld = worker.replay.is_discreet
        scopes = sorted(caller.scopes)
        if is_withheld:
            shown = msgspec.structs.replace(placeholder(operation), scopes=scopes)
            recorded = log.emit(shown, withheld=kept(operation))
        else:
            shown = MessageAdded(operation.message, operation.metadata, scopes=scopes)
            recorded = log.emit(shown)
        if not log.is_active:
            # In the same write: whoever waits for the task waits for what comes of this.
            working, at = status_update(log, TaskState.WORKING)
            recorded = log.emit(working, at=at)
            worker.observe(working)
        place = worker.replay.add(operation, withheld=is_withheld, scopes=caller.scopes)
        worker.give(place, plan, caller)
        return recorded.seq

    def _try_again_later(self, scope: Scope, task_id: TaskId) -> None:
        """Go on with a task that could not be written, if it is still ours: the disk may take
        writes again, or the one that was in our way was ourselves."""

        async def go_on() -> None:
            try:
                head = await self._store.head(scope, task_id)
                if head is None or head.standing.state.is_resting or self.is_elsewhere(head):
                    self._retries.pop((scope, task_id), None)
                    return
                await self.worker_of(head)
            except Exception:
                # We hold it, so nobody else will.
                logger.exception("task %s cannot go on yet", task_id)
                self._try_again_later(scope, task_id)

        def begin() -> None:
            if not self._is_stopped:
                self.soon(go_on())

        # Soon at first, then ever more seldom: each time the code does again what is not recorded.
        held = scope, task_id
        tries = self._retries[held] = self._retries.get(held, 0) + 1
        pause = RETRY_AFTER * min(2 ** max(0, tries - 3), 30)
        asyncio.get_running_loop().call_later(pause, begin)

    # Ending

    def _end(self, log: TaskLog, replay: Replay | None, state: TaskState, sentence: str) -> None:
        """End a task that no code works on."""
        update, at = status_update(log, state, [Part(text=sentence)])

        def let_go() -> None:
            held = _held(log)
            if self._logs.get(held) is log:
                del self._logs[held]
            log.is_retired = True
            if log.failure is not None:
                self._try_again_later(log.scope, log.task_id)

        if log.on_idle is None:
            log.on_idle = let_go
        # Else a worker is on its way out, and lets go of the log with itself.
        try:
            log.emit(update, at=at)
            if tracing.per_event:
                trace = None if replay is None else replay.trace
                trace_event(log, update, trace or tracing.of_task(log.task_id))
        except TaskIsFinished:
            # Whoever ended it a moment ago decides.
            if log.on_idle is let_go:
                let_go()

    async def end_undecided(self, worker: Worker, seconds: float) -> None:
        """End what is overdue before it is decided whether it is a task: no sweep would find it."""
        _, undecided = await asyncio.wait([worker.decision], timeout=seconds)
        if undecided:
            worker.end(TaskState.FAILED, OVERDUE)

    async def cancel(self, head: Head, note: int = 0) -> None:
        """End a task as canceled: its code is asked to stop, and stopped if it does not."""
        worker = self.running(head.scope, head.task_id)
        if worker is None:
            replay = await read_replay(self._store, head.number)
            log = await self.resumed(head)
            if self.running(head.scope, head.task_id) is not None:
                # Its code was begun anew meanwhile.
                return await self.cancel(head, note)
            if log is None:
                return
            if note:
                log.use_note(note)
            if replay is not None and not log.is_over:
                self._code.withdraw(replay)
            self._end(log, replay, TaskState.CANCELED, CANCELED)
            await log.durable(log.seq)
            return
        log = worker.log
        if not worker.is_cancelled:
            if note:
                log.use_note(note)
            # Whoever takes the task over, should we die here, is to end it. If it ended a moment
            # ago, that is what is awaited.
            with contextlib.suppress(TaskIsFinished):
                log.emit(CancelRequested())
            worker.cancel()
        try:
            async with asyncio.timeout(self._settings.cancel_grace):
                while not (log.is_over and log.is_idle):
                    await log.rest()
        except TimeoutError:
            worker.end(TaskState.CANCELED, CANCELED)
            await log.durable(log.seq)

    # Looking after things

    async def sweep(self) -> int:
        """Take over what the dead left, end what is overdue, read notes; return how many tasks were
        taken over."""
        count = 0
        if self._lapses != self._store.lapses:
            self._lapses = self._store.lapses
            await self._give_up_lost()
        while claimed := await self._store.claim(self._code.name, _CLAIM_AT_ONCE):
            with self._isolation.gathering():
                await self._revive_all(claimed)
            count += len(claimed)
            figures.takeovers.add(self._code.name, by=len(claimed))
            logger.info("took over %d tasks that nobody held any more", len(claimed))
        for head in await self._store.overdue(self._code.name, self._clock.now()):
            try:
                await self._end_overdue(head)
            except Exception:
                # The others are overdue too.
                logger.exception("task %s is overdue and cannot be ended yet", head.task_id)
        await self.take_notes()
        return count

    async def _revive_all(self, claimed: Sequence[tuple[Head, int]]) -> None:
        for head, held_by in claimed:
            try:
                # A message may have come for it since it was claimed, and started it.
                if self.running(head.scope, head.task_id) is None:
                    await self._revived(head, held_by)
            except Exception:
                # One task that cannot be taken over must not keep all others from going on.
                logger.exception("task %s cannot be taken over", head.task_id)
                self._try_again_later(head.scope, head.task_id)
            # Thousands of them must not keep the first callers waiting.
            await asyncio.sleep(0)

    async def _give_up_lost(self) -> None:
        """Let go of tasks that others took over while they thought us dead."""
        for log in list(self._logs.values()):
            head = await self._store.head(log.scope, log.task_id)
            if head is not None and log.is_lost(head):
                log.fail(StoreConflict("another worker has the task"))

    async def _end_overdue(self, head: Head) -> None:
        now = self._clock.now()
        worker = self.running(head.scope, head.task_id)
        if worker is not None:
            # Else a question of its is, which it gives up itself.
            if 0 < worker.deadline <= now:
                worker.end(TaskState.FAILED, OVERDUE)
            return
        if self.is_elsewhere(head):
            return
        replay = await read_replay(self._store, head.number)
        if replay is not None and not 0 < replay.deadline <= now:
            # A question that nobody answered in time: the code goes on without an answer.
            await self._revived(head, head.holder)
        elif (log := await self.resumed(head)) is not None:
            if replay is not None and not log.is_over:
                self._code.withdraw(replay)
            self._end(log, replay, TaskState.FAILED, OVERDUE)

    def _others_wrote(self) -> None:
        if not self._is_stopped:
            self.bell.ring_all()
            if not self._reading_notes.locked():
                self.soon(self.take_notes())

    async def take_notes(self) -> None:
        """Deal with what other processes left for the tasks held here."""
        async with self._reading_notes:
            seen: set[int] = set()
            for head in await self._store.noted(self._code.name):
                for note in await self._store.notes(head.number):
                    seen.add(note.number)
                    log = self._noted.get(note.number)
                    if note.number not in self._noted or (log is not None and log.failure):
                        try:
                            await self._take_note(head, note)
                        except Exception:
                            # The others wait too; this one is looked at again after a restart.
                            logger.exception("a note for task %s cannot be read", head.task_id)
            # What is gone from the store is dealt with.
            self._noted = {number: log for number, log in self._noted.items() if number in seen}

    async def _take_note(self, head: Head, note: Note) -> None:
        body = NoteBody.decoded(note.body)
        operation = body.operation
        self._noted[note.number] = None
        if operation is None:
            self.soon(self._cancel_noted(head, note.number))
            return
        try:
            worker = await self.worker_of(head)
            if worker is None:
                raise TaskIsFinished
            if worker.queued >= self._settings.max_queued_messages:
                # Its caller waits until there is room, and is told if there is none.
                del self._noted[note.number]
                return
            # It was checked where it came in; what it is for is decided as after a crash.
            plan = self.plan_for(operation, worker.replay, None)
            worker.log.use_note(note.number)
            caller = _caller(head.scope, frozenset(body.scopes))
            self.hand_over(worker, operation, plan, caller)
            self._noted[note.number] = worker.log
        except (StoreRefused, TaskIsFinished):
            # Its end may not be written yet, and may never be: the next look tells.
            del self._noted[note.number]
        except (A2AError, LogIsFull) as error:
            logger.warning("a message to task %s cannot be taken in: %s", head.task_id, error)

    async def _cancel_noted(self, head: Head, number: int) -> None:
        try:
            await self.cancel(head, number)
        except StoreRefused:
            # The next look at the notes finds it again.
            self._noted.pop(number, None)
            raise


def _caller(scope: Scope, scopes: frozenset[str]) -> Caller:
    """Return whose task it is, as far as that is kept: of further messages that are read again,
    what their senders' credentials granted is not."""
    return scope.caller(scopes)


async def _no_reply(reply: Message) -> Message:
    """A task that exists does not end in a bare message."""
    return reply
