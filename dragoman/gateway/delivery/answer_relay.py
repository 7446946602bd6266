"""What an agent answers, recorded as the task's own.

The log is the truth: an event of the agent belongs to the task once it is in the log, under the
task's ids; and what is in the log is not requested from the agent again.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.answer import task_of
from dragoman.client.streams.life_signs import LifeSigns
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.engine.reading import read_task
from dragoman.engine.running.relaying import record_forwarded, record_relayed
from dragoman.engine.running.turn_ends import TaskEnded, TaskWaits
from dragoman.engine.running.worker import Worker
from dragoman.errors import A2AError, InvalidAgentResponse
from dragoman.gateway.delivery.agent_call import NOTIFY_WITHIN
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.routing.hop_limit import MARGIN
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, Forwarded, StatusUpdate
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Role
from dragoman.model.order import Order
from dragoman.model.push import PushConfig
from dragoman.model.requests import open_requests
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply
from dragoman.shares import EVENT_COST, NARROW_EVENTS, SLICE

logger = logging.getLogger("dragoman")


class AnswerRelay:
    """The answer to one message of a task, from the agents that were given it one after another."""

    # Set here and not in the constructor: one is made for each message.
    # Which agent has the message, as the log has it.
    forwarded = Forwarded("", "")
    # Whether the agent may have the message although it never said so.
    is_uncertain = False
    # Whether the agent answered the present call, and what is called then; before the first call
    # nothing is.
    has_answered = False
    on_answer: Callable[[], None] | None = None
    # Of all events that the agent sent, recorded or not.
    _events = _recorded_seq = 0
    # How often the agent sent a slice of data without an event.
    _idle_slices = 0

    def __init__(self, context: DeliveryContext, worker: Worker) -> None:
        self._context = context
        self._worker = worker
        # When the agent that has the task last showed a sign of life.
        self.signs = LifeSigns()
        # What of the agent's answer is in the log, by the agent's ids.
        self.replay_filter = ReplayFilter(is_light=True)
        # Our ids of the agent's artifacts. An agent that takes over makes the same artifacts in the
        # same order: its first replaces the first there.
        self._artifact_ids: dict[str, str] = {}
        # The artifacts in the log.
        self._recorded_artifacts: list[str] = []
        # What of the agent's answer deviates from its version and was read by its meaning.
        self._leniencies: set[str] = set()

    async def recollect(self) -> None:
        """Load what of the agent's answer is in the log, from before a crash or a question."""
        forwarded = self.forwarded
        reading = await read_task(self._context.store, self._worker.log.number)
        if reading is None:
            return
        task = reading.task
        self._recorded_artifacts = [artifact.artifact_id for artifact in task.artifacts]
        if not forwarded.task_id:
            return
        ids = TaskId(forwarded.task_id), ContextId(forwarded.context_id)
        status = TaskStatus(task.status.state, task.status.message)
        # Where the work was begun anew, the log does not say which agent made which artifact: the
        # agent is asked for all of them.
        artifacts = [] if forwarded.begun else task.artifacts
        self.replay_filter.apply(
            Task(ids[0], ids[1], status, artifacts=artifacts, history=task.history)
        )

    def start_over(self) -> list[str]:
        """Expect the work from the beginning; return the artifacts that it replaces."""
        self._artifact_ids = {}
        self.replay_filter = ReplayFilter(is_light=True)
        self.is_uncertain = False
        return list(self._recorded_artifacts)

    # Reading

    async def read_stream(self, stream: Stream, connection: AgentConnection) -> None:
        """Record a stream to its end, which is raised: `TaskWaits` or `TaskEnded`."""
        stream.leniencies |= self._leniencies
        self._leniencies = stream.leniencies
        if self.forwarded.is_delivered:
            # The agent may have no event for long: any sign of life is its answer.
            self.signs.on_next = lambda: self._note_answer(connection)
        async for event in stream:
            if not self.has_answered:
                self._note_answer(connection)
            self._relay(event)
            await self._keep_pace()
        task = stream.task
        if task is None or not task.status.state.is_resting:
            raise InvalidAgentResponse("The agent's stream ended before its task did")
        # The task waits as it did before, and that is the answer.
        self._end(task.status)

    def read_reply(self, reply: Reply, connection: AgentConnection) -> None:
        """Record the reply to a message; raises `TaskWaits` or `TaskEnded` if the task rests."""
        self._note_answer(connection)
        if isinstance(reply, Message):
            self._relay(reply)
        self._relay(task_of(reply))

    def _note_answer(self, connection: AgentConnection) -> None:
        self.has_answered, self.is_uncertain = True, False
        if self.on_answer is not None:
            self.on_answer()
        self._request_posts(connection)

    async def _keep_pace(self) -> None:
        """Read no faster than the disk writes, and no more than a turn allows: meanwhile the
        connection fills, and then the agent waits. Events that are not recorded cost time too, and
        count towards the limit."""
        worker = self._worker
        log = worker.log
        self._events += 1
        self._check_count(self._events)
        if log.is_full:
            await worker.keep_pace()
        elif self._events % NARROW_EVENTS == 0:
            recorded, self._recorded_seq = log.seq - self._recorded_seq, log.seq
            if recorded < NARROW_EVENTS:
                # The log counts recorded events itself.
                log.shares.use(log.account, (NARROW_EVENTS - recorded) * EVENT_COST)
                await log.shares.turn(log.account, log.agent)

    async def take_idle_turn(self) -> None:
        """Wait for a turn before more data without events is read, such as comments: it costs as
        much time as events, and has a limit as they have."""
        log = self._worker.log
        self._idle_slices += 1
        self._check_count(self._idle_slices)
        log.shares.use(log.account, SLICE)
        await log.shares.turn(log.account, log.agent)
        # A turn may come at once.
        await asyncio.sleep(0)

    def _check_count(self, count: int) -> None:
        most = self._context.settings.engine.max_events
        if count > most:
            self._worker.exceed(f"The agent sent more than {most:,} events.")

    # Push notifications of agents that cannot stream

    def _request_posts(self, connection: AgentConnection) -> None:
        if connection.can_stream or not connection.card.capabilities.push_notifications:
            return
        log = self._worker.log
        if url := self._context.push_inbox.url(log.scope, log.task_id):
            self._context.spawn(self._register_posts(connection, url))

    async def _register_posts(self, connection: AgentConnection, url: str) -> None:
        # One configuration for each task here: two processes may have been given one message.
        config = PushConfig(url=url, id=f"gateway-{url.rpartition('/')[2]}")
        operation = ops.CreatePush(task_id=TaskId(self.forwarded.task_id), config=config)
        try:
            async with asyncio.timeout(NOTIFY_WITHIN):
                await connection.answer(operation)
        except (A2AError, TimeoutError) as error:
            # The task is polled all the same.
            logger.info("task %s: no posts: %s", self._worker.log.task_id, error)

    # Recording

    def note_leniency(self, words: str) -> None:
        """Note what of the answer was read by its meaning; it is recorded in the task's log."""
        self._leniencies.add(words)

    def learn(self, task_id: str, context_id: str) -> None:
        """Record that the agent has the message, the agent's ids, and what of its answer was read
        leniently meanwhile."""
        forwarded = self.forwarded
        if not forwarded.is_delivered:
            forwarded = msgspec.structs.replace(
                forwarded,
                task_id=task_id,
                context_id=context_id or forwarded.context_id,
                is_delivered=True,
            )
        elif self._leniencies.issubset(forwarded.lenient):
            return
        self._record(forwarded)

    def note_cause(self, cause: str) -> None:
        """Record why the task ends, for the ledger and the agent's reputation."""
        log = self._worker.log
        log.order = msgspec.structs.replace(log.order or Order(), cause=cause)

    def _record(self, forwarded: Forwarded) -> None:
        if self._leniencies:
            forwarded = msgspec.structs.replace(forwarded, lenient=sorted(self._leniencies))
            if (upstream := self._context.upstreams.find(forwarded.agent)) is not None:
                upstream.deviations |= self._leniencies
            log = self._worker.log
            logger.info("task %s: read leniently: %s", log.task_id, "; ".join(forwarded.lenient))
        self.forwarded = forwarded
        record_forwarded(self._worker, forwarded)

    def _relay(self, event: Shown) -> None:
        match event:
            case Task():
                self.learn(event.id, event.context_id)
                # After a task that has ended nothing comes that it would have to be told from.
                is_over = event.status.state.is_terminal
                for missing in self._missing(event):
                    self._apply(missing, is_last=is_over)
            case Message():
                context_id = event.context_id or self.forwarded.context_id
                if self._leniencies or context_id != self.forwarded.context_id:
                    self._record(msgspec.structs.replace(self.forwarded, context_id=context_id))
                self._end(TaskStatus(TaskState.COMPLETED, event))
            case StatusUpdate() | ArtifactUpdate():
                self.learn(event.task_id, event.context_id)
                self._apply(event)

    def _missing(self, task: Task) -> list[Event]:
        """Return what of a task is not in the log."""
        if not self.replay_filter.task_id:
            if task.status.state.is_terminal:
                return self.replay_filter.untold(task)
            sent = [message for message in task.history if message.role is Role.USER]
            empty = Task(task.id, task.context_id, TaskStatus(TaskState.SUBMITTED), history=sent)
            self.replay_filter.apply(empty)
        found = self.replay_filter.missing(task)
        if self._worker.replay.turn and task.status.state.is_interrupted:
            # The task still waits for the answer that the agent just got.
            found = [event for event in found if not _is_rest(event)]
        return found

    def _apply(self, event: Event, *, is_last: bool = False) -> None:
        if not is_last:
            self.replay_filter.apply(event)
        match event:
            case ArtifactUpdate():
                self._relay_artifact(event)
            case StatusUpdate():
                state = event.status.state
                if state.is_resting:
                    self._end(event.status, event)
                elif event.status.message is not None or event.metadata:
                    working = msgspec.structs.replace(event.status, state=TaskState.WORKING)
                    record_relayed(self._worker, working, event.metadata)
            case _:
                pass

    def _relay_artifact(self, event: ArtifactUpdate) -> None:
        """Record a chunk. An agent that takes over what another began makes the same artifacts, in
        the same order: they replace those of the other."""
        artifact, append = event.artifact, event.append
        remote_id = artifact.artifact_id
        artifact_id = self._artifact_ids.get(remote_id)
        if artifact_id is None:
            begun, index = self.forwarded.begun, len(self._artifact_ids)
            is_replacement = index < len(begun)
            artifact_id = begun[index] if is_replacement else remote_id
            self._artifact_ids[remote_id] = artifact_id
            if is_replacement:
                append = False
            if artifact_id not in self._recorded_artifacts:
                self._recorded_artifacts.append(artifact_id)
        if artifact_id != remote_id:
            artifact = msgspec.structs.replace(artifact, artifact_id=artifact_id)
        self._worker.artifact(artifact, append=append, last=event.last_chunk)

    def _end(self, status: TaskStatus, event: StatusUpdate | None = None) -> None:
        """Record that the agent is done with the message; raises how the turn ends."""
        worker = self._worker
        metadata = event.metadata if event is not None else {}
        ends = worker.deadline
        if status.state is TaskState.FAILED and ends and worker.clock.now() >= ends - MARGIN:
            # The agent keeps the deadline that it was given, which is a little earlier than ours.
            self.note_cause("timeout")
        if status.state.is_interrupted:
            asks_plainly = not any(one.is_declared for one in open_requests(status))
            record_forwarded(
                worker,
                msgspec.structs.replace(
                    self.forwarded, is_answered=True, asks_plainly=asks_plainly
                ),
            )
            record_relayed(worker, status, metadata)
            raise TaskWaits
        if status.state is TaskState.COMPLETED and worker.queued:
            # The caller sent more messages meanwhile: the next begins another task at the agent,
            # in the same context.
            done = msgspec.structs.replace(self.forwarded, is_answered=True, task_id="")
            record_forwarded(worker, done)
            if status.message is not None:
                record_relayed(
                    worker, msgspec.structs.replace(status, state=TaskState.WORKING), metadata
                )
            raise TaskWaits
        record_relayed(worker, status, metadata)
        raise TaskEnded


def _is_rest(event: Event) -> bool:
    return isinstance(event, StatusUpdate) and event.status.state.is_resting
