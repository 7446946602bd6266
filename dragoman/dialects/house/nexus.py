"""NEXUS agents: 0.2's method names with flat tasks, and parts of the form `{type, data}`.

Only what a client needs: a message, and a task read again. Whatever a peer answers in the shape of
0.2 is read as that.
"""

import base64
from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0, decode_state
from dragoman.errors import A2AError, InvalidParams, TaskNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import Event
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskStatus
from dragoman.service import Reply, TaskReply

# Where a part keeps what its peer called it, when that says more than the content.
TYPE = "nexus:type"


class Nexus(V0):
    """What NEXUS agents speak."""

    version = "0.2"

    def encode_request(self, operation: ops.Operation) -> tuple[str, Object]:
        """Return the method and the parameters; there are two operations."""
        match operation:
            case ops.StreamMessage():
                raise UnsupportedOperation("These agents do not stream")
            case ops.SendMessage():
                message = operation.message
                role = "user" if message.role is Role.USER else "agent"
                parts = [_encode_part(part) for part in message.parts]
                params: Object = {"message": {"role": role, "parts": parts}}
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


def decode_task(value: Value) -> Task:
    """Return a flat task: its status is one word, its messages are the conversation."""
    fields = _object(value, "result")
    task_id = TaskId(reading.identifier(reading.required(fields, "id", "result"), "result.id"))
    state = decode_state(reading.required(fields, "status", "result"), "result.status")
    said = reading.array(fields.get("messages") or [], "result.messages", _decode_message)
    last = said.pop() if said and said[-1].role is Role.AGENT else None
    return Task(
        id=task_id,
        context_id=ContextId(_optional_text(fields, "contextId")),
        status=TaskStatus(state, last),
        artifacts=[
            Artifact(
                artifact_id=f"artifact-{number}",
                parts=artifact.parts,
                name=artifact.name,
                description=artifact.description,
            )
            for number, artifact in enumerate(
                reading.array(fields.get("artifacts") or [], "result.artifacts", _decode_artifact)
            )
        ],
        history=said,
    )


def _decode_artifact(value: Value, path: str) -> Artifact:
    fields = _object(value, path)
    parts = reading.required(fields, "parts", path)
    return Artifact(
        artifact_id="",
        parts=reading.array(parts, f"{path}.parts", _decode_part),
        name=_optional_text(fields, "name"),
        description=_optional_text(fields, "description"),
    )


def _decode_message(value: Value, path: str) -> Message:
    fields = _object(value, path)
    role = Role.USER if fields.get("role") == "user" else Role.AGENT
    parts = reading.array(reading.required(fields, "parts", path), f"{path}.parts", _decode_part)
    # They have no ids; a place in the conversation tells them apart, reading after reading.
    return Message(MessageId(f"nexus:{path.removeprefix('result.')}"), role, parts)


def _decode_part(value: Value, path: str) -> Part:
    fields = _object(value, path)
    kind = fields.get("type") or fields.get("kind")
    data = fields.get("data", fields.get("text"))
    if not isinstance(kind, str) or data is None:
        raise InvalidParams("must have a type and data", field=path)
    if kind == "text" and isinstance(data, str):
        return Part(text=data)
    if isinstance(data, str) and data.startswith(("https://", "http://")):
        return Part(url=data, metadata={TYPE: kind})
    if isinstance(data, str) and kind != "data":
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            return Part(data=data, metadata={TYPE: kind})
        return Part(raw=raw, metadata={TYPE: kind})
    return Part(data=data, metadata={} if kind == "data" else {TYPE: kind})


def _encode_part(part: Part) -> Object:
    kind: Mapping[str, Any] = part.metadata
    if part.text is not UNSET:
        return {"type": "text", "data": part.text}
    if part.data is not UNSET:
        return {"type": kind.get(TYPE, "data"), "data": part.data}
    named = kind.get(TYPE) or ("image" if part.media_type.startswith("image/") else "file")
    if part.url is not UNSET:
        return {"type": named, "data": part.url}
    return {"type": named, "data": base64.b64encode(cast(bytes, part.raw)).decode()}


def _is_flat(value: Value) -> bool:
    return isinstance(value, dict) and isinstance(cast(Object, value).get("status"), str)


def _object(value: Value, path: str) -> Object:
    return reading.split(value, {}, path)[1]


def _optional_text(fields: Object, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
