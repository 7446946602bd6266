"""What the operator API takes and returns, as OpenAPI describes it."""

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


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answers have the names of JSON."""


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


class ReceiverQuery(PageQuery, frozen=True, kw_only=True):
    """Which receivers are wanted."""

    which: Literal["all", "failing"] = "all"


class DroppedLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dead letter that is to be forgotten: its receiver, and the position of its event."""

    receiver: Annotated[int, Meta(ge=1, lt=1 << 40)]
    position: Annotated[int, Meta(ge=1, lt=1 << 31)]


# As `dragoman keys create` takes it.
KeyName = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,200}$")]
Seconds = Annotated[int, Meta(ge=1, le=100 * 365 * 86400)]


class KeyToMake(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """An API key to make."""

    owner: KeyName
    scopes: Annotated[list[KeyName], Meta(max_length=100)] = []
    # The only tenant it may act in.
    tenant: Name | None = None
    # Null: until it is revoked.
    expires_seconds: Seconds | None = None


class KeyRotation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """How a key is followed by another: for how long both are good, and the successor alone."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=100 * 365 * 86400)] = 86400
    expires_seconds: Seconds | None = None


class StoreInspection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A read of the store: what of it, as `ledger.balances`, and with which arguments."""

    read: Name
    arguments: dict[str, Any] = {}


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """Which lines are wanted, by how they begin."""

    act: Name = ""
    who: Name = ""
    # Not before this instant.
    since: Instant = ""


# What is answered


class Me(_Shape, frozen=True):
    """Who asks, and what it may see."""

    role: Literal["operator", "admin", "caller"]
    owner: str
    tenant: str
    is_authenticated: bool
    agents: list[str]
    has_registry: bool
    version: str


class TaskItem(_Shape, frozen=True):
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


class TaskItems(_Shape, frozen=True):
    """A page of tasks."""

    items: list[TaskItem]
    next_page_token: str
    # Of a search for words: the index is not complete yet, and tasks may be missing.
    is_partial: bool = False


class InboxItem(_Shape, frozen=True, omit_defaults=True):
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


class InboxItems(_Shape, frozen=True):
    """A page of what waits."""

    items: list[InboxItem]
    next_page_token: str


class Answered(_Shape, frozen=True):
    """An answer was taken."""

    task_id: str
    result: Literal["answered"]


class TaskView(_Shape, frozen=True):
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


class TaskAt(_Shape, frozen=True):
    """A task as of a position, as A2A 1.0 has it."""

    position: int
    task: Any


class EventItem(_Shape, frozen=True):
    """One event of a task."""

    position: int
    # Empty where the event has no time of its own.
    at: str
    kind: str
    # Whether streams of callers have it.
    is_public: bool
    event: Any


class EventItems(_Shape, frozen=True):
    """A window of a log."""

    items: list[EventItem]
    # The last position there is, and where the next window begins; 0: this was the last.
    last: int
    next_after: int


class TransitionItem(_Shape, frozen=True, omit_defaults=True):
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


class PushMark(_Shape, frozen=True, omit_defaults=True):
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


class TransitionItems(_Shape, frozen=True):
    """A window of what a timeline shows, and what became of its events at receivers."""

    items: list[TransitionItem]
    next_after: int
    pushes: list[PushMark] = []


class Node(_Shape, frozen=True, omit_defaults=True):
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


class Origin(_Shape, frozen=True, omit_defaults=True):
    """Who ordered the topmost task of a tree, as its caller claims: what is known of it here."""

    # The gateways that it passed, by their ids, and the tasks that wait for it; the nearest last.
    gateways: list[str] = []
    task_ids: list[str] = []
    # Of the message with which the first gateway was called.
    message_id: str = ""
    # The id of the trace that it is in.
    trace: str = ""


class Tree(_Shape, frozen=True, omit_defaults=True):
    """The tree that a task is in."""

    # The task that was asked about.
    id: str
    top: Node
    # Left out where its caller is no agent and no gateway.
    origin: Origin | UnsetType = UNSET


class AgentSample(_Shape, frozen=True):
    """Figures of one agent."""

    started: float = 0
    ended: float = 0
    failed: float = 0
    # Milliseconds that its code worked on a message.
    p50: float = 0
    p99: float = 0


class Sample(_Shape, frozen=True):
    """Figures of some seconds, of all workers of this port."""

    number: int
    at: str
    seconds: float
    started: float
    ended: float
    failed: float
    running: float
    waiting: float
    streams: float
    requests: float
    errors: float
    refused: float
    # Milliseconds from a request that sends a message to its answer or first event.
    p50: float
    p99: float
    memory: float
    agents: dict[str, AgentSample]


class Samples(_Shape, frozen=True):
    """The last fifteen minutes."""

    every: float
    items: list[Sample]


class TopQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of which time."""

    minutes: Annotated[int, Meta(ge=1, le=24 * 60)] = 15


class TopItem(_Shape, frozen=True):
    """A name that many tasks have."""

    # Of an agent behind a gateway its id; of an error its words.
    name: str
    tasks: int
    failed: int
    # Credits.
    cost: float
    # The latest of these tasks.
    task_id: str


class TopLists(_Shape, frozen=True):
    """Who and what there is most of, the most first."""

    since: str
    # How many tasks were counted, and whether there are more.
    tasks: int
    is_cut: bool
    agents: list[TopItem]
    callers: list[TopItem]
    skills: list[TopItem]
    errors: list[TopItem]


class TroubleItem(_Shape, frozen=True):
    """A part that does not work at present."""

    part: str
    reason: str


class ServerStatus(_Shape, frozen=True):
    """How the server is."""

    version: str
    # ok, stopping or broken.
    state: str
    agents: list[str]
    # The ways in which callers prove who they are.
    authentication: list[str]
    worker: int
    # Whether no other process uses the store.
    is_alone: bool
    running_tasks: int
    open_streams: int
    audit_lines_lost: int
    troubles: list[TroubleItem]
    # How many tasks of all owners are in each state.
    tasks: dict[str, int]


class SettingItem(_Shape, frozen=True):
    """A setting: what holds, and where it comes from."""

    name: str
    group: str
    # As people write it; of a secret only whether it is set.
    value: str
    default: str
    source: Literal["default", "environment", "file", "given"]
    about: str


class SettingItems(_Shape, frozen=True):
    """All settings."""

    items: list[SettingItem]


class StoreFacts(_Shape, frozen=True):
    """What tasks are kept in."""

    # Without a password.
    name: str
    kind: Literal["sqlite", "postgresql", "memory"]
    bytes: int
    # Left beside the file; null: that is not known here.
    free_bytes: int | None
    is_almost_full: bool
    # By how many bytes it grows in an hour, as the last minutes tell; null: not known yet.
    bytes_per_hour: int | None
    # The last migration that was run on it; 0: it has none.
    schema: int
    tasks: int
    # How long, and how many, finished tasks are kept.
    retain_seconds: int
    retain_tasks: int


class KeyItem(_Shape, frozen=True):
    """An API key, without its text."""

    id: str
    # active, expired, revoked or refused; of an agent's key also that it ended with its parent.
    state: str
    owner: str
    scopes: list[str]
    tenant: str | None
    # Of an agent's key: whose, how it was called, and the credentials above it.
    agent: str | None
    name: str | None
    parent: str | None
    made_by: list[str]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    followed_by: str | None


class MadeKeyItem(KeyItem, frozen=True):
    """An API key with its text, which is shown only now."""

    key: str
    # Of a successor: the key before it, and until when that one is good.
    replaces: str | UnsetType = UNSET
    replaced_until: str | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"MadeKeyItem(id={self.id!r}, key='***')"


class KeyItems(_Shape, frozen=True):
    """API keys of the server."""

    items: list[KeyItem]


class ProcessItem(_Shape, frozen=True):
    """A process that uses the store."""

    number: int
    state: Literal["live", "frozen", "dead"]
    is_this: bool
    # Whether another one should have taken over what it held.
    is_due: bool
    # Tasks under way that it holds. Those that wait for a person rest: no process holds them.
    tasks: int


class ProcessItems(_Shape, frozen=True):
    """All processes of the store."""

    items: list[ProcessItem]


class QuietItem(_Shape, frozen=True):
    """A task under way that shows nothing."""

    task: TaskItem
    # Of its last sign.
    since: str
    # Whether its agent has not answered at all.
    is_unanswered: bool


class QuietItems(_Shape, frozen=True):
    """Tasks under way that show nothing."""

    items: list[QuietItem]


class ReceiverItem(_Shape, frozen=True):
    """A receiver of a task's events, and how far it is."""

    number: int
    url: str
    task_id: str
    agent: str
    tenant: str
    owner: str
    # The last event that is dealt with, and the last that there is.
    position: int
    last: int
    tries: int
    due_at: str
    failing_since: str
    is_open: bool
    problem: str


class ReceiverItems(_Shape, frozen=True):
    """A page of receivers."""

    items: list[ReceiverItem]
    next_page_token: str


class LetterItem(_Shape, frozen=True):
    """An event that a receiver never took."""

    receiver: int
    task_id: str
    url: str
    position: int
    tries: int
    at: str
    problem: str


class LetterReplay(_Shape, frozen=True):
    """What became of an event that was posted once more."""

    result: Literal["delivered", "failed"]
    problem: str = ""


class LetterItems(_Shape, frozen=True):
    """A page of dead letters."""

    items: list[LetterItem]
    next_page_token: str


class InspectedStore(_Shape, frozen=True):
    """What a read of the store returned."""

    value: Any


class TrustRulesItem(_Shape, frozen=True):
    """How a gateway makes scores of what it observed."""

    policy: str
    cap: int


class Done(_Shape, frozen=True):
    """It is done."""

    result: str


class AuditItem(_Shape, frozen=True):
    """A line of the audit log."""

    seq: int
    at: str
    act: str
    outcome: str
    who: str
    object: str
    reason: str
    address: str
    count: int


class AuditItems(_Shape, frozen=True):
    """A page of the audit log."""

    items: list[AuditItem]
    next_page_token: str


class ChainProblemItem(_Shape, frozen=True):
    """Where the chain does not hold."""

    file: str
    line: int
    what: str


class AuditChain(_Shape, frozen=True):
    """Whether the chain of the audit log holds."""

    is_valid: bool
    lines: int
    problems: list[ChainProblemItem]
