"""The objects of A2A 1.0 as ProtoJSON: how those of peers are read, and what ours are without the
unknown fields, which 1.0 peers reject."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.errors import InvalidParams
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.patterns import late_pattern
from dragoman.model.task import Task, TaskState, TaskStatus

STATES: dict[Value, TaskState] = {state.value: state for state in TaskState} | {
    1: TaskState.SUBMITTED,
    2: TaskState.WORKING,
    3: TaskState.COMPLETED,
    4: TaskState.FAILED,
    5: TaskState.CANCELED,
    6: TaskState.INPUT_REQUIRED,
    7: TaskState.REJECTED,
    8: TaskState.AUTH_REQUIRED,
    # The 0.3 proto spells it with two Ls.
    "TASK_STATE_CANCELLED": TaskState.CANCELED,
}


ROLES: dict[Value, Role] = {"ROLE_USER": Role.USER, "ROLE_AGENT": Role.AGENT, 1: Role.USER} | {
    2: Role.AGENT
}


UNSPECIFIED = ("TASK_STATE_UNSPECIFIED", 0)


_STATE_NAME = late_pattern(r"TASK_STATE_[A-Z_]{1,64}\Z")


_PART = both_spellings("text", "raw", "url", "data", "metadata", "filename", "mediaType")


_MESSAGE = both_spellings(
    "messageId contextId taskId role parts metadata extensions referenceTaskIds",
)


_OPTIONAL_IN_MESSAGE: dict[str, tuple[Callable[[Value, str], Value], str]] = {
    "context_id": (reading.optional_identifier, "contextId"),
    "task_id": (reading.optional_identifier, "taskId"),
    "metadata": (reading.metadata, "metadata"),
    "extensions": (reading.texts, "extensions"),
    "reference_task_ids": (reading.identifiers, "referenceTaskIds"),
}


_ARTIFACT = both_spellings("artifactId", "name", "description", "parts", "metadata", "extensions")


_STATUS = both_spellings("state", "message", "timestamp")


_TASK = both_spellings("id", "contextId", "status", "artifacts", "history", "metadata")


_STATUS_UPDATE = both_spellings("taskId", "contextId", "status", "metadata")


_ARTIFACT_UPDATE = both_spellings(
    "taskId", "contextId", "artifact", "append", "lastChunk", "metadata"
)


S = TypeVar("S")


def decode_part(value: Value, path: str) -> Part:
    """Return a part; exactly one kind of content."""
    fields, extra = reading.split(value, _PART, path)
    if len(fields) == 1 and "text" in fields:
        # Most parts are this one.
        return Part(text=reading.text(fields["text"], f"{path}.text"), extra=extra)
    content = [name for name in ("text", "raw", "url", "data") if name in fields]
    if len(content) != 1:
        raise InvalidParams("must have exactly one of text, raw, url and data", field=path)
    return Part(
        text=reading.text(fields["text"], f"{path}.text") if "text" in fields else UNSET,
        raw=reading.base64_bytes(fields["raw"], f"{path}.raw") if "raw" in fields else UNSET,
        url=reading.text(fields["url"], f"{path}.url") if "url" in fields else UNSET,
        data=fields.get("data", UNSET),
        metadata=reading.metadata(fields.get("metadata", {}), f"{path}.metadata"),
        filename=reading.text(fields.get("filename", ""), f"{path}.filename"),
        media_type=reading.text(fields.get("media_type", ""), f"{path}.mediaType"),
        extra=extra,
    )


def decode_message(value: Value, path: str) -> Message:
    """Return a message."""
    fields, extra = reading.split(value, _MESSAGE, path)
    role = reading.required(fields, "role", path)
    if type(role) not in (str, int) or role not in ROLES:
        raise InvalidParams("must be ROLE_USER or ROLE_AGENT", field=f"{path}.role")
    message_id = reading.required(fields, "message_id", path)
    parts = reading.required(fields, "parts", path)
    # Read only where given: most messages have few of these.
    optional: Object = {}
    for name, (read, spelling) in _OPTIONAL_IN_MESSAGE.items():
        if name in fields:
            optional[name] = read(fields[name], f"{path}.{spelling}")
    return Message(
        message_id=MessageId(reading.identifier(message_id, f"{path}.messageId")),
        role=ROLES[role],
        parts=reading.parts(parts, f"{path}.parts", decode_part),
        extra=extra,
        **optional,
    )


def decode_artifact(value: Value, path: str) -> Artifact:
    """Return an artifact or a chunk of one."""
    return reading.artifact_of(reading.split(value, _ARTIFACT, path), path, decode_part)


def decode_state(value: Value, path: str) -> TaskState:
    """Return a state by its name or number."""
    if type(value) not in (str, int) or value not in STATES:
        raise InvalidParams("must be a task state", field=path)
    return STATES[value]


def _timestamp(value: Value, path: str) -> str:
    """Return a peer's time in UTC, as exact as it came."""
    if not value:
        return ""
    moment = reading.instant(value, path)
    return value if value.endswith("Z") else stamp(moment)


def decode_status(value: Value, path: str) -> TaskStatus:
    """Return a status. A state that says nothing, or that later versions may have, is as good as
    working: a follower of the task asks again. The name it had stays among the unknown members."""
    fields, extra = reading.split(value, _STATUS, path)
    state = reading.required(fields, "state", path)
    if state == 0 or (type(state) is str and _STATE_NAME.match(state) and state not in STATES):
        extra = {**extra, "state": state}
        state = TaskState.WORKING.value
    return TaskStatus(
        state=decode_state(state, f"{path}.state"),
        message=decode_message(fields["message"], f"{path}.message")
        if "message" in fields
        else None,
        timestamp=_timestamp(fields.get("timestamp", ""), f"{path}.timestamp"),
        extra=extra,
    )


def decode_task(value: Value, path: str) -> Task:
    """Return a task."""
    given = reading.split(value, _TASK, path)
    return reading.task_of(given, path, decode_status, decode_artifact, decode_message)


def decode_status_update(value: Value, path: str) -> StatusUpdate:
    """Return a status event."""
    return reading.status_update_of(reading.split(value, _STATUS_UPDATE, path), path, decode_status)


def decode_artifact_update(value: Value, path: str) -> ArtifactUpdate:
    """Return an artifact event."""
    given = reading.split(value, _ARTIFACT_UPDATE, path)
    return reading.artifact_update_of(given, path, decode_artifact)


def without_extra(value: S) -> S:
    """Return a struct of the model without the unknown fields in it."""
    if isinstance(value, msgspec.Struct):
        changed: dict[str, Any] = {}
        for name in value.__struct_fields__:
            item = getattr(value, name)
            if name == "extra":
                changed[name] = {}
            elif isinstance(item, msgspec.Struct):
                changed[name] = without_extra(item)
            elif isinstance(item, list):
                changed[name] = [without_extra(element) for element in cast(list[Any], item)]
        return msgspec.structs.replace(value, **changed)
    return value
