"""Tasks and their states."""

import enum

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Metadata


class TaskState(enum.Enum):
    """The states of a task. The groups that matter: terminal, and resting."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    # Members are singletons: hashing them by identity saves a Python call per look-up.
    __hash__ = object.__hash__

    # Nothing can happen to the task any more.
    is_terminal: bool
    # The task waits for its caller.
    is_interrupted: bool
    # No worker runs: a waiting caller is answered, a snapshot may be kept.
    is_resting: bool
    # Its name in texts, figures and traces, as in `input_required`.
    word: str


TERMINAL = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED}
)
INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
RESTING = TERMINAL | INTERRUPTED
# The sentence for a task that its deadline ended.
OVERDUE = "The task did not end in time."
for _state in TaskState:
    _state.is_terminal = _state in TERMINAL
    _state.is_interrupted = _state in INTERRUPTED
    _state.is_resting = _state in RESTING
    _state.word = _state.name.lower()


class TaskStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A state, its time, and the agent's message with it."""

    state: TaskState
    message: Message | None = None
    timestamp: str = ""
    extra: Metadata = msgspec.field(name="~", default={})

    @property
    def name(self) -> str:
        """The peer's name of the state, which may be one that this release does not know."""
        received = self.extra.get("state")
        return received if isinstance(received, str) else self.state.value


class Task(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A unit of work, as of some event of its log."""

    id: TaskId
    context_id: ContextId
    status: TaskStatus
    artifacts: list[Artifact] = []
    history: list[Message] = []
    metadata: Metadata = {}
    extra: Metadata = msgspec.field(name="~", default={})


# The extension by which a caller reads them: docs/transitions.md.
TRANSITIONS_URI = "urn:dragoman:transitions:v1"
# So many are returned at once; the rest can be requested from a position on.
MAX_TRANSITIONS = 100


class Transition(msgspec.Struct, frozen=True, gc=False):
    """A task reached a state that it was not in before."""

    # Its position in the log.
    position: int
    state: TaskState
    # As in the status.
    timestamp: str


class Transitions(msgspec.Struct, frozen=True, gc=False):
    """A page of transitions, oldest first."""

    found: list[Transition]
    # Where to go on from; 0: there are no more.
    next_position: int = 0
