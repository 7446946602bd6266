"""What several endpoints of the operator API take and return, and what is about tasks; the rest is
beside its endpoints."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.model.clock import stamp
from dragoman.model.task import TaskState

MOST = 200
MOST_EVENTS = 500
_LONGEST = 256

Limit = Annotated[int, Meta(ge=1, le=MOST)]
EventLimit = Annotated[int, Meta(ge=1, le=MOST_EVENTS)]
# Positions have 20 bits in some stores.
Position = Annotated[int, Meta(ge=0, lt=1 << 40)]
Name = Annotated[str, Meta(max_length=_LONGEST)]
# RFC 3339.
Instant = Annotated[str, Meta(max_length=40)]
Token = Annotated[str, Meta(max_length=_LONGEST)]


def instant(milliseconds: int) -> str:
    """Return a time as answers have it; empty: there is none."""
    return stamp(milliseconds * 1000) if milliseconds else ""


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer: it has the names of JSON."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which part of a list is wanted."""

    limit: Limit = 50
    page_token: Token = ""


# What is asked for


class TaskSearch(PageQuery, frozen=True, kw_only=True):
    """Which tasks are wanted; what is left out is not looked at."""

    state: TaskState | UnsetType = UNSET
    agent: Name = ""
    # In a gateway: the id of the registered agent that got it.
    to: Name = ""
    # Whether to list tasks that are the delivery of a gateway's task to an agent of this server.
    deliveries: Literal["show", "hide"] = "show"
    context: Name = ""
    owner: Name | UnsetType = UNSET
    tenant: Name | UnsetType = UNSET
    # Of the last status: not before the one, and before the other.
    since: Instant = ""
    until: Instant = ""
    # Words of the first message or of the error, each from its beginning.
    text: Name = ""


class OneTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which of several tasks of one id is meant."""

    agent: Name = ""
    owner: Name | UnsetType = UNSET
    tenant: Name | UnsetType = UNSET


class StateQuery(OneTask, frozen=True, kw_only=True):
    """The task as of which position; 0: as it is."""

    at: Position = 0


class EventQuery(OneTask, frozen=True, kw_only=True):
    """Which events are wanted: those after a position or, if it is given, the last before one."""

    after: Position = 0
    before: Position = 0
    limit: EventLimit = 100
    # As a caller of this version gets them; empty: as they are stored.
    version: Literal["", "1.0", "0.3", "0.2"] = ""


class AfterQuery(OneTask, frozen=True, kw_only=True):
    """From which position on."""

    after: Position = 0


class InboxQuery(PageQuery, frozen=True, kw_only=True):
    """Whose requests are wanted."""

    agent: Name = ""
    tenant: Name | UnsetType = UNSET


class InboxAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer to a request, or why it is declined."""

    # Of the request, or of its task if that has only one.
    id: Annotated[str, Meta(min_length=1, max_length=_LONGEST)]
    value: Any = UNSET
    decline: Annotated[str, Meta(max_length=2000)] = ""


# What is answered


class Me(Shape, frozen=True):
    """Who asks, and what it may see."""

    role: Literal["operator", "admin", "caller"]
    owner: str
    tenant: str
    is_authenticated: bool
    agents: list[str]
    has_registry: bool
    version: str


class TaskItem(Shape, frozen=True):
    """A task as lists show it."""

    id: str
    context_id: str
    agent: str
    tenant: str
    owner: str
    state: TaskState
    status_at: str
    made_at: str
    # The last position of its log.
    events: int
    # The process that holds it; 0: none.
    worker: int
    # Of the first message.
    words: str
    skill: str = ""
    # The registered agent that it was given to.
    to: str = ""
    # Why it failed, was rejected or canceled.
    error: str = ""
    # Credits that were taken for it, or are about to be.
    cost: float = 0.0


class TaskItems(Shape, frozen=True):
    """A page of tasks."""

    items: list[TaskItem]
    next_page_token: str
    # Of a search for words: the index is not complete yet, and tasks may be missing.
    is_partial: bool = False


class InboxItem(Shape, frozen=True, omit_defaults=True):
    """Something that waits for a person."""

    id: str
    kind: str
    prompt: str
    task_id: str
    context_id: str
    agent: str
    tenant: str
    owner: str
    since: str
    # The first words of its task.
    words: str = ""
    # In a gateway: the id of the registered agent that asks.
    to: str = ""
    sensitive: bool = False
    choices: list[str] = []
    schema: Any = None
    name: str = ""
    args: Any = None
    due: str = ""
    problem: str = ""
    handoff: Any = None


class InboxItems(Shape, frozen=True):
    """A page of what waits."""

    items: list[InboxItem]
    next_page_token: str


class Answered(Shape, frozen=True):
    """An answer was taken."""

    task_id: str
    result: Literal["answered"]


class TaskView(Shape, frozen=True):
    """One task: what lists show, and what its log says of it now."""

    task: TaskItem
    is_ended: bool
    # Whether it rests, and the process that ran it last has stopped or was killed since. When is
    # not recorded: a task that rests is held by no process, and any goes on with it.
    has_process_left: bool
    # Which attempt is under way, and until when it has to end; empty: whenever.
    attempt: int
    deadline: str
    # Why a gateway chose the agent that has it; empty: its caller named the agent, or there was no
    # choice.
    why: str
    requests: list[InboxItem]


class TaskAt(Shape, frozen=True):
    """A task as of a position, as A2A 1.0 has it."""

    position: int
    task: Any


class EventItem(Shape, frozen=True):
    """One event of a task."""

    position: int
    # Empty where the event has no time of its own.
    at: str
    kind: str
    # Whether streams of callers have it.
    is_public: bool
    event: Any


class EventItems(Shape, frozen=True):
    """A window of a log."""

    items: list[EventItem]
    # The last position there is, and where the next window begins; 0: this was the last.
    last: int
    next_after: int


class TransitionItem(Shape, frozen=True, omit_defaults=True):
    """Something that a timeline shows."""

    position: int
    # As of its event; a step is also a `sleep`, an `ask` or an `answer`.
    kind: str
    at: str = ""
    state: TaskState | UnsetType = UNSET
    # A line for people.
    text: str = ""
    # Of a call of another agent, and its task there.
    agent: str = ""
    task_id: str = ""
    # How many chunks of artifacts were recorded one after the other, from `position` on.
    chunks: int = 0
    # What a step or a call took, until `at`; what a sleep is to last, from `at` on.
    seconds: float = 0.0


class PushMark(Shape, frozen=True, omit_defaults=True):
    """What became of a task's events at one receiver."""

    # The event that it is about: the last that was taken, else the one that was not.
    position: int
    kind: Literal["delivered", "waiting", "failing", "dead"]
    # The receiver, without path and query.
    url: str
    # Since when it fails, or when it was given up; when it was taken is not recorded.
    at: str = ""
    tries: int = 0
    due_at: str = ""
    # For operators.
    problem: str = ""


class TransitionItems(Shape, frozen=True):
    """A window of what a timeline shows, and what became of its events at receivers."""

    items: list[TransitionItem]
    next_after: int
    pushes: list[PushMark] = []


class Node(Shape, frozen=True, omit_defaults=True):
    """A task of a tree, and those below it. Of a task in another store only the place is known,
    and what the gateway that gave it away heard of it."""

    id: str
    agent: str = ""
    url: str = ""
    task: TaskItem | UnsetType = UNSET
    # Of a task in another store: its state, as far as it is known here.
    state: TaskState | UnsetType = UNSET
    # What the call took: seconds, and credits.
    seconds: float = 0.0
    cost: float = 0.0
    at: str = ""
    children: list["Node"] = []
    # Whether there is more below than is shown.
    is_cut: bool = False


class Origin(Shape, frozen=True, omit_defaults=True):
    """Who ordered the topmost task of a tree, as its caller claims: what is known of it here."""

    # The gateways that it passed, by their ids, and the tasks that wait for it; the nearest last.
    gateways: list[str] = []
    task_ids: list[str] = []
    # Of the message with which the first gateway was called.
    message_id: str = ""
    # The id of the trace that it is in.
    trace: str = ""


class Tree(Shape, frozen=True, omit_defaults=True):
    """The tree that a task is in."""

    # The task that was asked about.
    id: str
    top: Node
    # Left out where its caller is no agent and no gateway.
    origin: Origin | UnsetType = UNSET


class TopQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of which time."""

    minutes: Annotated[int, Meta(ge=1, le=24 * 60)] = 15


class TopItem(Shape, frozen=True):
    """A name that many tasks have."""

    # Of an agent behind a gateway its id; of an error its words.
    name: str
    tasks: int
    failed: int
    # Credits.
    cost: float
    # The latest of these tasks.
    task_id: str


class TopLists(Shape, frozen=True):
    """Who and what there is most of, the most first."""

    since: str
    # How many tasks were counted, and whether there are more.
    tasks: int
    is_cut: bool
    agents: list[TopItem]
    callers: list[TopItem]
    skills: list[TopItem]
    errors: list[TopItem]


class Done(Shape, frozen=True):
    """It is done."""

    result: str
