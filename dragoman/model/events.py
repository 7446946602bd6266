"""What can happen to a task. An event is never changed once it is recorded."""

import enum

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Metadata
from dragoman.model.task import Task, TaskStatus


class StatusUpdate(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task reached a state, or made progress in one."""

    task_id: TaskId
    context_id: ContextId
    status: TaskStatus
    metadata: Metadata = {}
    extra: Metadata = msgspec.field(name="~", default={})


class ArtifactUpdate(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task produced an artifact, or one more chunk of it."""

    task_id: TaskId
    context_id: ContextId
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata = {}
    extra: Metadata = msgspec.field(name="~", default={})


# What most events have none of, shared by the chunks that an artifact is made of. Thousands of them
# wait in memory at once: with containers of their own, the garbage collector would look through
# them again and again. Only for events that no code changes.
NO_METADATA: Metadata = {}
NO_EXTENSIONS: list[str] = []


class MessageAdded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The caller sent a further message. Part of the log and the history, not of any stream: the
    protocol has no event for it."""

    message: Message
    # The metadata of its request.
    metadata: Metadata = {}
    # Whether it answers a sensitive question: then it is a placeholder, and the real message is
    # stored separately for the author's code only.
    withheld: bool = False
    # The scopes of its sender's credential, for the author's code only.
    scopes: list[str] = []


class AttemptStarted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A worker took the task over from one that died, or runs it under changed conditions. Not part
    of any stream."""

    attempt: int
    # Whether the death is attributed to the code: no other task was running.
    counts: bool = True
    # Whether it ran beside other tasks, any of which may be the cause.
    suspected: bool = False
    # The worker that runs only this task; 0: there are others.
    alone_in: int = 0
    # The worker in which suspects run one after another, and it is this task's turn; 0: it is not.
    turn_in: int = 0
    # Whether the death came in its turn, though beside others: it is the likeliest cause.
    caught: bool = False
    # When it was taken over, in milliseconds; 0: not recorded.
    at: int = 0


class TurnBegan(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code was given a further message to begin with. Not part of any stream."""

    # Which of the task's messages: 0 is the first.
    message: int


class StepKind(enum.Enum):
    """The kind of a durable step of an agent's code."""

    STEP = "step"
    # A step that raised; the code continued.
    FAILURE = "failure"
    SLEEP = "sleep"
    # The question, and the message that answered it.
    ASK = "ask"
    ANSWER = "answer"


class StepRecorded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code finished a step that is not repeated. Not part of any stream."""

    kind: StepKind
    # Its index among the steps of its turn.
    index: int
    name: str
    # Its outcome: a result, the end of a sleep (milliseconds), the message that answered, the
    # exception; of a question, whether it is sensitive.
    value: msgspec.Raw = msgspec.Raw(b"null")
    # Of a call of another agent: its duration, which counts towards the task's budget.
    seconds: float = 0.0
    # Of a question: whether something is stored with it for the author's code only.
    withheld: bool = False
    # When it was recorded, in milliseconds: a step once it is done, a sleep as it begins; 0: not
    # recorded. And how many of them a step took, without the attempts of it that were lost.
    at: int = 0
    took: int = 0


class CancelRequested(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The caller canceled the task; the worker that runs it has to end it. Not part of any
    stream."""


class DeadlineSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task has to end by then. Not part of any stream."""

    # Milliseconds since the epoch.
    at: int


class TraceJoined(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The request that began the task belongs to a trace, and so does the task. The second event of
    a log, or absent. Not part of any stream."""

    # As in the headers of W3C Trace Context.
    parent: str
    state: str = ""


class ScopesGranted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The scopes of the credential that began the task, if there are any: code that runs again sees
    the same. Not part of any stream."""

    scopes: list[str]


class Forwarded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A gateway gave the task to another agent, or learned its id there. The latest one counts. Not
    part of any stream."""

    # The registered agent by its id, and which of its addresses.
    agent: str
    url: str
    # Which of the task's messages was sent.
    turn: int = 0
    # The agent's ids of the task and its context; empty: not known yet.
    task_id: str = ""
    context_id: str = ""
    # Whether the agent has answered anything to this message, and whether all of its answer is in
    # the log.
    is_delivered: bool = False
    is_answered: bool = False
    # How many agents had the task before this one, and why this one was chosen.
    moves: int = 0
    why: str = ""
    # Artifacts that existed when this agent got it; it makes them anew in the same order.
    begun: list[str] = []
    # Whether it waits for an answer to a question without an id.
    asks_plainly: bool = False
    # Whether the gateway made the task's id: two callers may choose the same one.
    is_ours: bool = False
    # Whether the message was sent in a context that the agent had from an earlier task.
    continues: bool = False
    # Deviations of the agent's answers from its version that were read by their meaning.
    lenient: list[str] = []


class Delegated(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code called another agent, and this is the task there. Not part of any stream."""

    # Which of the task's messages the code works on, and the index among its steps.
    turn: int
    index: int
    # The agent that the code named, and its address.
    agent: str
    url: str
    task_id: str
    # When, in milliseconds; 0: not recorded.
    at: int = 0
    # What it used of the task's budget, once it ended: seconds, and micro-credits.
    seconds: float = 0.0
    cost: int = 0


class EventDropped(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """An event that a transform removed. Not part of any stream."""


# Never shown to callers.
Private = (
    MessageAdded
    | AttemptStarted
    | TurnBegan
    | StepRecorded
    | CancelRequested
    | DeadlineSet
    | TraceJoined
    | ScopesGranted
    | Forwarded
    | Delegated
    | EventDropped
)
# A Task opens every log and every stream; a Message is the whole of a stream without a task.
Event = Task | StatusUpdate | ArtifactUpdate | Message | Private
