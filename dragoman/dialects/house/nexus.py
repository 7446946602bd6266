"""NEXUS: 0.2's method names with flat tasks, and parts of the form `{type, data}`.

Both directions: what a client asks such an agent, and what such a client is answered. There are two
operations, a message and a task read again. Whatever a peer answers in the shape of 0.2 is read as
that.
"""

import hashlib
from typing import cast

from dragoman.dialects import reading
from dragoman.dialects.house import errors
from dragoman.dialects.house.house import House
from dragoman.dialects.house.nexus_shapes import (
    ORIGIN,
    answered,
    decode_part,
    decode_task,
    encode_message,
    encode_task,
    fields_of,
    object_of,
)
from dragoman.dialects.reading import Object, Value
from dragoman.errors import (
    A2AError,
    InvalidParams,
    MethodNotFound,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.events import Event
from dragoman.model.identity import ContextId, MessageId, TaskId, new_id
from dragoman.model.message import Message, Metadata, Role
from dragoman.model.record import TaskReading, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply, TaskReply

# The front door of a gateway.
PATH = "/api/v1/a2a"


class Nexus(House):
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
        task_id = reading.required(object_of(params, ""), "id", "")
        return ops.GetTask(task_id=TaskId(reading.identifier(task_id, "id")))

    def _decode_send(self, params: Object) -> ops.SendMessage:
        fields = object_of(params, "")
        said = object_of(reading.required(fields, "message", ""), "message")
        role = said.get("role", "user")
        if role not in ("user", "agent"):
            raise InvalidParams("must be user or agent", field="message.role")
        given = fields.get("id") or said.get("taskId") or ""
        task_id = TaskId(reading.optional_identifier(given, "id"))
        parts = reading.required(said, "parts", "message")
        context = fields.get("contextId") or said.get("contextId") or ""
        name = said.get("messageId")
        return ops.SendMessage(
            message=Message(
                message_id=MessageId(
                    reading.identifier(name, "message.messageId")
                    if name is not None
                    else _message_id(task_id, parts)
                ),
                role=Role.USER if role == "user" else Role.AGENT,
                parts=reading.parts(parts, "message.parts", decode_part),
                context_id=ContextId(reading.optional_identifier(context, "contextId")),
                task_id=task_id,
                metadata=reading.metadata(said.get("metadata") or {}, "message.metadata"),
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
                said = operation.message if isinstance(operation, ops.SendMessage) else None
                return encode(encode_task(answered(reply, said)))
            case _:
                raise UnsupportedOperation

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of an answer."""
        return errors.nexus(error)

    # Called

    def encode_request(self, operation: ops.Operation) -> tuple[str, Object]:
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
                return "message/send", params
            case ops.GetTask():
                return "tasks/get", {"id": operation.task_id}
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
# At the door of a gateway nobody waits.
NEXUS_DOOR = Nexus(waits=False)


def is_spoken(parts: Value) -> bool:
    """Tell whether the parts of a message are of this house. One of the form `{type, data}` alone
    may also be a data part of 0.1, unless it says that it is something else."""
    found = [fields_of(part) for part in cast("list[Value]", parts)] if type(parts) is list else []
    shaped = [
        part
        for part in found
        if "type" in part and "data" in part and "text" not in part and "file" not in part
    ]
    return any(part["type"] != "data" for part in shaped)


def began(message_id: str) -> bool:
    """Tell whether a task was begun by a peer of this house, by the id of its first message."""
    return message_id.startswith(ORIGIN)


def _as_begun(task: Task, message: Message) -> Task:
    """Return a task as it was when a message began it, however far it has come meanwhile: who does
    not wait is told of a record that was made, each time the same."""
    if not task.history or task.history[0].message_id != message.message_id:
        return task
    return Task(task.id, task.context_id, TaskStatus(TaskState.SUBMITTED), history=task.history[:1])


def _message_id(task_id: TaskId, parts: Value) -> str:
    """Return an id for a message without one: for the same words to the same task the same, so
    that a peer that tries again does not say them twice."""
    if not task_id:
        return ORIGIN + new_id()
    return ORIGIN + hashlib.blake2b(encode([task_id, parts]), digest_size=16).hexdigest()


def _metadata(fields: Object) -> Metadata:
    """Return what a request says besides; their own word for the agent it is for is ours too."""
    metadata = reading.metadata(fields.get("metadata") or {}, "metadata")
    agent = fields.get("assignedAgentId")
    return {"agentId": agent, **metadata} if isinstance(agent, str) else metadata


def _is_flat(value: Value) -> bool:
    return isinstance(value, dict) and isinstance(cast(Object, value).get("status"), str)
