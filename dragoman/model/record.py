"""The record: the JSON of events and tasks on disk and between processes.

It is the JSON of the model itself, and so lossless. An event without unknown fields has the same
bytes as a 1.0 `StreamResponse`: readers of that version get the stored bytes, undecoded.
"""

from collections.abc import Callable
from typing import Any, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

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
from dragoman.model.message import Message
from dragoman.model.task import Task

# The member that holds unknown fields; record bytes without it are plain 1.0 JSON.
EXTRA_MEMBER = b'"~":'

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct, omit_defaults=True, rename="camel", gc=False):
    task: Task | UnsetType = UNSET
    message: Message | UnsetType = UNSET
    status_update: StatusUpdate | UnsetType = UNSET
    artifact_update: ArtifactUpdate | UnsetType = UNSET
    message_added: MessageAdded | UnsetType = UNSET
    attempt_started: AttemptStarted | UnsetType = UNSET
    turn_began: TurnBegan | UnsetType = UNSET
    step_recorded: StepRecorded | UnsetType = UNSET
    cancel_requested: CancelRequested | UnsetType = UNSET
    deadline_set: DeadlineSet | UnsetType = UNSET
    trace_joined: TraceJoined | UnsetType = UNSET
    scopes_granted: ScopesGranted | UnsetType = UNSET
    forwarded: Forwarded | UnsetType = UNSET
    delegated: Delegated | UnsetType = UNSET
    event_dropped: EventDropped | UnsetType = UNSET


_decode_entry = msgspec.json.Decoder(_Entry).decode
decode_task = msgspec.json.Decoder(Task).decode
decode_message = msgspec.json.Decoder(Message).decode


# The member of each kind of event.
MEMBERS: dict[type[Event], str] = {
    get_args(field.type)[0]: field.encode_name for field in fields(_Entry)
}


def encode_event(event: Event) -> bytes:
    """Return the event as it is stored."""
    return encode({MEMBERS[type(event)]: event})


def decode_event(body: bytes) -> Event:
    """Return the event that is stored."""
    for value in msgspec.structs.astuple(_decode_entry(body)):
        if value is not UNSET:
            return value
    raise ValueError("a recorded event holds nothing this release knows")


# How the bytes of events begin that streams show, and those of one that may end a stream.
STATUS_EVENT = b'{"statusUpdate"'
ARTIFACT_EVENT = b'{"artifactUpdate"'
PUBLIC_EVENTS = (STATUS_EVENT, ARTIFACT_EVENT, b'{"task"', b'{"message":')


# Stands for a form that is not made yet.
_MISSING: Any = None


# Structs, because several are made for each task. What one holds does not lead back to it, so the
# garbage collector need not look.
class Recorded(msgspec.Struct, eq=False, gc=False):
    """An event at its position in the log: as a value, as bytes, and encoded for readers.

    It is made from both forms, or by `of_event` or `of_body` from one. A form that is missing is
    made when it is first read, and then shared by every reader.
    """

    # A struct would print its fields, and with them messages.
    __repr__ = object.__repr__

    seq: int
    # As a value, and as it is stored.
    event: Event
    body: bytes
    # None: it is encoded for no reader yet. Most are chunks, which are encoded without it.
    _shapes: dict[str, bytes] | None = None

    @classmethod
    def of_event(cls, seq: int, event: Event) -> "Recorded":
        """Return an event that is not encoded yet."""
        recorded = cls(seq, event, _MISSING)
        del recorded.body
        return recorded

    @classmethod
    def of_body(cls, seq: int, body: bytes) -> "Recorded":
        """Return an event that is not decoded yet."""
        recorded = cls(seq, _MISSING, body)
        del recorded.event
        return recorded

    def __getattr__(self, name: str) -> Any:
        """Make the form that is missing; forms that are there are read without this call."""
        if name == "event":
            self.event = decode_event(self.body)
            return self.event
        if name == "body":
            self.body = encode_event(self.event)
            return self.body
        raise AttributeError(name)

    @property
    def shapes(self) -> dict[str, bytes]:
        """Encoded forms by dialect, filled by the dialects."""
        if self._shapes is None:
            self._shapes = {}
        return self._shapes

    @property
    def is_public(self) -> bool:
        """Whether streams show it."""
        return self.body.startswith(PUBLIC_EVENTS)

    @property
    def is_status(self) -> bool:
        """Whether it is a status, which may end a stream."""
        return self.body.startswith(STATUS_EVENT)


class TaskReading(msgspec.Struct, eq=False):
    """A task as read from the log: as a value, or as the bytes of its snapshot. The form that is
    missing is made when it is first read."""

    __repr__ = object.__repr__

    seq: int
    # As a value, and as it is stored.
    task: Task = _MISSING
    body: bytes = _MISSING
    # The approximate size in bytes, known without encoding the task.
    size: int = 0

    def __post_init__(self) -> None:
        if self.task is None:  # pyright: ignore[reportUnnecessaryComparison]  # `_MISSING`
            del self.task
        if self.body is None:  # pyright: ignore[reportUnnecessaryComparison]  # `_MISSING`
            del self.body
        else:
            self.size = len(self.body)

    def __getattr__(self, name: str) -> Any:
        """Make the form that is missing; forms that are there are read without this call."""
        if name == "task":
            self.task = decode_task(self.body)
            return self.task
        if name == "body":
            self.body = encode(self.task)
            self.size = len(self.body)
            return self.body
        raise AttributeError(name)
