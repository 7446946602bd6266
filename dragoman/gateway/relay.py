"""What an agent answers, recorded as the task's own.

The log is the truth: an event of the agent's is one of the task's once it is in there, under the
task's ids; and what is in there is what the agent is not asked for again.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.client.life_signs import LifeSigns
from dragoman.client.line import Line
from dragoman.client.seen import Seen
from dragoman.client.stream import Shown, Stream
from dragoman.dialects.house import Nexus
from dragoman.engine.log import read_task
from dragoman.engine.shares import EVENT_COST, NARROW_EVENTS, SLICE
from dragoman.engine.worker import TaskEnded, TaskWaits, Worker
from dragoman.errors import A2AError, InvalidAgentResponse
from dragoman.gateway.hops import MARGIN
from dragoman.gateway.means import Means
from dragoman.model import operations as ops
from dragoman.model.errand import Errand
from dragoman.model.events import ArtifactUpdate, Event, Forwarded, StatusUpdate
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Role
from dragoman.model.push import PushConfig
from dragoman.model.requests import open_requests
from dragoman.model.task import Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman")

# Seconds an agent has to take note of something that nobody waits for: a cancel, where to post.
NOTE_WITHIN = 10.0


class Relay:
    """The answer of one agent to one message of a task."""

    def __init__(self, means: Means, worker: Worker) -> None:
        self._means = means
        self._worker = worker
        # What of the agent's answer is in the log, by the agent's ids.
        self._seen = Seen(is_light=True)
        # What the agent's artifacts are called here. One that does what another began makes the
        # same ones in the same order: its first replaces the first there.
        self._renamed: dict[str, str] = {}
        # The artifacts that are here.
        self._made: list[str] = []
        self._place = Forwarded("", "")
        # What of the agent's answer was not as its version has it, and read for what it means.
        self._leniencies: set[str] = set()
        # Whether the agent may have the message although it never said so.
        self._is_doubtful = False
        self._is_heard = False
        # When the agent that has the task last showed that it lives.
        self._signs = LifeSigns()
        # Of all that it sent, recorded or not.
        self._events = self._recorded = 0
        # How often it had sent much of nothing.
        self._idles = 0
        self._on_heard: Callable[[], None] = _nothing

    async def _recollect(self) -> None:
        """Know what of the agent's answer is in the log, from before a crash or a question."""
        place = self._place
        reading = await read_task(self._means.store, self._worker.log.number)
        if reading is None:
            return
        task = reading.task
        self._made = [artifact.artifact_id for artifact in task.artifacts]
        if not place.task_id:
            return
        ids = TaskId(place.task_id), ContextId(place.context_id)
        status = TaskStatus(task.status.state, task.status.message)
        # Where the work was begun anew, nobody knows which of the artifacts are of whom: the agent
        # is asked for all of them.
        artifacts = [] if place.begun else task.artifacts
        self._seen.apply(Task(ids[0], ids[1], status, artifacts=artifacts, history=task.history))

    # The answer

    def _hear(self, line: Line) -> None:
        """Note that the agent answers."""
        self._is_heard, self._is_doubtful = True, False
        self._on_heard()
        self._ask_for_posts(line)
        self._means.directory.saw(self._place.agent)

    def _note_leniency(self, words: str) -> None:
        """Take note of what was read for what it means: the log of the task says so."""
        self._leniencies.add(words)

    def _record(self, place: Forwarded) -> None:
        """Record where the task is, and what of the agent's answer was read leniently."""
        if self._leniencies:
            place = msgspec.structs.replace(place, lenient=sorted(self._leniencies))
            log = self._worker.log
            logger.info("task %s: read leniently: %s", log.task_id, "; ".join(place.lenient))
        self._place = place
        self._worker.forward(place)

    async def _relay_all(self, stream: Stream, line: Line) -> None:
        stream.leniencies |= self._leniencies
        self._leniencies = stream.leniencies
        if self._place.is_delivered:
            # It may have nothing new to say of the task for long.
            self._signs.on_next = lambda: self._hear(line)
        async for event in stream:
            if not self._is_heard:
                self._hear(line)
            self._relay(event)
            await self._keep_pace()
        task = stream.task
        if task is None or not task.status.state.is_resting:
            raise InvalidAgentResponse("The agent's stream ended before its task did")
        # It waits as it did before, and that is its answer.
        self._end(task.status)

    async def _keep_pace(self) -> None:
        """Read no further than the disk takes what was read, and no more than a turn allows: the
        connection fills meanwhile, and then the agent waits. Also events that nobody records cost
        time, and have an end."""
        worker = self._worker
        log = worker.log
        self._events += 1
        self._check(self._events)
        if log.is_full:
            await worker.keep_pace()
        elif self._events % NARROW_EVENTS == 0:
            recorded, self._recorded = log.seq - self._recorded, log.seq
            if recorded < NARROW_EVENTS:
                # Those that were recorded are counted.
                log.shares.use(log.account, (NARROW_EVENTS - recorded) * EVENT_COST)
                await log.shares.turn(log.account, log.agent)

    async def _hear_nothing(self) -> None:
        """Wait for a turn before more is read of what is nothing to show, such as comments: it
        costs as much time as events, and has an end as they have."""
        log = self._worker.log
        self._idles += 1
        self._check(self._idles)
        log.shares.use(log.account, SLICE)
        await log.shares.turn(log.account, log.agent)
        # A turn may come at once.
        await asyncio.sleep(0)

    def _check(self, count: int) -> None:
        """End a task whose agent has sent too much."""
        most = self._means.settings.max_events
        if count > most:
            self._worker.exceed(f"The agent sent more than {most:,} events.")

    def _ask_for_posts(self, line: Line) -> None:
        """Have an agent that cannot stream tell us when there is something to look at."""
        if line.can_stream or not line.card.capabilities.push_notifications:
            return
        log = self._worker.log
        if url := self._means.hooks.url(log.scope, log.task_id):
            self._means.soon(self._register_posts(line, url))

    async def _register_posts(self, line: Line, url: str) -> None:
        # Of its own for each task here: two processes may have been given one message.
        config = PushConfig(url=url, id=f"gateway-{url.rpartition('/')[2]}")
        operation = ops.CreatePush(task_id=TaskId(self._place.task_id), config=config)
        try:
            async with asyncio.timeout(NOTE_WITHIN):
                await line.answer(operation)
        except (A2AError, TimeoutError) as error:
            # It is looked at now and then all the same.
            logger.info("task %s: no posts: %s", self._worker.log.task_id, error)

    def _relay(self, event: Shown) -> None:
        match event:
            case Task():
                self._learn(event.id, event.context_id)
                for missing in self._missing(event):
                    self._apply(missing)
            case Message():
                if self._leniencies:
                    self._record(self._place)
                self._end(TaskStatus(TaskState.COMPLETED, event))
            case StatusUpdate() | ArtifactUpdate():
                self._learn(event.task_id, event.context_id)
                self._apply(event)

    def _learn(self, task_id: str, context_id: str) -> None:
        """Record that the agent has the message, and what it calls the task; and what of its answer
        was read leniently meanwhile."""
        place = self._place
        if not place.is_delivered:
            place = msgspec.structs.replace(
                place,
                task_id=task_id,
                context_id=context_id or place.context_id,
                is_delivered=True,
            )
        elif self._leniencies.issubset(place.lenient):
            return
        self._record(place)

    def _missing(self, task: Task) -> list[Event]:
        """Return what of a task is not in the log."""
        if not self._seen.task_id:
            said = [message for message in task.history if message.role is Role.USER]
            empty = Task(task.id, task.context_id, TaskStatus(TaskState.SUBMITTED), history=said)
            self._seen.apply(empty)
        found = self._seen.missing(task)
        if self._worker.replay.turn and task.status.state.is_interrupted:
            # It still waits for the answer that it was just given.
            found = [event for event in found if not _is_rest(event)]
        return found

    def _apply(self, event: Event) -> None:
        self._seen.apply(event)
        match event:
            case ArtifactUpdate():
                self._relay_artifact(event)
            case StatusUpdate():
                state = event.status.state
                if state.is_resting:
                    self._end(event.status, event)
                elif event.status.message is not None or event.metadata:
                    working = msgspec.structs.replace(event.status, state=TaskState.WORKING)
                    self._worker.relay(working, event.metadata)
            case _:
                pass

    def _relay_artifact(self, event: ArtifactUpdate) -> None:
        """Record a chunk. Whoever takes over what another agent began makes the same artifacts, in
        the same order: they take the place of those."""
        artifact, append = event.artifact, event.append
        theirs = artifact.artifact_id
        name = self._renamed.get(theirs)
        if name is None:
            begun, place = self._place.begun, len(self._renamed)
            is_taken_over = place < len(begun)
            name = self._renamed[theirs] = begun[place] if is_taken_over else theirs
            if is_taken_over:
                append = False
            if name not in self._made:
                self._made.append(name)
        if name != theirs:
            artifact = msgspec.structs.replace(artifact, artifact_id=name)
        self._worker.artifact(artifact, append=append, last=event.last_chunk)

    def _end(self, status: TaskStatus, event: StatusUpdate | None = None) -> None:
        """Record that the agent is done with the message."""
        worker = self._worker
        metadata = event.metadata if event is not None else {}
        ends = worker.deadline
        if status.state is TaskState.FAILED and ends and worker.clock.now() >= ends - MARGIN:
            # It keeps the deadline that it was given, which is a little earlier than ours.
            self._note_cause("timeout")
        if status.state.is_interrupted:
            asks_plainly = not any(one.is_declared for one in open_requests(status))
            worker.forward(
                msgspec.structs.replace(self._place, is_answered=True, asks_plainly=asks_plainly)
            )
            worker.relay(status, metadata)
            raise TaskWaits
        if status.state is TaskState.COMPLETED and worker.queued:
            # Its caller has said more meanwhile: that begins another task there, in its context.
            done = msgspec.structs.replace(self._place, is_answered=True, task_id="")
            worker.forward(done)
            if status.message is not None:
                worker.relay(msgspec.structs.replace(status, state=TaskState.WORKING), metadata)
            raise TaskWaits
        worker.relay(status, metadata)
        raise TaskEnded

    def _note_cause(self, cause: str) -> None:
        log = self._worker.log
        log.errand = msgspec.structs.replace(log.errand or Errand(), cause=cause)


def _nothing() -> None:
    """Nobody is to be told."""


def may_repeat(line: Line) -> bool:
    """Say whether an agent may get a message twice: it works on it once, or knows the task by the
    id that we gave it, which is how its house has it."""
    return line.works_once or isinstance(line.dialect, Nexus)


def _is_rest(event: Event) -> bool:
    return isinstance(event, StatusUpdate) and event.status.state.is_resting
