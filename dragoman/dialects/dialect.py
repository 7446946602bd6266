"""What every dialect can do, in both directions: servers read requests, clients read replies."""

from typing import Protocol

import msgspec

from dragoman.dialects.reading import Object, Value
from dragoman.model.events import Event
from dragoman.model.operations import Operation
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task
from dragoman.service import Reply, TaskReply


class Dialect(Protocol):
    """One version of the protocol as JSON."""

    version: str
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


def trimmed(reply: TaskReply) -> TaskReply:
    """Return the reply with only as much history as its caller asked for."""
    task = reply.reading.task
    if reply.history is None or len(task.history) <= reply.history:
        return TaskReply(reply.reading)
    latest = task.history[-reply.history :] if reply.history else []
    cut = msgspec.structs.replace(task, history=latest)
    return TaskReply(TaskReading(reply.reading.seq, cut))
