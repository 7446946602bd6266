"""What of one task a caller was shown, what of it is new, and whether that is what it waits for.

Nothing is asked here: reading the peer, and streams that break, are in `stream`.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.errors import InvalidAgentResponse
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Message
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Opening

Shown = Task | Message | StatusUpdate | ArtifactUpdate
Until = Literal["rest", "terminal"]


class ShownTask:
    """How far a caller is with one task."""

    # A send to a task that waits may open with it still waiting: that is not yet its answer.
    waited_as: TaskStatus | None = None
    # Whether it is where the caller wanted to get to.
    is_done = False
    # Whether the peer's streams know more than its task, so that only the task will do.
    is_lagging = False

    def __init__(
        self,
        connection: AgentConnection,
        operation: ops.SendMessage | ops.SubscribeToTask,
        until: Until,
        cursor: int | None,
        replay_filter: ReplayFilter,
    ) -> None:
        self._connection = connection
        self._operation = operation
        self._until = until
        # The position of the last event shown; None: there is none.
        self.cursor = cursor
        self.filter = replay_filter
        # The task that was asked for.
        is_subscription = isinstance(operation, ops.SubscribeToTask)
        self.subscribed = operation.task_id if is_subscription else ""

    def caught_up(self, task: Task) -> Iterator[Shown]:
        """Give what a task that was read has and was not shown."""
        yield from self.deliver(self.filter.missing(task))
        self.note_status(task.status)

    def opened(self, opening: Opening) -> Iterator[Shown]:
        """Give what of a task that opens a stream was not shown."""
        task = opening.reply.reading.task
        seq = opening.reply.reading.seq
        events: list[Event] = [task]
        if not self.filter.task_id:
            self.check(task.id, task.context_id)
            if self._is_continuation() and task.status.state.is_interrupted:
                self.waited_as = task.status
        else:
            self.check(task.id, task.context_id)
            is_known = self.cursor is not None and 0 < seq <= self.cursor
            if self._connection.has_positions and not opening.is_reset and is_known:
                # As of where we left off: all of it was shown.
                return
            if self.filter.is_ahead_of(task):
                # What it streams it keeps only later: until then there is nothing to go by.
                self.is_lagging = True
                return
            if opening.is_reset:
                # Its positions begin anew.
                self.cursor = None
            events = self.filter.missing(task)
        for event in self.deliver(events):
            self.move(seq)
            yield event
        self.move(seq)
        if not self._connection.has_positions:
            self.filter.expect_repetition(task)

    def deliver(self, events: Sequence[Event]) -> Iterator[Shown]:
        """Give events, each noted as shown, up to where the caller wanted to get to."""
        for event in events:
            if self.is_done:
                return
            match event:
                case Task() | Message():
                    pass
                case StatusUpdate() | ArtifactUpdate():
                    self.check(event.task_id, event.context_id)
                case _:
                    continue
            self.filter.apply(event)
            if isinstance(event, Task | StatusUpdate):
                self.note_status(event.status)
            yield event

    def note_status(self, status: TaskStatus) -> None:
        """Note whether this is where the caller wanted to get to."""
        if status.state.is_resting and (status.state.is_terminal or self._until == "rest"):
            self.is_done = self.is_end(status)

    def is_end(self, status: TaskStatus) -> bool:
        """Say whether a status is where the caller wanted to get to."""
        if status.state.is_terminal:
            return True
        is_wanted = status.state.is_interrupted and self._until == "rest"
        return is_wanted and status != self.waited_as

    def check(self, task_id: str, context_id: str) -> None:
        """Refuse what is about another task."""
        task = self.filter.task_id
        if task and task_id and task_id != task:
            raise InvalidAgentResponse("an event of another task came in this one's stream")
        if self.subscribed and task_id and task_id != self.subscribed:
            raise InvalidAgentResponse("the stream is of another task than was asked for")

    def _is_continuation(self) -> bool:
        operation = self._operation
        return isinstance(operation, ops.SendMessage) and bool(operation.message.task_id)

    def is_waiting(self) -> bool:
        """Whether the task waits, and that is what the caller wanted to get to."""
        state = self.filter.state
        return self._until == "rest" and state is not None and state.is_interrupted

    def move(self, seq: int) -> None:
        """Note the position of what was shown, if the peer has positions."""
        if seq and self._connection.has_positions:
            self.cursor = max(seq, self.cursor or 0)

    def ends_empty(self, status: TaskStatus) -> bool:
        """Whether a task is complete with this, and no result of it was shown. What was said on the
        way, how far it is or a question, need not be one."""
        is_complete = status.state is TaskState.COMPLETED and status.message is None
        return is_complete and not self._connection.has_positions and not self.filter.has_artifacts
