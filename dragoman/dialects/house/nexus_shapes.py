"""The objects of NEXUS: flat tasks, messages without ids, parts of the form `{type, data}`."""

import base64
import hashlib
import re
from typing import cast

from msgspec import UNSET

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3_shapes import ROLE_NAMES, STATE_NAMES, decode_state
from dragoman.errors import InvalidParams
from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, MessageId, TaskId, new_id
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.patterns import late_pattern
from dragoman.model.record import encode
from dragoman.model.task import TRANSITIONS_URI, Task, TaskState, TaskStatus

# Where a part keeps what its peer called it, when that says more than the content.
TYPE = "nexus:type"
# What ids of messages begin with that came without one.
ORIGIN = "nexus:"
# States this house has no word for; the true one is in the task's metadata.
_NEAREST = {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"}
_STATES = STATE_NAMES | _NEAREST
# Types of parts whose data, if it is a text, is a file or where one is.
_FILES = ("image", "file", "audio", "video")
_DATA_URL = late_pattern(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,(.*)\Z", re.DOTALL)


def encode_task(task: Task) -> Object:
    """Return a task with its status as one word and the conversation as its messages."""
    state = task.status.state
    value: Object = {
        "id": task.id,
        "status": _STATES[state],
        "messages": [encode_message(message) for message in conversation(task)],
        "artifacts": [_encode_artifact(artifact) for artifact in task.artifacts],
    }
    metadata: Metadata = {"a2aState": STATE_NAMES[state]} if state in _NEAREST else {}
    if TRANSITIONS_URI in task.metadata:
        metadata[TRANSITIONS_URI] = task.metadata[TRANSITIONS_URI]
    if metadata:
        value["metadata"] = metadata
    return value


def conversation(task: Task) -> list[Message]:
    """Return all that was said, the agent's answer last: its results where it said nothing."""
    messages = [*task.history]
    if task.status.message is not None:
        messages.append(task.status.message)
    is_answered = any(message.role is Role.AGENT for message in messages)
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    if parts and not is_answered and task.status.state.is_terminal:
        messages.append(Message(MessageId(f"{task.id}:answer"), Role.AGENT, parts))
    return messages


def message_id_of(origin: str, task_id: str, parts: Value) -> str:
    """Return an id for a message without one: for the same words to the same task the same, so
    that a peer that tries again does not say them twice."""
    if not task_id:
        return origin + new_id()
    return origin + hashlib.blake2b(encode([task_id, parts]), digest_size=16).hexdigest()


def answered(reply: Message, message: Message | None) -> Task:
    """Return a message without a task as the task that some peers expect instead."""
    return Task(
        id=reply.task_id or TaskId(reply.message_id),
        context_id=reply.context_id,
        status=TaskStatus(TaskState.COMPLETED, reply),
        history=[] if message is None else [message],
    )


def decode_task(value: Value) -> Task:
    """Return a flat task: its status is one word, its messages are the conversation."""
    fields = reading.mapping(value, "result")
    task_id = TaskId(reading.identifier(reading.required(fields, "id", "result"), "result.id"))
    state = decode_state(reading.required(fields, "status", "result"), "result.status")
    true = reading.members(fields.get("metadata")).get("a2aState")
    if type(true) is str:
        state = decode_state(true, "result.metadata.a2aState")
    messages = reading.array(fields.get("messages") or [], "result.messages", _decode_message)
    last = messages.pop() if messages and messages[-1].role is Role.AGENT else None
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
        history=messages,
    )


def _decode_artifact(value: Value, path: str) -> Artifact:
    fields = reading.mapping(value, path)
    parts = reading.required(fields, "parts", path)
    return Artifact(
        artifact_id="",
        parts=reading.array(parts, f"{path}.parts", decode_part),
        name=_optional_text(fields, "name"),
        description=_optional_text(fields, "description"),
    )


def _encode_artifact(artifact: Artifact) -> Object:
    value: Object = {"parts": [_encode_part(part) for part in artifact.parts]}
    if artifact.name:
        value["name"] = artifact.name
    if artifact.description:
        value["description"] = artifact.description
    return value


def _decode_message(value: Value, path: str) -> Message:
    fields = reading.mapping(value, path)
    role = Role.USER if fields.get("role") == "user" else Role.AGENT
    parts = reading.array(reading.required(fields, "parts", path), f"{path}.parts", decode_part)
    # They have no ids; a place in the conversation tells them apart, reading after reading.
    return Message(MessageId(f"{ORIGIN}{path.removeprefix('result.')}"), role, parts)


def encode_message(message: Message) -> Object:
    """Return a message: who speaks, and the parts."""
    parts = [_encode_part(part) for part in message.parts]
    return {"role": ROLE_NAMES[message.role], "parts": parts}


def decode_part(value: Value, path: str) -> Part:
    """Return a part of the content its data shows."""
    fields = reading.mapping(value, path)
    kind = fields.get("type") or fields.get("kind")
    named = "data" if "data" in fields else "text"
    if not isinstance(kind, str) or named not in fields:
        raise InvalidParams("must have a type and data", field=path)
    data = fields[named]
    if kind == "text" and isinstance(data, str):
        return Part(text=data)
    if isinstance(data, str) and kind in _FILES:
        return _decode_file(data, {TYPE: kind})
    return Part(data=data, metadata={} if kind == "data" else {TYPE: kind})


def _decode_file(data: str, metadata: Metadata) -> Part:
    if data.startswith(("https://", "http://")):
        return Part(url=data, metadata=metadata)
    found = _DATA_URL.match(data)
    try:
        raw = base64.b64decode(found[2] if found else data, validate=True)
    except ValueError:
        return Part(data=data, metadata=metadata)
    return Part(raw=raw, metadata=metadata, media_type=(found[1] or "") if found else "")


def _encode_part(part: Part) -> Object:
    if part.text is not UNSET:
        return {"type": "text", "data": part.text}
    given = part.metadata.get(TYPE)
    if part.data is not UNSET:
        return {"type": given if isinstance(given, str) else "data", "data": part.data}
    usual = "image" if part.media_type.startswith("image/") else "file"
    named = given if given in _FILES else usual
    if part.url is not UNSET:
        return {"type": named, "data": part.url}
    return {"type": named, "data": base64.b64encode(cast(bytes, part.raw)).decode()}


def _optional_text(fields: Object, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
