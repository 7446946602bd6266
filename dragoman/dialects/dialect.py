"""What every dialect can do, in both directions: servers read requests, clients read replies.

Everything that differs by dialect is here, so that the endpoints need not know which one they
serve. The defaults are those of the official versions.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from dragoman.dialects import errors
from dragoman.dialects.errors import RestError
from dragoman.dialects.reading import Object, Value
from dragoman.errors import A2AError, InvalidParams
from dragoman.model import operations as ops
from dragoman.model.events import Event
from dragoman.model.message import Message
from dragoman.model.operations import Operation
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TRANSITIONS_URI, Task, TaskState
from dragoman.service import Reply, Service, TaskReply

Headers = Sequence[tuple[bytes, bytes]]


class EncodedRequest(NamedTuple):
    """What asks for an operation."""

    method: str
    params: Object


class Dialect(Protocol):
    """One version of the protocol as JSON."""

    version: str
    # What the version calls the states of a task.
    state_names: Mapping[TaskState, str]
    push_content_type: str
    # Whether `encode_push` wants the task as of the event, which costs its caller a read.
    push_needs_task: bool
    # Whether callers choose the ids of the tasks they begin, within their own namespace.
    names_tasks: bool = False
    # Whether a stream goes on while the task waits for its caller.
    keeps_open: bool = False
    # Whether who subscribes to a task that has ended gets the task, and not an error.
    shows_ended: bool = False
    # Methods whose answer clients read as server-sent events, whatever they accept: errors too.
    event_stream_methods: tuple[str, ...] = ()
    # What stands before and after each event of a REST stream, and the headers of any stream.
    rest_frame: tuple[bytes, bytes] = (b"", b"")
    stream_headers: Headers = ()

    # Requests and replies

    def decode_request(self, method: str, params: Object) -> Operation:
        """Return the operation; raises `MethodNotFound` or `InvalidParams`."""
        ...

    def encode_request(self, operation: Operation) -> EncodedRequest:
        """Return the method and the parameters that ask for an operation."""
        ...

    def around(self, service: Service, headers: Headers) -> Service:
        """Return the service that answers a request with these headers, given the agent's own."""
        return service

    def for_reply(self, reply: Reply) -> "Dialect":
        """Return the dialect in which to write a reply."""
        return self

    def encode_reply(self, operation: Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        ...

    def decode_reply(self, operation: Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        ...

    # Errors

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of a JSON-RPC answer."""
        return errors.jsonrpc(error, self.version)

    def http_status(self, error: A2AError) -> int:
        """Return the HTTP status of a JSON-RPC answer that is an error of the protocol."""
        return 200

    def encode_rest_error(
        self, error: A2AError, table: errors.Table, task_id: str = ""
    ) -> RestError:
        """Return the HTTP status and the body of a REST answer. `task_id` is the task of the
        stream that the error ends."""
        ...

    # Events

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


class ProtoDialect(Dialect, Protocol):
    """A dialect whose shapes protobuf has, too: it also gives them as plain values, in which bytes
    are bytes."""

    # What events in this shape are called among those of one record.
    proto_shape: str

    def reply_value(self, operation: Operation, reply: Reply) -> Object:
        """Return a reply."""
        ...

    def event_value(self, event: Event) -> Object:
        """Return an event in its wrapper."""
        ...


def task_params(operation: ops.GetTask | ops.CancelTask | ops.SubscribeToTask) -> Object:
    """Return the parameters that ask for a task, its end or its events."""
    params: Object = {"id": operation.task_id}
    if isinstance(operation, ops.GetTask) and operation.history is not None:
        params["historyLength"] = operation.history
    if isinstance(operation, ops.CancelTask) and operation.metadata:
        params["metadata"] = operation.metadata
    return params


def reply_to_send(event: Event) -> Reply:
    """Return the reply that an event is to a message; raises `InvalidParams` for any other."""
    match event:
        case Message():
            return event
        case Task():
            return TaskReply(TaskReading(0, event))
        case _:
            raise InvalidParams("must be a task or a message", field="result")


def with_transitions(reply: TaskReply, dialect: Dialect) -> TaskReply:
    """Return the reply with the states that its task went through in the task's metadata, in the
    words of a dialect, if the caller asked for them."""
    transitions = reply.transitions
    if transitions is None:
        return reply
    value: Object = {
        "transitions": [
            {
                "position": one.position,
                "state": dialect.state_names[one.state],
                "timestamp": one.timestamp,
            }
            for one in transitions.found
        ]
    }
    if transitions.next_position:
        value["nextPosition"] = transitions.next_position
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
