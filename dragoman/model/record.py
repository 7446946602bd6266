"""The record: how events and tasks are written on disk and between our own nodes.

It is the JSON of the model itself, and so lossless. An event without unknown fields has the very
bytes of a 1.0 `StreamResponse`: readers of that version get what the disk holds, undecoded.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

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


def encode_event(event: Event) -> bytes:
    """Return the event as it stands on disk."""
    match event:
        case ArtifactUpdate():
            return encode(_Entry(artifact_update=event))
        case StatusUpdate():
            return encode(_Entry(status_update=event))
        case Task():
            return encode(_Entry(task=event))
        case Message():
            return encode(_Entry(message=event))
        case MessageAdded():
            return encode(_Entry(message_added=event))
        case AttemptStarted():
            return encode(_Entry(attempt_started=event))
        case TurnBegan():
            return encode(_Entry(turn_began=event))
        case StepRecorded():
            return encode(_Entry(step_recorded=event))
        case CancelRequested():
            return encode(_Entry(cancel_requested=event))
        case DeadlineSet():
            return encode(_Entry(deadline_set=event))
        case TraceJoined():
            return encode(_Entry(trace_joined=event))
        case ScopesGranted():
            return encode(_Entry(scopes_granted=event))
        case Forwarded():
            return encode(_Entry(forwarded=event))
        case Delegated():
            return encode(_Entry(delegated=event))
        case EventDropped():
            return encode(_Entry(event_dropped=event))


def decode_event(body: bytes) -> Event:
    """Return the event that stands on disk."""
    entry = _decode_entry(body)
    for value in (
        entry.artifact_update,
        entry.status_update,
        entry.task,
        entry.message,
        entry.message_added,
        entry.attempt_started,
        entry.turn_began,
        entry.step_recorded,
        entry.cancel_requested,
        entry.deadline_set,
        entry.trace_joined,
        entry.scopes_granted,
        entry.forwarded,
        entry.delegated,
        entry.event_dropped,
    ):
        if not isinstance(value, UnsetType):
            return value
    raise ValueError("a recorded event holds nothing this release knows")


_PUBLIC = (StatusUpdate, ArtifactUpdate, Task, Message)
_PUBLIC_BEGINNINGS = (b'{"statusUpdate"', b'{"artifactUpdate"', b'{"task"', b'{"message":')


class Recorded:
    """An event at its place in the log: as a value, as bytes, and in the shapes readers asked for.

    Each form is made from another when first needed and then shared by every reader.
    """

    __slots__ = ("_body", "_event", "seq", "shapes")

    def __init__(self, seq: int, event: Event | None = None, body: bytes | None = None) -> None:
        self.seq = seq
        self._event = event
        self._body = body
        # Encoded forms by dialect, filled by the dialects.
        self.shapes: dict[str, bytes] = {}

    @property
    def event(self) -> Event:
        """The event as a value."""
        if self._event is None:
            self._event = decode_event(self.body)
        return self._event

    @property
    def body(self) -> bytes:
        """The event as it stands on disk."""
        if self._body is None:
            assert self._event is not None, "made from an event or from its bytes"
            self._body = encode_event(self._event)
        return self._body

    @property
    def is_public(self) -> bool:
        """Whether streams show it."""
        if self._event is not None:
            return isinstance(self._event, _PUBLIC)
        return self.body.startswith(_PUBLIC_BEGINNINGS)

    @property
    def is_status(self) -> bool:
        """Whether it is a status, which may be where a stream ends."""
        if self._event is not None:
            return isinstance(self._event, StatusUpdate)
        return self.body.startswith(b'{"statusUpdate"')


class TaskReading:
    """A task as read from the log: as a value, or as the bytes of its snapshot."""

    __slots__ = ("_body", "_size", "_task", "seq")

    def __init__(
        self, seq: int, task: Task | None = None, body: bytes | None = None, size: int = 0
    ) -> None:
        self.seq = seq
        self._task = task
        self._body = body
        self._size = size

    @property
    def size(self) -> int:
        """About how many bytes it has, as far as that is known without writing it."""
        return self._size if self._body is None else len(self._body)

    @property
    def task(self) -> Task:
        """The task as a value."""
        if self._task is None:
            self._task = decode_task(self.body)
        return self._task

    @property
    def body(self) -> bytes:
        """The task as it stands on disk."""
        if self._body is None:
            assert self._task is not None, "made from a task or from its bytes"
            self._body = encode(self._task)
        return self._body
