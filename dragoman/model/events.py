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


class MessageAdded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The caller said something more. Part of the log and the history, not of any stream:
    the protocol has no event for it."""

    message: Message
    # What its request said besides.
    metadata: Metadata = {}
    # Whether it answers a sensitive question: then it is a placeholder, and what was really said
    # is kept apart for the code alone.
    withheld: bool = False
    # What its sender's credential grants, for the code alone.
    scopes: list[str] = []


class AttemptStarted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A worker took the task over from one that died, or runs it under other conditions than
    before. Not part of any stream."""

    attempt: int
    # Whether the code is charged with the death: it alone was under way.
    counts: bool = True
    # Whether it was under way beside others, any of which may be to blame.
    suspected: bool = False
    # The worker that runs it and nothing else beside it; 0: it has company.
    alone_in: int = 0
    # The worker in which the suspects have their turns, and this is its own; 0: it is not, or over.
    turn_in: int = 0
    # Whether the death came in its turn, though beside others: it is the likeliest of them.
    caught: bool = False


class TurnBegan(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code was given a further message to begin with. Not part of any stream."""

    # Which of the task's messages: 0 is the first.
    message: int


class StepKind(enum.Enum):
    """What a durable step of an agent's code was."""

    STEP = "step"
    # A step that raised, and the code went on with something else.
    FAILURE = "failure"
    SLEEP = "sleep"
    # The question, and the message that answered it.
    ASK = "ask"
    ANSWER = "answer"


class StepRecorded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code did something it need not do again. Not part of any stream."""

    kind: StepKind
    # Its place among the steps of its turn.
    index: int
    name: str
    # What came of it: a result, when a sleep ends (milliseconds), which message answered, what was
    # raised; of a question, whether it is sensitive.
    value: msgspec.Raw = msgspec.Raw(b"null")
    # Of the call of another agent: how long it took, which is on the task's budget.
    seconds: float = 0.0
    # Of a question, whether something is kept with it for the code alone.
    withheld: bool = False


class CancelRequested(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The caller wants the task to end, and whoever works on it is to see to it. Not part of any
    stream."""


class DeadlineSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task has to end by then. Not part of any stream."""

    # Milliseconds since the epoch.
    at: int


class TraceJoined(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The request that began the task belongs to a trace, and so does all that comes of it. Second
    in its log, or nowhere. Not part of any stream."""

    # As the headers of W3C Trace Context say it.
    parent: str
    state: str = ""


class ScopesGranted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """What the credential of the caller who began the task grants, if it grants anything: code that
    runs again sees the same. Not part of any stream."""

    scopes: list[str]


class Forwarded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A gateway gave the task to another agent, or learned what it is called there. The latest one
    counts. Not part of any stream."""

    # The registered agent by its id, and which of its addresses.
    agent: str
    url: str
    # Which of the task's messages was sent.
    turn: int = 0
    # What the agent calls the task and its context; empty: it has not said so.
    task_id: str = ""
    context_id: str = ""
    # Whether the agent has answered anything to this message, and whether all of its answer is in
    # the log.
    is_delivered: bool = False
    is_answered: bool = False
    # How many agents were given the task before this one, and why this one.
    moves: int = 0
    why: str = ""
    # Artifacts there were when it was given to this one, which makes them anew in the same order.
    begun: list[str] = []
    # Whether it waits for an answer and gave its question no id: it may know nothing of ids.
    asks_plainly: bool = False
    # Whether the task's id is known to be ours: one that its caller chose may be another's too.
    is_ours: bool = False
    # What of the agent's answers was not as its version has it, and read for what it means.
    lenient: list[str] = []


class Delegated(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The code had another agent do something, and this is what it is called there. Not part of any
    stream."""

    # Which of the task's messages the code works on, and the place among its steps.
    turn: int
    index: int
    # Whom the code named, and where that is.
    agent: str
    url: str
    task_id: str
    # When, in milliseconds; 0: nobody noted it.
    at: int = 0
    # What came of it on a task's budget, once it ended: seconds, and micro-credits.
    seconds: float = 0.0
    cost: int = 0


class EventDropped(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """There was an event here that a transform took away. Not part of any stream."""


# What only we read.
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
