"""NEXUS: 0.2's method names with flat tasks, and parts of the form `{type, data}`.

Both directions: what a client asks such an agent, and what such a client is answered. There are two
operations, a message and a task read again. Whatever a peer answers in the shape of 0.2 is read as
that.
"""

from typing import cast

from dragoman.dialects import house_paths, reading
from dragoman.dialects.dialect import EncodedRequest
from dragoman.dialects.house import errors
from dragoman.dialects.house.nexus_shapes import (
    ORIGIN,
    answered,
    decode_part,
    decode_task,
    encode_message,
    encode_task,
    message_id_of,
)
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0
from dragoman.errors import (
    A2AError,
    InvalidParams,
    MethodNotFound,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.events import Event
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Metadata, Role
from dragoman.model.record import TaskReading, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply, TaskReply

# The front door of a gateway.
PATH = house_paths.NEXUS


class Nexus(V0):
    """What NEXUS agents and gateways speak."""

    version = "0.2"
    names_tasks = True

    def __init__(self, *, waits: bool = True) -> None:
        """`waits` says whether an answer to a message waits for the task to rest."""
        self._waits = waits

    # Served

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        if method == "message/send":
            return self._decode_send(params)
        if method != "tasks/get":
            raise MethodNotFound(method=method)
        task_id = reading.required(reading.mapping(params, ""), "id", "")
        return ops.GetTask(task_id=TaskId(reading.identifier(task_id, "id")))

    def _decode_send(self, params: Object) -> ops.SendMessage:
        fields = reading.mapping(params, "")
        message = reading.mapping(reading.required(fields, "message", ""), "message")
        role = message.get("role", "user")
        if role not in ("user", "agent"):
            raise InvalidParams("must be user or agent", field="message.role")
        given = fields.get("id") or message.get("taskId") or ""
        task_id = TaskId(reading.optional_identifier(given, "id"))
        parts = reading.required(message, "parts", "message")
        context = fields.get("contextId") or message.get("contextId") or ""
        name = message.get("messageId")
        return ops.SendMessage(
            message=Message(
                message_id=MessageId(
                    reading.identifier(name, "message.messageId")
                    if name is not None
                    else message_id_of(ORIGIN, task_id, parts)
                ),
                role=Role.USER if role == "user" else Role.AGENT,
                parts=reading.parts(parts, "message.parts", decode_part),
                context_id=ContextId(reading.optional_identifier(context, "contextId")),
                task_id=task_id,
                metadata=reading.metadata(message.get("metadata") or {}, "message.metadata"),
            ),
            wait=self._waits,
            metadata=_metadata(fields),
        )

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply, which is a flat task in any case."""
        match reply:
            case TaskReply():
                task = reply.reading.task
                if not self._waits and isinstance(operation, ops.SendMessage):
                    task = _as_begun(task, operation.message)
                return encode(encode_task(task))
            case Message():
                message = operation.message if isinstance(operation, ops.SendMessage) else None
                return encode(encode_task(answered(reply, message)))
            case _:
                raise UnsupportedOperation

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of an answer."""
        return errors.nexus(error)

    # Called

    def encode_request(self, operation: ops.Operation) -> EncodedRequest:
        """Return the method and the parameters; there are two operations."""
        match operation:
            case ops.StreamMessage():
                raise UnsupportedOperation("These agents do not stream")
            case ops.SendMessage():
                message = operation.message
                params: Object = {"message": encode_message(message)}
                if message.task_id:
                    params["id"] = message.task_id
                if message.context_id:
                    params["contextId"] = message.context_id
                return EncodedRequest("message/send", params)
            case ops.GetTask():
                return EncodedRequest("tasks/get", {"id": operation.task_id})
            case _:
                raise UnsupportedOperation("These agents have no such operation")

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply: a flat task, unless it has the shape of 0.2."""
        if _is_flat(value):
            return TaskReply(TaskReading(0, decode_task(value)))
        return super().decode_reply(operation, value)

    def decode_event(self, value: Value) -> Event:
        """Return the event; these agents only ever show whole tasks."""
        return decode_task(value) if _is_flat(value) else super().decode_event(value)

    def decode_error(self, operation: ops.Operation, error: A2AError) -> A2AError:
        """Return what an error means here: these agents have no code for an unknown task."""
        if isinstance(operation, ops.GetTask) and isinstance(error, InvalidParams):
            missing = TaskNotFound(taskId=operation.task_id)
            missing.code = error.code
            return missing
        return error


NEXUS = Nexus()
# At a gateway's own path the answer does not wait for the task.
NEXUS_DOOR = Nexus(waits=False)


def is_spoken(params: Value) -> bool:
    """Tell whether the parts of a message are of this house. One of the form `{type, data}` alone
    may also be a data part of 0.1, unless it says that it is something else."""
    parts = reading.elements(reading.members(reading.members(params).get("message")).get("parts"))
    return any(_is_typed(reading.members(part)) for part in parts)


def _is_typed(part: Object) -> bool:
    return (
        part.keys() >= {"type", "data"}
        and part["type"] != "data"
        and not (part.keys() & {"text", "file"})
    )


def is_origin(message_id: str) -> bool:
    """Tell whether a task was begun by a peer of this house, by the id of its first message."""
    return message_id.startswith(ORIGIN)


def _as_begun(task: Task, message: Message) -> Task:
    """Return a task as it was when a message began it, however far it has come meanwhile: a
    caller that does not wait is shown the record that was made, each time the same."""
    if not task.history or task.history[0].message_id != message.message_id:
        return task
    return Task(task.id, task.context_id, TaskStatus(TaskState.SUBMITTED), history=task.history[:1])


def _metadata(fields: Object) -> Metadata:
    """Return what a request says besides; their own word for the agent it is for is ours too."""
    metadata = reading.metadata(fields.get("metadata") or {}, "metadata")
    agent = fields.get("assignedAgentId")
    return {"agentId": agent, **metadata} if isinstance(agent, str) else metadata


def _is_flat(value: Value) -> bool:
    return isinstance(value, dict) and isinstance(cast(Object, value).get("status"), str)
