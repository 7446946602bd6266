"""Runs an agent's code on one task and records what it does.

A worker belongs to one task. It gives the code one message after another until none waits, and
whatever the code does, the task reaches a resting point: a sentence for the caller, and for the
operator an incident with the cause.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType
from typing import NoReturn

import msgspec

from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.log import LogIsFull, TaskLog
from dragoman.engine.running.author_code import AuthorRun, author, owner_in
from dragoman.engine.running.chunks import HeldChunks
from dragoman.engine.running.failures import FAILED, outcome, report_incident
from dragoman.engine.running.inbox import Inbox
from dragoman.engine.running.questions import Questions
from dragoman.engine.running.replay import (
    CodeChanged,
    RecalledStep,
    Replay,
)
from dragoman.engine.running.reply_decision import A_TASK, ReplyDecision
from dragoman.engine.running.turn_ends import Ended, TaskCompleted, TaskEnded, TaskWaits
from dragoman.engine.running.withholding import encode_withheld, placeholder
from dragoman.engine.task_events import (
    CANCELED,
    observe,
    status_update,
    turn_span,
)
from dragoman.errors import (
    A2AError,
    InternalError,
    StoreRefused,
    StoreUnavailable,
    TaskFailed,
    TaskRejected,
)
from dragoman.model.artifact import Artifact
from dragoman.model.clock import Clock
from dragoman.model.events import (
    NO_EXTENSIONS,
    NO_METADATA,
    ArtifactUpdate,
    AttemptStarted,
    Event,
    MessageAdded,
    StepKind,
    StepRecorded,
    TurnBegan,
)
from dragoman.model.identity import Caller, Scope
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.operations import SendMessage
from dragoman.model.order import Order
from dragoman.model.record import Recorded
from dragoman.model.task import TaskState
from dragoman.telemetry import figures, tracing
from dragoman.telemetry.tracing import Here, Span

logger = logging.getLogger("dragoman")

# Seconds within which a loop that cancels its tasks ends.
LOOP_ENDS_WITHIN = 3.0


class Plan(msgspec.Struct, frozen=True):
    """What an agent will do with a message: decided, checked, not begun."""

    run: "Callable[[Worker], Awaitable[Message | None]]"
    # Whether the code may answer with a message instead of a task.
    may_reply: bool = False
    # Seconds a task that begins with it has; None: as many as it needs.
    deadline: float | None = None
    # How many tasks it counts as: one for each agent that works on it at once.
    tasks: int = 1
    # What a task that begins with it means to the ledger.
    order: Order | None = None
    # Whether the code may begin before the task is on disk, and so before it is certain that no
    # other process was given the same message: what both do takes effect once.
    may_begin_early: bool = False
    # The name of the skill, if it is one.
    name: str = ""


class Worker:
    """One task being worked on."""

    # Set here and not in the constructor: one is made for each task.
    is_cancelled = False
    # The event that has to be durable before the code begins, what else the code waits for, and
    # whether it has begun.
    begins_after = 0
    gate: "Callable[[Worker], Awaitable[None]] | None" = None
    is_begun = False
    # Whether its code was started, be it to wait.
    is_started = False
    # Whether its code may have ended processes.
    is_suspect = False
    _is_dismissed = False
    # By place, what further messages are for and who sent them.
    _further: dict[int, tuple[Plan, Caller]] | None = None
    # What the code asked and has no answer to yet; made when it asks.
    _questions: Questions | None = None
    # The latest event that says where the task was forwarded to.
    forwarded_event: Recorded | None = None
    _artifacts = 0
    # The chunks that may be the last of their artifacts; made with the first.
    _chunks: HeldChunks | None = None
    # Whether there is a task, or only a reply; that it is decided is here too, because each event
    # asks for it.
    decision = A_TASK
    is_decided = True
    _why_no_reply: StoreRefused | None = None
    # Why the code cannot go on, even if it swallows the exception.
    _changed = ""
    _run: AuthorRun | None = None
    # Whether some of the code tried to end the process.
    _is_given_up = False
    on_end: Callable[[], None] | None = None
    # The turn that is under way, while it is traced.
    span: Span | None = None

    def __init__(
        self,
        log: TaskLog,
        replay: Replay,
        plan: Plan,
        caller: Caller,
        clock: Clock,
        keep: Callable[[Message], Awaitable[Message]],
        *,
        is_local: bool = False,
    ) -> None:
        """`keep` stores a reply without a task; `is_local`: only this machine reaches us."""
        self.log = log
        self._is_local = is_local
        self.replay = replay
        self._keep = keep
        self.operation = replay.messages[replay.turn]
        self.caller = caller
        self.clock = clock
        self.plan = plan
        self._inbox = Inbox()
        # Keys of the messages it was given, for as long as the store may not have them.
        self.keys: list[tuple[Scope, bytes]] = []
        if plan.may_reply:
            self.is_decided = False
            self.decision = ReplyDecision()

    @property
    def message(self) -> Message:
        """The message being worked on."""
        return self.operation.message

    @property
    def metadata(self) -> Metadata:
        """The request's metadata."""
        return self.operation.metadata

    @property
    def may_know(self) -> bool:
        """Whether the caller may learn which addresses of this machine could not be reached."""
        return self.caller.operates(is_local=self._is_local)

    @property
    def attempt(self) -> int:
        """How often the task was begun."""
        return self.replay.attempt

    @property
    def deadline(self) -> int:
        """When the task has to have ended, in milliseconds; 0: at any time."""
        return self.replay.deadline

    @property
    def queued(self) -> int:
        """How many messages wait."""
        return len(self._inbox.places)

    @property
    def is_waiting(self) -> bool:
        """Whether the code asked its caller something and has no answer yet."""
        if self._questions is not None and self._questions.are_open:
            return True
        return self._inbox.is_awaited

    @property
    def is_running(self) -> bool:
        """Whether the author's code is under way, be it waiting for its caller, or about to begin
        once its task is recorded."""
        if self._is_dismissed:
            return False
        return not self.is_started or (self._run is not None and not self._run.done())

    @property
    def is_at_work(self) -> bool:
        """Whether the author's code is doing something: it has begun, and neither waits for its
        caller nor sleeps."""
        if not (self.is_begun and self.is_running and self.log.is_active):
            return False
        return not self.replay.is_asleep(self.clock.now())

    def start(self) -> None:
        """Begin; the code's first slice runs before anything is written."""
        self.is_started = True
        self._run = run = AuthorRun(self._work(), loop=self.log.loop)
        run.owner = self
        run.add_done_callback(self._ended)
        if self.is_cancelled:
            # While its task was being recorded.
            self._interrupt()

    def give(self, place: int, plan: Plan, caller: Caller) -> None:
        """Queue one more of the task's messages."""
        if self._further is None:
            self._further = {}
        self._further[place] = plan, caller
        self._inbox.put(place)
        if self._questions is not None:
            self._questions.arrived()

    def take(self, place: int) -> None:
        """Make a further message the one that the code works on."""
        assert self._further is not None, "it was given"
        self.plan, self.caller = self._further[place]
        self.operation = self.replay.messages[place]

    def add_message(self, operation: SendMessage, plan: Plan, caller: Caller) -> int:
        """Record a further message and give it to the code; return the position from which on the
        task is as the message leaves it."""
        log = self.log
        is_withheld = self.replay.is_discreet
        scopes = sorted(caller.scopes)
        if is_withheld:
            shown = msgspec.structs.replace(placeholder(operation), scopes=scopes)
            recorded = log.emit(shown, withheld=encode_withheld(operation))
        else:
            recorded = log.emit(MessageAdded(operation.message, operation.metadata, scopes=scopes))
        if not log.is_active:
            # In the same write: a caller that waits for the task waits for what comes of this.
            working, at = status_update(log, TaskState.WORKING)
            recorded = log.emit(working, at=at)
            if self.span is not None:
                observe(self.span, log, working)
        place = self.replay.add(operation, withheld=is_withheld, scopes=caller.scopes)
        self.give(place, plan, caller)
        return recorded.seq

    def cancel(self) -> None:
        """Ask the code to stop: a flag that it may read, `CancelledError` where it awaits."""
        self.is_cancelled = True
        self._interrupt()

    def abandon(self) -> None:
        """Stop and record nothing: the process ends and the task goes on in the next one."""
        self.on_end = None
        if self._chunks is not None:
            self._chunks.drop()
        self.log.fail(StoreRefused("the server is stopping"))
        self._interrupt()

    def dismiss(self) -> None:
        """Stop code that waits for its caller; the next message starts it afresh."""
        self._is_dismissed = True
        self._interrupt()

    def give_up(self, error: BaseException) -> None:
        """End the task: some of its code tried to end the process."""
        if not self._is_given_up:
            self._is_given_up = True
            self._incident(FAILED, error)
            self._interrupt()

    def _interrupt(self) -> None:
        if self._run is not None:
            self._run.interrupt()
        # Code in a thread waits outside the run: without this its thread would never end.
        self._inbox.interrupt()
        if self._questions is not None:
            self._questions.interrupt()

    # Called by the author's code, through its turn

    def decide(self) -> None:
        """There will be a task: from here on everything is recorded."""
        if not self.is_decided:
            self.is_decided = True
            self.decision.make()
            self.log.release()
            self._begin()

    def _begin(self) -> None:
        """Say that the work began, once."""
        if self.log.draft is not None and self.log.draft.state is TaskState.SUBMITTED:
            self.status(TaskState.WORKING)

    def status(
        self,
        state: TaskState,
        parts: list[Part] | None = None,
        metadata: Metadata | None = None,
        references: Sequence[str] = (),
    ) -> Recorded:
        """Record a status, optionally with something the agent says."""
        if not self.is_decided:
            self.decide()
        return self.emit(*status_update(self.log, state, parts, metadata, references))

    def say(
        self,
        parts: list[Part],
        metadata: Metadata | None = None,
        references: Sequence[str] = (),
    ) -> None:
        """Record a message of the agent, and the tasks that it refers to. While a question is open,
        the task keeps its state."""
        draft = self.log.draft
        state = TaskState.WORKING
        if self.is_waiting and draft is not None and draft.state.is_interrupted:
            state = draft.state
            parts, metadata = self.questions.beside(parts, metadata)
        self.status(state, parts, metadata, references)

    def artifact(self, artifact: Artifact, *, append: bool = False, last: bool = True) -> Recorded:
        """Record an artifact or a chunk of one."""
        if not self.is_decided:
            self.decide()
        log = self.log
        return self.emit(ArtifactUpdate(log.task_id, log.context_id, artifact, append, last))

    def chunk(self, artifact: Artifact, *, append: bool) -> None:
        """Record a chunk of an artifact that may be its last: it is held back for a moment."""
        if not self.is_decided:
            self.decide()
        log, chunks = self.log, self._chunks or self._hold_chunks()
        chunks.put(ArtifactUpdate(log.task_id, log.context_id, artifact, append, False))

    def next_chunk(self, artifact_id: str, parts: list[Part]) -> None:
        """Record one more chunk of an artifact, in the same way."""
        log = self.log
        if log.transform is not None or log.on_recorded is not None:
            # A hook may change it in place.
            self.chunk(Artifact(artifact_id, parts), append=True)
            return
        if not self.is_decided:
            self.decide()
        none, chunks = NO_METADATA, self._chunks or self._hold_chunks()
        artifact = Artifact(artifact_id, parts, "", "", none, NO_EXTENSIONS, none)
        chunks.put(ArtifactUpdate(log.task_id, log.context_id, artifact, True, False, none, none))

    def _hold_chunks(self) -> HeldChunks:
        """Return what holds chunks back, from the first one on."""
        self._chunks = HeldChunks(partial(self.emit, is_held_chunk=True), self._fail_outside)
        return self._chunks

    def close_artifact(self, artifact_id: str) -> bool:
        """Mark the latest chunk as the last one; False: it is out already."""
        return self._chunks is not None and self._chunks.close(artifact_id)

    def _fail_outside(self, error: BaseException) -> None:
        """End the task with what recording raised while none of the code waited for it."""
        self._conclude(error)
        self._interrupt()

    async def keep_pace(self) -> None:
        """Wait for the disk if the code runs too far ahead of it, and for its turn beside others
        whose code does."""
        log, chunks = self.log, self._chunks
        if not log.is_full:
            return
        if chunks is not None:
            chunks.pause()
        try:
            await log.durable(log.seq)
            await log.shares.turn(log.account, log.agent)
        finally:
            if chunks is not None:
                chunks.resume()

    def artifact_id(self) -> str:
        """Return an id for the turn's next artifact: the same one if the turn runs again, so that
        what a dead attempt left is replaced and not doubled."""
        self._artifacts += 1
        place = f"{self.log.task_id}\n{self.replay.turn}\n{self._artifacts}"
        return hashlib.blake2b(place.encode(), digest_size=16).hexdigest()

    # Durable steps

    @property
    def questions(self) -> Questions:
        """What the code asks its caller."""
        if self._questions is None:
            self._questions = Questions(self.log, self.replay, self._inbox.places)
        return self._questions

    def recall(self, kind: StepKind, name: str, place: int | None = None) -> RecalledStep:
        """Return the place of the code's next step, and the step if it was done already."""
        if self._changed:
            # Code that swallowed the first refusal does nothing more.
            raise TaskFailed(self._changed)
        for failure in self.replay.failures(kind, name):
            self.note(failure)
        try:
            return self.replay.recall(kind, name, place)
        except CodeChanged as change:
            raise self.refusal(change) from None

    def refusal(self, change: CodeChanged) -> TaskFailed:
        """Return why the code cannot go on; the task fails with it whatever the code does next."""
        self._changed = self._changed or str(change)
        return TaskFailed(self._changed)

    async def remember(
        self,
        kind: StepKind,
        index: int,
        name: str,
        value: msgspec.Raw,
        spent: float = 0.0,
        took: int = 0,
    ) -> None:
        """Record a step; once this returns it will not be done again."""
        at = self.log.now()
        self.note(StepRecorded(kind, index, name, value, spent, at=at, took=took))
        await self.log.durable(self.log.seq)

    def note(self, event: TurnBegan | StepRecorded, withheld: bytes = b"") -> Recorded:
        """Record what the code does."""
        self.decide()
        recorded = self.emit(event, withheld=withheld)
        self.replay.apply(event)
        return recorded

    async def mark_turn(self, *, is_on: bool, is_alone: bool = False) -> None:
        """Record that it is the turn of this suspect, and whether nothing else runs beside it; or
        that its turn is over."""
        turn_in = self.log.worker if is_on else 0
        alone_in = turn_in if is_alone else 0
        event = AttemptStarted(self.attempt, counts=False, alone_in=alone_in, turn_in=turn_in)
        self.emit(event)
        self.replay.apply(event)
        await self.log.durable(self.log.seq)

    async def wait_until_stored(self) -> None:
        """Wait until the task is on disk: only then can anything be withheld from its log."""
        self.decide()
        await self.log.durable(1)

    def emit(
        self, event: Event, at: int = 0, withheld: bytes = b"", *, is_held_chunk: bool = False
    ) -> Recorded:
        """Let an event happen."""
        if self._chunks is not None and not is_held_chunk:
            # The chunks that come before it: readers see them in this order, and a step is not on
            # record before what was written until then.
            is_artifact = isinstance(event, ArtifactUpdate)
            self._chunks.release(event.artifact.artifact_id if is_artifact else "")
        if self._is_dismissed:
            # The log may have another worker; what this one does on its way out is void.
            raise Ended
        try:
            recorded = self.log.emit(event, at, withheld)
        except TaskIsFinished:
            raise Ended from None
        except LogIsFull as full:
            self.exceed(str(full))
        if self.span is not None:
            observe(self.span, self.log, event)
        return recorded

    def exceed(self, reason: str) -> NoReturn:
        """End a task that reached a limit, whatever its code makes of the exception."""
        self.end(TaskState.FAILED, reason)
        raise Ended

    async def _work(self) -> None:
        """The border around the author's code: no exception of any class passes it, except our own
        cancellation."""
        # The trace of the task, whatever request or sweep started this run.
        tracing.here.set(Here(self.replay.trace, self.log.task_id, self.log.agent))
        author.set(self)
        try:
            if self.begins_after:
                await self.log.durable(self.begins_after)
            if self.gate is not None:
                await self.gate(self)
            self.is_begun = True
            reply = await self._serve_messages()
            if reply is not None:
                self._end_span()
                kept = await self._keep(reply)
                if not self.is_decided:
                    self.is_decided = True
                    self.decision.make(kept)
        except BaseException as error:
            if self._passes(error):
                raise
            try:
                self._conclude(error)
            except BaseException as problem:
                # The exception itself cannot be inspected.
                self._incident(FAILED, problem)
        finally:
            if self.span is not None:
                self._end_span()
            # The context of the task outlives it, and would hold the worker.
            author.set(None)

    def _passes(self, error: BaseException) -> bool:
        """Tell whether an exception is ours: the engine stopped the code, or the process ends and
        closes it."""
        if isinstance(error, GeneratorExit):
            return not self._is_current()
        run = self._run
        if run is None or self.is_cancelled or not isinstance(error, asyncio.CancelledError):
            return False
        return run.is_interrupted or run.is_cancelled_outside

    def _is_current(self) -> bool:
        try:
            return asyncio.current_task() is self._run
        except RuntimeError:
            return False

    def _conclude(self, error: BaseException) -> None:
        """Record the outcome of code that raised."""
        if isinstance(error, Ended | StoreRefused):
            logger.info("task %s ended elsewhere; its worker stops", self.log.task_id)
            if isinstance(error, StoreRefused) and not self.is_decided:
                # The caller that waits for the reply learns why there is none.
                self._why_no_reply = error
            elif isinstance(error, StoreUnavailable) and self.log.failure is None:
                # Its own log may be well, but the code did not get what it needs: it is tried
                # again, as if its log could not be written.
                self.log.fail(error)
            return
        state, sentence, is_incident = outcome(
            error, is_cancelled=self.is_cancelled, may_know_cause=self.may_know
        )
        if is_incident:
            self._incident(sentence, error)
        else:
            self._finish(state, sentence)

    async def _serve_messages(self) -> Message | None:
        while True:
            if self.span is not None:
                self._end_span()
            if tracing.on:
                self.span = turn_span(self.log, self.replay.turn, self.attempt)
            if self.is_decided:
                self._begin()
            last_parts: list[Part] = []
            reply = None
            self._artifacts = 0
            try:
                reply = await self._take_turn()
            except TaskCompleted as completed:
                last_parts = completed.parts
            except TaskWaits:
                await self._inbox.arrival()
            except TaskEnded:
                return None
            except TaskRejected:
                self._check_end()
                raise
            except Exception as error:
                if self._changed:
                    raise TaskFailed(self._changed) from error
                raise
            self._check_end()
            if reply is not None:
                if not self.is_decided:
                    return reply
                # Once there is a task, what the agent answers belongs to it.
                last_parts = reply.parts
            inbox = self._inbox.places
            if inbox:
                self.questions.drop_late()
            if not inbox:
                self.status(TaskState.COMPLETED, last_parts)
                return None
            if last_parts:
                self.status(TaskState.WORKING, last_parts)
            place = inbox.pop(0)
            self.take(place)
            self.note(TurnBegan(place))

    async def _take_turn(self) -> Message | None:
        """Let the code work on its message, measured and traced."""
        began = time.perf_counter()
        if self.span is not None:
            self.span.enter()
        try:
            return await self.plan.run(self)
        except (TaskCompleted, TaskWaits, TaskEnded):
            raise
        except BaseException as error:
            if self.span is not None:
                self.span.fail(type(error).__name__)
            raise
        finally:
            figures.turn_seconds.add(time.perf_counter() - began, self.log.agent)
            if self.span is not None:
                self.span.leave()

    def _end_span(self) -> None:
        if self.span is not None:
            self.span.end()
            self.span = None

    def _check_end(self) -> None:
        """Fail code that ended without the steps it had done before."""
        try:
            self.replay.check_end()
        except CodeChanged as change:
            raise self.refusal(change) from None
        if self._changed:
            raise TaskFailed(self._changed)

    def _incident(self, sentence: str, error: BaseException) -> None:
        self._finish(TaskState.FAILED, report_incident(self.log.task_id, error, sentence))

    def _finish(self, state: TaskState, sentence: str = "") -> None:
        try:
            self.status(state, [Part(text=sentence)] if sentence else None)
        except (Ended, StoreRefused):
            logger.info("task %s ended elsewhere first", self.log.task_id)
        except A2AError as error:
            logger.info("task %s cannot become %s: %s", self.log.task_id, state.value, error)
        except UnicodeError:
            # Half a surrogate pair, which cannot be encoded.
            readable = sentence.encode("utf-8", "replace").decode()
            self.status(state, [Part(text=readable)])

    def end(self, state: TaskState, sentence: str) -> None:
        """End the task although its code may not stop; what the code does later is not recorded."""
        self._finish(state, sentence)
        self._interrupt()

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._questions = None
        if self._chunks is not None:
            self._chunks.drop()
            self._chunks = None
        if self._run is not None:
            # A reference cycle, which only the garbage collector would find.
            self._run.owner = None
        was_cancelled = run.cancelled()
        if was_cancelled and self._is_cut_short():
            # Most often the loop ends. If it goes on, the author's code cancelled the run.
            asyncio.get_running_loop().call_later(LOOP_ENDS_WITHIN, self._end_cut_short)
            return
        if was_cancelled:
            if self.is_cancelled:
                # Cancelled before its first slice: the code's own border was never entered.
                self._finish(TaskState.CANCELED, CANCELED)
        elif (error := run.exception()) is not None:
            # The border itself broke: the task ends all the same.
            self._incident(FAILED, error)
        self._leave()

    def _is_cut_short(self) -> bool:
        """Whether the code was stopped neither by us nor by the code of a task."""
        run = self._run
        if run is None or self.is_cancelled or run.is_interrupted:
            return False
        return run.is_cancelled_outside and self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the task is under way, and has no other worker."""
        log = self.log
        return not (log.is_over or log.is_retired or log.failure is not None)

    def _end_cut_short(self) -> None:
        if self._is_ours():
            self._incident(FAILED, asyncio.CancelledError("by code outside of any task"))
        self._leave()

    def _leave(self) -> None:
        if self.on_end is not None:
            self.on_end()
        if not self.is_decided:
            self.is_decided = True
            # Last: a caller that sends its message again at once must not find this worker.
            self.decision.refuse(self._why_no_reply or InternalError())


# Frames below it run the author's code.
_AUTHOR_FRAME = Worker._take_turn.__code__  # pyright: ignore[reportPrivateUsage]  # here, where it is


def worker_in(frame: FrameType) -> Worker | None:
    """Return the worker whose author's code runs below a frame, if the frame tells."""
    if frame.f_code is _AUTHOR_FRAME:
        return frame.f_locals["self"]
    owner = owner_in(frame)
    return owner if isinstance(owner, Worker) else None
