"""What an event does to a task: the only place where a status changes.

`next_state` is the state machine; `Draft` is the fold of a log, `evolve` one step of it.
"""

import msgspec

from dragoman.errors import InvalidAgentResponse
from dragoman.model.artifact import Artifact
from dragoman.model.events import (
    ArtifactUpdate,
    AttemptStarted,
    CancelRequested,
    DeadlineSet,
    Delegated,
    Event,
    EventDropped,
    Forwarded,
    MessageAdded,
    ScopesGranted,
    StatusUpdate,
    StepRecorded,
    TraceJoined,
    TurnBegan,
)
from dragoman.model.message import Message, Part
from dragoman.model.task import Task, TaskState, TaskStatus

_ENDS = {TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED}
_MOVES = {
    TaskState.WORKING,
    TaskState.INPUT_REQUIRED,
    TaskState.AUTH_REQUIRED,
    TaskState.CANCELED,
    *_ENDS,
}
# From each state to those that may follow it; None is a task that does not exist yet.
MOVES: dict[TaskState | None, frozenset[TaskState]] = {
    None: frozenset(_MOVES - {TaskState.CANCELED} | {TaskState.SUBMITTED}),
    TaskState.SUBMITTED: frozenset(_MOVES),
    TaskState.WORKING: frozenset(_MOVES),
    TaskState.INPUT_REQUIRED: frozenset(_MOVES),
    TaskState.AUTH_REQUIRED: frozenset(_MOVES),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELED: frozenset(),
    TaskState.REJECTED: frozenset(),
}


# Events that leave the state as it is.
_UNCHANGING: frozenset[type[Event]] = frozenset(
    (
        ArtifactUpdate,
        MessageAdded,
        AttemptStarted,
        TurnBegan,
        StepRecorded,
        CancelRequested,
        DeadlineSet,
        TraceJoined,
        ScopesGranted,
        Forwarded,
        Delegated,
        EventDropped,
    )
)
_EMPTY = Artifact(artifact_id="", parts=[])


class TaskIsFinished(Exception):
    """A terminal task does not change any more; the event did not happen."""


def next_state(state: TaskState | None, event: Event) -> TaskState:
    """Return the state after an event.

    Raises `TaskIsFinished` where nothing may follow, `InvalidAgentResponse` where this may not.
    """
    if state is not None:
        if state.is_terminal:
            raise TaskIsFinished(state)
        if type(event) in _UNCHANGING:
            return state
    if isinstance(event, StatusUpdate | Task):
        following = event.status.state
        if following not in MOVES[state] or (state is None) != isinstance(event, Task):
            raise InvalidAgentResponse(f"{following.value} cannot follow here")
        return following
    if isinstance(event, Message):
        raise InvalidAgentResponse("a message cannot stand in a task's log")
    raise InvalidAgentResponse("a log begins with its task")


class Draft:
    """A task being folded from its log, at a cost per event that does not grow with the log.

    A light draft has let go of the contents and knows only the state: what a worker needs to go on
    with a task whose artifacts are larger than it wants to hold.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.state = task.status.state
        self._status = task.status
        self._history = list(task.history)
        self._artifacts: dict[str, tuple[Artifact, list[Part]]] = {}
        for artifact in task.artifacts:
            self._artifacts[artifact.artifact_id] = artifact, list(artifact.parts)
        # Whether the contents are gone; the store still has them.
        self.is_light = False

    def lighten(self) -> None:
        """Let go of the contents, if they are there."""
        if self.is_light:
            return
        self.is_light = True
        self._history.clear()
        self._artifacts = {name: (_EMPTY, []) for name in self._artifacts}

    def apply(self, event: Event) -> None:
        """Fold one more event; raises and changes nothing if it may not happen."""
        # Chunks come first: they are most of what a stream says.
        if isinstance(event, ArtifactUpdate):
            if self.state.is_terminal:
                raise TaskIsFinished(self.state)
            artifact, artifacts = event.artifact, self._artifacts
            name = artifact.artifact_id
            if event.append and name not in artifacts:
                raise InvalidAgentResponse(f"artifact {name} has no first chunk to append to")
            if self.is_light:
                artifacts[name] = (_EMPTY, [])
            elif event.append:
                artifacts[name][1].extend(artifact.parts)
            else:
                artifacts[name] = (artifact, list(artifact.parts))
        elif isinstance(event, StatusUpdate):
            status = event.status
            state = status.state
            if state not in MOVES[self.state]:
                next_state(self.state, event)
            self.state = state
            if self._status.message is not None:
                self._retire_status_message()
            self._status = status
        else:
            self.state = next_state(self.state, event)
            if isinstance(event, MessageAdded):
                self._add_message(event.message)

    def _add_message(self, message: Message) -> None:
        self._retire_status_message()
        if self._status.message is not None:
            self._status = msgspec.structs.replace(self._status, message=None)
        if not self.is_light:
            self._history.append(message)

    def has_artifact(self, artifact_id: str) -> bool:
        """Whether an artifact was begun."""
        return artifact_id in self._artifacts

    def restate(self, status: TaskStatus) -> None:
        """Replace the present status by one of the same state."""
        self._status = status

    def task(self) -> Task:
        """Return the task as it stands."""
        return msgspec.structs.replace(self.head(), artifacts=self.artifacts())

    def head(self) -> Task:
        """Return the task as it stands, without its artifacts."""
        assert not self.is_light, "a light draft has no contents; read the store"
        return msgspec.structs.replace(
            self._task, status=self._status, history=list(self._history), artifacts=[]
        )

    def artifacts(self) -> list[Artifact]:
        """Return its artifacts as they stand."""
        return [
            artifact
            if len(artifact.parts) == len(parts)
            else msgspec.structs.replace(artifact, parts=list(parts))
            for artifact, parts in self._artifacts.values()
        ]

    def _retire_status_message(self) -> None:
        """What the agent said with a status becomes history once the status is not current."""
        if self._status.message is not None and not self.is_light:
            self._history.append(self._status.message)


def evolve(task: Task, event: Event) -> Task:
    """Return the task as it stands after the event."""
    draft = Draft(task)
    draft.apply(event)
    return draft.task()
