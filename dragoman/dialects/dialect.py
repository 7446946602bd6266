"""What every dialect can do, in both directions: servers read requests, clients read replies."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from dragoman.dialects.reading import Object, Value
from dragoman.model.events import Event
from dragoman.model.operations import Operation
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState
from dragoman.model.transition import TRANSITIONS_URI
from dragoman.service import Reply, TaskReply


class Dialect(Protocol):
    """One version of the protocol as JSON."""

    version: str
    # What the version calls the states of a task.
    state_names: Mapping[TaskState, str]
    push_content_type: str
    # Whether `encode_push` wants the task as of the event, which costs its caller a read.
    push_needs_task: bool

    def decode_request(self, method: str, params: Object) -> Operation:
        """Return the operation; raises `MethodNotFound` or `InvalidParams`."""
        ...

    def encode_request(self, operation: Operation) -> tuple[str, Object]:
        """Return the method and the parameters that ask for an operation."""
        ...

    def encode_reply(self, operation: Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        ...

    def decode_reply(self, operation: Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        ...

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        ...

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event of a stream."""
        ...

    def posts(self, recorded: Recorded) -> bool:
        """Tell whether receivers of pushes get a post of an event."""
        ...

    def encode_push(self, recorded: Recorded, task: Task | None) -> bytes:
        """Return the body of the post of an event."""
        ...

    def decode_event(self, value: Value) -> Event:
        """Return the event a peer's stream showed."""
        ...


def with_transitions(reply: TaskReply, dialect: Dialect) -> TaskReply:
    """Return the reply with the states that its task went through in the task's metadata, in the
    words of a dialect, if the caller asked for them."""
    told = reply.transitions
    if told is None:
        return reply
    value: Object = {
        "transitions": [
            {
                "position": one.position,
                "state": dialect.state_names[one.state],
                "timestamp": one.timestamp,
            }
            for one in told.found
        ]
    }
    if told.next_position:
        value["nextPosition"] = told.next_position
    task = reply.reading.task
    shown = msgspec.structs.replace(task, metadata={**task.metadata, TRANSITIONS_URI: value})
    return TaskReply(TaskReading(reply.reading.seq, shown), reply.history)


def trimmed(reply: TaskReply) -> TaskReply:
    """Return the reply with only as much history as its caller asked for."""
    task = reply.reading.task
    if reply.history is None or len(task.history) <= reply.history:
        return TaskReply(reply.reading)
    latest = task.history[-reply.history :] if reply.history else []
    cut = msgspec.structs.replace(task, history=latest)
    return TaskReply(TaskReading(reply.reading.seq, cut))
