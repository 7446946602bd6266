"""Runs an agent's code on one task and records what it does.

A worker belongs to one task. It gives the code one message after another until none waits, and
whatever the code does, the task reaches a resting point: a sentence for the caller, and for the
operator an incident with the cause.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import NoReturn, Protocol

import msgspec

from dragoman.engine.author_code import Run, author, owner_in
from dragoman.engine.causes import known_cause
from dragoman.engine.chunks import HeldChunks
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.log import LogIsFull, TaskLog
from dragoman.engine.questions import Given, Questions
from dragoman.engine.replay import ELSEWHERE, CodeChanged, Put, Replay
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    RateLimited,
    StoreRefused,
    TaskFailed,
    TaskRejected,
)
from dragoman.model.artifact import Artifact
from dragoman.model.clock import Clock
from dragoman.model.errand import Errand
from dragoman.model.events import (
    ArtifactUpdate,
    AttemptStarted,
    Delegated,
    Event,
    Forwarded,
    StatusUpdate,
    StepKind,
    StepRecorded,
    TurnBegan,
)
from dragoman.model.identity import ANONYMOUS, Caller, Scope, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Metadata, Part, agent_message
from dragoman.model.operations import SendMessage
from dragoman.model.record import Recorded
from dragoman.model.requests import open_requests
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.telemetry import figures, logs, tracing
from dragoman.telemetry.tracing import Here, Span, Trace

logger = logging.getLogger("dragoman")

FAILED = "The agent failed."
CANCELED = "The task was canceled."
# Seconds after which a loop that cancelled what runs on it would have ended.
LOOP_ENDS_WITHIN = 3.0
REFUSED_ELSEWHERE = "Another agent refused what this one asked of it: too many requests or tasks."


class Plan(msgspec.Struct, frozen=True):
    """What an agent will do with a message: decided, checked, not begun."""

    run: "Callable[[Worker], Awaitable[Message | None]]"
    # Whether the code may answer with a message instead of a task.
    may_reply: bool = False
    # Seconds a task that begins with it has; None: as many as it needs.
    deadline: float | None = None
    # How many tasks it counts as: one for each agent that works on it at once.
    tasks: int = 1
    # What a task that begins with it means to those who keep books.
    errand: Errand | None = None
    # Whether the code may begin before the task is on disk, and so before it is certain that no
    # other process was given the same message: what both do of it is done once.
    may_begin_early: bool = False
    # That of the skill, if it is one.
    name: str = ""


class AgentCode(Protocol):
    """The author's code as the engine sees it."""

    name: str
    streaming: bool
    required_extensions: frozenset[str]

    @property
    def is_scoped(self) -> bool:
        """Whether any skill is for some callers only."""
        ...

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Raise `PermissionDenied` if what a message is for is not for this caller. That the skill
        exists is no secret: the card shows it."""
        ...

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Return what will be done; raises an `A2AError` for a message that cannot be served.

        `began` is what the task began with, if this is a further message to it; an answer goes to
        code that waits for it, whatever it says. `caller` is who begins it."""
        ...

    def withdraw(self, replay: Replay) -> None:
        """A task ends that no code works on any more: whoever else was given some of it is to be
        told. Nobody waits for that."""
        ...


class Ended(Exception):
    """The task ended elsewhere: by a cancel, a limit, or another worker."""


class TaskCompleted(Exception):
    """The code is done, with a last word."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.parts = parts


class TaskEnded(Exception):
    """The code has recorded the end of its task itself."""


class TaskWaits(Exception):
    """The code has put a question and is done with this message: the next one is the answer."""


def status_update(
    log: TaskLog,
    state: TaskState,
    parts: list[Part] | None = None,
    metadata: Metadata | None = None,
    references: Sequence[str] = (),
) -> tuple[StatusUpdate, int]:
    """Return a status of the task as of now, and when that is in milliseconds."""
    now = time.time_ns() // 1000
    message = None
    if parts:
        message = agent_message(
            parts, context_id=log.context_id, task_id=log.task_id, metadata=metadata
        )
        if references:
            message = msgspec.structs.replace(message, reference_task_ids=list(references))
    status = TaskStatus(state, message, stamp(now))
    return StatusUpdate(log.task_id, log.context_id, status), now // 1000


def trace_event(log: TaskLog, event: Event, parent: Trace | None) -> None:
    """Have a span for an event of the protocol; never what it says."""
    attributes: dict[str, object] = {
        "agent.id": log.scope.agent,
        "agent.task.id": log.task_id,
        "session.id": log.context_id,
        "a2a.event.position": log.seq,
    }
    match event:
        case Task() | StatusUpdate():
            attributes["a2a.state"] = event.status.state.name.lower()
            name = "a2a.task" if isinstance(event, Task) else "a2a.status"
        case ArtifactUpdate():
            attributes["a2a.artifact.append"] = event.append
            attributes["a2a.artifact.last_chunk"] = event.last_chunk
            name = "a2a.artifact"
        case _:
            return
    tracing.mark_event(name, attributes, parent=parent)


def _is_cancellation(error: BaseExceptionGroup[BaseException]) -> bool:
    """Tell whether a group has nothing but cancellations in it."""
    return error.split(asyncio.CancelledError)[1] is None


class Worker:
    """One task being worked on."""

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
        """`is_local`: only this machine reaches us."""
        self.log = log
        self._is_local = is_local
        self.replay = replay
        self._keep = keep
        self.operation = replay.messages[replay.turn]
        self.caller = caller
        self.clock = clock
        self.is_cancelled = False
        # What has to be on disk before the code begins, what else it waits for, and whether it has
        # begun.
        self.begins_after = 0
        self.gate: Callable[[Worker], Awaitable[None]] | None = None
        self.is_begun = False
        # Whether it may be what ended processes.
        self.is_suspect = False
        self._is_dismissed = False
        self.plan = plan
        self._inbox: deque[Given] = deque()
        # What the code asked and has no answer to yet; made when it asks, gone when it has ended:
        # the two know each other, and the collector is to find nothing of a task that rests.
        self._questions: Questions | None = None
        # Where it was sent last.
        self._sent: Recorded | None = None
        self._artifacts = 0
        # The chunks that may be the last of their artifacts; made with the first.
        self._chunks: HeldChunks | None = None
        # Why the code cannot go on, whatever it makes of the exception.
        self._changed = ""
        self._arrival: asyncio.Future[None] | None = None
        self._run: Run | None = None
        # Whether some of the code wanted to end the process.
        self._is_given_up = False
        # Done when it is decided whether there is a task (None) or only a reply.
        self.decision: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self.on_end: Callable[[], None] | None = None
        # The turn that is under way, while it is traced.
        self.span: Span | None = None
        # Keys of the messages it was given, for as long as the store may not have them.
        self.keys: list[tuple[Scope, bytes]] = []
        if not plan.may_reply:
            self.decision.set_result(None)

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
        """Whether the caller may learn what is at addresses that are dialled here."""
        return self.caller.operates(is_local=self._is_local)

    @property
    def attempt(self) -> int:
        """How often the task was begun."""
        return self.replay.attempt

    @property
    def deadline(self) -> int:
        """When the task has to have ended, in milliseconds; 0: whenever."""
        return self.replay.deadline

    @property
    def queued(self) -> int:
        """How many messages wait."""
        return len(self._inbox)

    @property
    def is_waiting(self) -> bool:
        """Whether the code asked its caller something and has no answer yet."""
        if self._questions is not None and self._questions.are_open:
            return True
        return self._arrival is not None and not self._arrival.done()

    @property
    def is_started(self) -> bool:
        """Whether it was told to begin."""
        return self._run is not None

    @property
    def is_running(self) -> bool:
        """Whether the author's code is under way, be it waiting for its caller."""
        return self._run is not None and not self._run.done() and not self._is_dismissed

    @property
    def is_at_work(self) -> bool:
        """Whether the author's code is doing something: it has begun, and neither waits for its
        caller nor sleeps."""
        if not (self.is_begun and self.is_running and self.log.is_active):
            return False
        return not self.replay.is_asleep(self.clock.now())

    def start(self) -> None:
        """Begin; the code's first slice runs before anything is written."""
        self._run = Run(self._work(), loop=asyncio.get_running_loop())
        self._run.owner = self
        self._run.add_done_callback(self._ended)

    def give(self, place: int, plan: Plan, caller: Caller) -> None:
        """Queue one more of the task's messages."""
        self._inbox.append(Given(place, plan, caller))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        if self._questions is not None:
            self._questions.arrived()

    def cancel(self) -> None:
        """Ask the code to stop: a flag for code that looks, `CancelledError` where it waits."""
        self.is_cancelled = True
        self._interrupt()

    def abandon(self) -> None:
        """Stop without a word: the process ends and the task goes on in the next one."""
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
        """End the task: some of its code wanted to end the process."""
        if not self._is_given_up:
            self._is_given_up = True
            self._incident(FAILED, error)
            self._interrupt()

    def _interrupt(self) -> None:
        if self._run is not None:
            self._run.interrupt()
        # Code in a thread waits outside the run: it is freed, or the thread is lost for ever.
        if self._arrival is not None:
            self._arrival.cancel()
        if self._questions is not None:
            self._questions.interrupt()

    # What the author's code does, through its turn.

    def decide(self) -> None:
        """There will be a task: from here on everything is recorded."""
        if not self.decision.done():
            self.decision.set_result(None)
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
        self.decide()
        update, at = status_update(self.log, state, parts, metadata, references)
        return self.emit(update, at=at)

    def relay(self, status: TaskStatus, metadata: Metadata | None = None) -> Recorded:
        """Record a status of another agent's as the task's own: what it says is left as it is,
        under the task's ids. What that agent calls the task itself is nothing to refer to here."""
        self.decide()
        now = time.time_ns() // 1000
        if any(request.sensitive for request in open_requests(status)):
            self._be_discreet()
        message = status.message
        if message is not None:
            message = msgspec.structs.replace(
                message,
                task_id=self.log.task_id,
                context_id=self.log.context_id,
                reference_task_ids=[
                    one for one in message.reference_task_ids if one != message.task_id
                ],
            )
        own = TaskStatus(status.state, message, stamp(now))
        update = StatusUpdate(self.log.task_id, self.log.context_id, own, metadata or {})
        return self.emit(update, now // 1000)

    def _be_discreet(self) -> None:
        """Have what comes withheld: it answers a sensitive question of another agent's."""
        if not self.replay.is_discreet:
            is_sensitive = Put(sensitive=True).encoded()
            self.note(StepRecorded(StepKind.ASK, ELSEWHERE, "relay", is_sensitive))

    def forward(self, forwarded: Forwarded) -> None:
        """Record where the task was sent, or what became of it there."""
        self.decide()
        before = self.replay.forwarded
        is_more = (
            before is not None
            and (before.moves, before.turn) == (forwarded.moves, forwarded.turn)
            and before.task_id in ("", forwarded.task_id)
        )
        # What nobody saw yet says less of the same place, once: then both stand in the log.
        if self._sent is None or not is_more or not self.log.amend_last(self._sent, forwarded):
            self._sent = self.emit(forwarded)
        self.replay.apply(forwarded)

    def delegate(self, delegated: Delegated) -> None:
        """Record what another agent calls what it was given."""
        self.decide()
        self.emit(delegated)
        self.replay.apply(delegated)

    def say(
        self,
        parts: list[Part],
        metadata: Metadata | None = None,
        references: Sequence[str] = (),
    ) -> None:
        """Record what the agent says, and of which other tasks. A question that waits stands: the
        task goes on waiting."""
        draft = self.log.draft
        state = TaskState.WORKING
        if self.is_waiting and draft is not None and draft.state.is_interrupted:
            state = draft.state
            parts, metadata = self.questions.beside(parts, metadata)
        self.status(state, parts, metadata, references)

    def artifact(self, artifact: Artifact, *, append: bool = False, last: bool = True) -> Recorded:
        """Record an artifact or a chunk of one."""
        self.decide()
        return self.emit(self._artifact_update(artifact, append, last))

    def chunk(self, artifact: Artifact, *, append: bool) -> None:
        """Record a chunk of an artifact that may be its last: it is held back for a moment."""
        if not self.decision.done():
            self.decide()
        if self._chunks is None:
            self._chunks = HeldChunks(self._record, self._fail_outside)
        log = self.log
        self._chunks.put(ArtifactUpdate(log.task_id, log.context_id, artifact, append, False))

    def close_artifact(self, artifact_id: str) -> bool:
        """Mark the latest chunk as the last one; False: it is out already."""
        return self._chunks is not None and self._chunks.close(artifact_id)

    def _artifact_update(self, artifact: Artifact, append: bool, last: bool) -> ArtifactUpdate:
        return ArtifactUpdate(
            task_id=self.log.task_id,
            context_id=self.log.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )

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
            self._questions = Questions(self, self._inbox)
        return self._questions

    def recall(
        self, kind: StepKind, name: str, place: int | None = None
    ) -> tuple[int, StepRecorded | None]:
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
        self, kind: StepKind, index: int, name: str, value: msgspec.Raw, spent: float = 0.0
    ) -> None:
        """Record a step; once this returns it will not be done again."""
        self.note(StepRecorded(kind, index, name, value, spent))
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

    async def begun(self) -> None:
        """Wait until the task is on disk: only then can anything be withheld from its log."""
        self.decide()
        await self.log.durable(1)

    def emit(self, event: Event, at: int = 0, withheld: bytes = b"") -> Recorded:
        """Let an event happen."""
        if self._chunks is not None:
            self._release_before(event)
        return self._record(event, at, withheld)

    def _release_before(self, event: Event) -> None:
        """Record the chunks that come before an event: readers see them in this order, and a step
        is not on record before what was written until then."""
        assert self._chunks is not None
        is_artifact = isinstance(event, ArtifactUpdate)
        self._chunks.release(event.artifact.artifact_id if is_artifact else "")

    def _record(self, event: Event, at: int = 0, withheld: bytes = b"") -> Recorded:
        if self._is_dismissed:
            # The log may have another worker; what this one does on its way out is void.
            raise Ended
        try:
            recorded = self.log.emit(event, at=at, withheld=withheld)
        except TaskIsFinished:
            raise Ended from None
        except LogIsFull as full:
            self.exceed(str(full))
        if self.span is not None:
            self.observe(event)
        return recorded

    def exceed(self, reason: str) -> NoReturn:
        """End a task that reached a limit, whatever its code makes of the exception."""
        self.end(TaskState.FAILED, reason)
        raise Ended

    def observe(self, event: Event) -> None:
        """Show in the trace that there was an event of the protocol; never what it says."""
        if self.span is None:
            return
        if tracing.per_event:
            trace_event(self.log, event, self.span.trace)
        elif isinstance(event, StatusUpdate):
            self.span.event("a2a.status", {"a2a.state": event.status.state.name.lower()})
        elif isinstance(event, ArtifactUpdate):
            self.span.event("a2a.artifact")

    async def _work(self) -> None:
        """The border around the author's code: nothing it raises goes further, of whichever class
        it is. Only our own cancellation passes."""
        # The trace of what the task began with, whichever request or chore we are started by.
        tracing.here.set(Here(self.replay.trace, self.log.task_id, self.log.scope.agent))
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
                hooks = self.log.hooks
                if hooks is not None:
                    reply = await hooks.reply(reply)
                kept = await self._keep(reply)
                if hooks is not None:
                    hooks.replied(kept)
                self.decision.set_result(kept)
        except BaseException as error:
            if self._passes(error):
                raise
            try:
                self._conclude(error)
            except BaseException as problem:
                # What it raised cannot even be looked at.
                self._incident(FAILED, problem)
        finally:
            self._end_span()
            # The context of a task outlives it, and would keep the worker.
            author.set(None)

    def _passes(self, error: BaseException) -> bool:
        """Tell whether an exception is ours: we stopped the code without a word, or the process
        ends and closes what it was at."""
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
        """Record what the code ended with."""
        match error:
            case asyncio.CancelledError() if self.is_cancelled:
                self._finish(TaskState.CANCELED, CANCELED)
            case Ended() | StoreRefused():
                logger.info("task %s ended elsewhere; its worker stops", self.log.task_id)
                if isinstance(error, StoreRefused) and not self.decision.done():
                    # Whoever waits for the reply is told why there is none.
                    self.decision.set_exception(error)
                    self.decision.exception()
            case TaskRejected():
                self._finish(TaskState.REJECTED, error.public)
            case TaskFailed():
                self._finish(TaskState.FAILED, error.public)
            case LogIsFull():
                self._finish(TaskState.FAILED, str(error))
            case RateLimited():
                # Not in the words of the peer that refused, which may be anything.
                self._finish(TaskState.FAILED, REFUSED_ELSEWHERE)
            case InvalidAgentResponse():
                self._incident(f"The agent gave an invalid response: {error.public}", error)
            case BaseExceptionGroup() if self.is_cancelled and _is_cancellation(error):
                self._finish(TaskState.CANCELED, CANCELED)
            case _:
                # Also a cancellation that is not ours: of something its code waited for, or by it.
                cause = known_cause(error) if self.may_know else ""
                self._incident(f"The agent failed: {cause}." if cause else FAILED, error)

    async def _serve_messages(self) -> Message | None:
        while True:
            self._end_span()
            if tracing.on:
                self._begin_span()
            if self.decision.done():
                self._begin()
            last_word: list[Part] = []
            reply = None
            self._artifacts = 0
            try:
                reply = await self._take_turn()
            except TaskCompleted as completed:
                last_word = completed.parts
            except TaskWaits:
                await self._next_message()
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
                if not self.decision.done():
                    return reply
                # Once there is a task, what the agent answers belongs to it.
                last_word = reply.parts
            if self._inbox:
                self.questions.drop_late()
            if not self._inbox:
                self.status(TaskState.COMPLETED, last_word)
                return None
            if last_word:
                self.status(TaskState.WORKING, last_word)
            place, self.plan, self.caller = self._inbox.popleft()
            self.operation = self.replay.messages[place]
            self.note(TurnBegan(place))

    async def _next_message(self) -> None:
        """Wait for what answers a question that the code does not wait for itself."""
        while not self._inbox:
            self._arrival = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrival)

    async def _take_turn(self) -> Message | None:
        """Let the code work on its message, where operators see it."""
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
            figures.turn_seconds.add(time.perf_counter() - began, self.log.scope.agent)
            if self.span is not None:
                self.span.leave()

    def _begin_span(self) -> None:
        """Begin the span of a turn. It lasts until what came of the turn is said."""
        agent = self.log.scope.agent
        self.span = tracing.begin(
            f"agent[{agent}]",
            {
                "agent.id": agent,
                "agent.task.id": self.log.task_id,
                "session.id": self.log.context_id,
                "agent.iteration": self.replay.turn + 1,
                "agent.attempt": self.attempt,
            },
        )

    def _end_span(self) -> None:
        if self.span is not None:
            self.span.end()
            self.span = None

    def _check_end(self) -> None:
        """Refuse to complete what is not what was begun."""
        try:
            self.replay.check_end()
        except CodeChanged as change:
            raise self.refusal(change) from None
        if self._changed:
            raise TaskFailed(self._changed)

    def _incident(self, sentence: str, error: BaseException) -> None:
        incident = new_id()
        message = "incident %s: agent code, task %s"
        logs.tell(logger, message, incident, self.log.task_id, error=error, incident=incident)
        self._finish(TaskState.FAILED, f"{sentence} Incident {incident}.")

    def _finish(self, state: TaskState, sentence: str = "") -> None:
        try:
            self.status(state, [Part(text=sentence)] if sentence else None)
        except (Ended, StoreRefused):
            logger.info("task %s ended elsewhere first", self.log.task_id)
        except A2AError as error:
            logger.info("task %s cannot become %s: %s", self.log.task_id, state.value, error)
        except UnicodeError:
            # Half a character, which no message can say.
            readable = sentence.encode("utf-8", "replace").decode()
            self.status(state, [Part(text=readable)])

    def end(self, state: TaskState, sentence: str) -> None:
        """End the task over the head of code that does not stop; what it does later is void."""
        self._finish(state, sentence)
        self._interrupt()

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._questions = None
        if self._chunks is not None:
            self._chunks.drop()
            self._chunks = None
        if self._run is not None:
            # The two know each other, and only the collector would find them.
            self._run.owner = None
        if run.cancelled() and self._is_cut_short():
            # Most often the loop ends. If it goes on, the author's code did it.
            asyncio.get_running_loop().call_later(LOOP_ENDS_WITHIN, self._end_cut_short)
            return
        if run.cancelled() and self.is_cancelled:
            # Cancelled before its first slice: the code's own border was never entered.
            self._finish(TaskState.CANCELED, CANCELED)
        elif not run.cancelled() and (error := run.exception()) is not None:
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
        if not self.decision.done():
            self.decision.cancel()
        if self.on_end is not None:
            self.on_end()


# What runs below it is the author's code.
_AUTHOR_FRAME = Worker._take_turn.__code__  # pyright: ignore[reportPrivateUsage]  # here, where it is


def worker_in(frame: FrameType) -> Worker | None:
    """Return the worker whose author's code runs below a frame, if the frame tells."""
    if frame.f_code is _AUTHOR_FRAME:
        return frame.f_locals["self"]
    owner = owner_in(frame)
    return owner if isinstance(owner, Worker) else None
