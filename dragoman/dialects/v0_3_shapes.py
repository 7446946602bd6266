"""The objects of A2A 0.3 as its JSON schema has them, in both directions.

Input is read liberally, because the specification's own examples break its schema; output keeps to
the schema. Objects of this version are open, so unknown fields go out again as they came.
"""

from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value, one_spelling
from dragoman.errors import InvalidParams
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import MessageId, TaskId, new_id
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

STATE_NAMES = {
    TaskState.SUBMITTED: "submitted",
    TaskState.WORKING: "working",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "canceled",
    TaskState.INPUT_REQUIRED: "input-required",
    TaskState.REJECTED: "rejected",
    TaskState.AUTH_REQUIRED: "auth-required",
}


_STATES = {name: state for state, name in STATE_NAMES.items()} | {
    "cancelled": TaskState.CANCELED,
    "TASK_STATE_CANCELLED": TaskState.CANCELED,
    "input_required": TaskState.INPUT_REQUIRED,
    "auth_required": TaskState.AUTH_REQUIRED,
    "started": TaskState.SUBMITTED,
    # A peer that cannot tell may still finish: a follower of the task asks again.
    "unknown": TaskState.WORKING,
}


ROLE_NAMES = {Role.USER: "user", Role.AGENT: "agent"}


_ROLES = {name: role for role, name in ROLE_NAMES.items()}


_PART = one_spelling("kind", "text", "file", "data", "metadata")


# The appendix of 1.0 and the streaming examples of 0.2 and 0.3 spell the content of a file so.
_FILE = {
    **one_spelling("bytes", "uri", "name", "mimeType"),
    "fileWithBytes": "bytes",
    "data": "bytes",
    "fileWithUri": "uri",
    "url": "uri",
}


_MESSAGE = one_spelling(
    "kind messageId contextId taskId role parts metadata extensions referenceTaskIds",
)


_ARTIFACT = one_spelling("artifactId", "name", "description", "parts", "metadata", "extensions")


_STATUS = one_spelling("state", "message", "timestamp")


_TASK = one_spelling("kind", "id", "contextId", "status", "artifacts", "history", "metadata")


_STATUS_UPDATE = one_spelling("kind", "taskId", "contextId", "status", "final", "metadata")


_ARTIFACT_UPDATE = one_spelling(
    "kind", "taskId", "contextId", "artifact", "append", "lastChunk", "metadata"
)


S = TypeVar("S")


# Part metadata that carries what 1.0 has and 0.x has no place for.
MEDIA_TYPE, FILENAME, WRAPPED = "a2a:mediaType", "a2a:filename", "data_part_compat"


def decode_part(value: Value, path: str) -> Part:
    """Return a part; without a discriminator, of the kind its content shows."""
    fields, extra = reading.split(value, _PART, path)
    kind = fields.get("kind")
    if kind is None:
        # The ancestor of this version called the discriminator `type`.
        kind = extra.pop("type", None) or _implied_kind(fields, path)
    metadata = reading.metadata(fields.get("metadata", {}), f"{path}.metadata")
    match kind:
        case "text":
            text = reading.text(reading.required(fields, "text", path), f"{path}.text")
            if not metadata:
                return Part(text=text, extra=extra)
            metadata, media_type, filename = _restored(metadata)
            return Part(
                text=text, metadata=metadata, media_type=media_type, filename=filename, extra=extra
            )
        case "data":
            data = _structured(reading.required(fields, "data", path), f"{path}.data")
            data, metadata = _unwrapped(data, metadata)
            metadata, media_type, filename = _restored(metadata)
            return Part(
                data=data, metadata=metadata, media_type=media_type, filename=filename, extra=extra
            )
        case "file":
            return _decode_file(reading.required(fields, "file", path), path, metadata, extra)
        case _:
            raise InvalidParams("must be text, file or data", field=f"{path}.kind")


def decode_message(value: Value, path: str, role: Role = Role.AGENT) -> Message:
    """Return a message; one that names neither its speaker nor its id is given both."""
    fields, extra = reading.split(value, _MESSAGE, path)
    if fields.get("kind", "message") != "message":
        raise _wrong_kind("message", path)
    if "role" in fields:
        name = fields["role"]
        if type(name) is not str or name not in _ROLES:
            raise InvalidParams("must be user or agent", field=f"{path}.role")
        role = _ROLES[name]
    return Message(
        message_id=MessageId(
            reading.identifier(fields["message_id"], f"{path}.messageId")
            if "message_id" in fields
            else new_id()
        ),
        role=role,
        parts=reading.parts(reading.required(fields, "parts", path), f"{path}.parts", decode_part),
        context_id=reading.context_id_of(fields, path),
        task_id=TaskId(reading.optional_identifier(fields.get("task_id", ""), f"{path}.taskId")),
        metadata=reading.metadata_of(fields, path),
        extensions=reading.texts(fields.get("extensions", []), f"{path}.extensions"),
        reference_task_ids=reading.identifiers(
            fields.get("reference_task_ids", []), f"{path}.referenceTaskIds"
        ),
        extra=extra,
    )


def decode_artifact(value: Value, path: str) -> Artifact:
    """Return an artifact or a chunk of one."""
    return reading.artifact_of(reading.split(value, _ARTIFACT, path), path, decode_part)


def decode_state(value: Value, path: str) -> TaskState:
    """Return a state by its name."""
    if type(value) is not str or value not in _STATES:
        raise InvalidParams("must be a task state", field=path)
    return _STATES[value]


def decode_status(value: Value, path: str) -> TaskStatus:
    """Return a status, its time in UTC whatever zone the peer wrote or left out."""
    fields, extra = reading.split(value, _STATUS, path)
    message, at = fields.get("message"), fields.get("timestamp")
    return TaskStatus(
        state=decode_state(reading.required(fields, "state", path), f"{path}.state"),
        message=None if message is None else decode_message(message, f"{path}.message"),
        timestamp=_utc(at, f"{path}.timestamp") if at else "",
        extra=extra,
    )


def decode_task(value: Value, path: str) -> Task:
    """Return a task."""
    given = reading.split(value, _TASK, path)
    if given[0].get("kind", "task") != "task":
        raise _wrong_kind("task", path)
    return reading.task_of(given, path, decode_status, decode_artifact, decode_message)


def decode_status_update(value: Value, path: str) -> StatusUpdate:
    """Return a status event. That it is final follows from its state and is not kept."""
    return reading.status_update_of(reading.split(value, _STATUS_UPDATE, path), path, decode_status)


def decode_artifact_update(value: Value, path: str) -> ArtifactUpdate:
    """Return an artifact event."""
    fields, extra = reading.split(value, _ARTIFACT_UPDATE, path)
    if "artifact" not in fields and type(extra.get("part")) is dict:
        fields |= _loose_part(extra.pop("part"), extra.pop("index", 0))
    return reading.artifact_update_of((fields, extra), path, decode_artifact)


def _loose_part(part: Object, index: Value) -> Object:
    """Return what a peer means that sends parts without an artifact around them."""
    inner = {name: item for name, item in part.items() if name not in ("index", "append")}
    artifact = {"artifactId": f"rx-{index}", "parts": [inner]}
    return {"artifact": artifact, "append": part.get("append", False)}


def encode_part(part: Part) -> Object:
    """Return a part; what only files may say goes to the metadata of others."""
    metadata = part.metadata
    value: Object
    if part.text is not UNSET or part.data is not UNSET:
        metadata = _with_member(metadata, MEDIA_TYPE, part.media_type)
        metadata = _with_member(metadata, FILENAME, part.filename)
    if part.text is not UNSET:
        value = {"kind": "text", "text": part.text}
    elif part.data is not UNSET:
        data: Value = part.data
        # An object or an array is what the versions before 1.0 describe.
        if not isinstance(data, dict | list):
            data, metadata = _wrapped(data, metadata)
        value = {"kind": "data", "data": data}
    else:
        content: Object = {"bytes": part.raw} if part.raw is not UNSET else {"uri": part.url}
        value = {"kind": "file", "file": content}
        if part.media_type:
            content["mimeType"] = part.media_type
        if part.filename:
            content["name"] = part.filename
    return _with_members(value, metadata, part.extra, _PART)


def with_objects(value: S) -> S:
    """Return a value of the model in which no data part is an array: they are wrapped and marked,
    for readers that know objects alone."""
    if isinstance(value, Part):
        data: Value = value.data
        if type(data) is not list:
            return value
        data, metadata = _wrapped(data, value.metadata)
        return cast(S, msgspec.structs.replace(value, data=data, metadata=metadata))
    if not isinstance(value, msgspec.Struct):
        return value
    changed: Object = {}
    for name in value.__struct_fields__:
        item: Value = getattr(value, name)
        if isinstance(item, list):
            changed[name] = [with_objects(element) for element in cast(list[Value], item)]
        elif isinstance(item, msgspec.Struct):
            changed[name] = with_objects(item)
    return msgspec.structs.replace(value, **changed)


def encode_message(message: Message) -> Object:
    """Return a message."""
    value: Object = {
        "kind": "message",
        "messageId": message.message_id,
        "role": ROLE_NAMES[message.role],
        "parts": [encode_part(part) for part in message.parts],
    }
    if message.context_id:
        value["contextId"] = message.context_id
    if message.task_id:
        value["taskId"] = message.task_id
    if message.extensions:
        value["extensions"] = message.extensions
    if message.reference_task_ids:
        value["referenceTaskIds"] = message.reference_task_ids
    return _with_members(value, message.metadata, message.extra, _MESSAGE)


def encode_artifact(artifact: Artifact) -> Object:
    """Return an artifact or a chunk of one."""
    value: Object = {
        "artifactId": artifact.artifact_id,
        "parts": [encode_part(part) for part in artifact.parts],
    }
    if artifact.name:
        value["name"] = artifact.name
    if artifact.description:
        value["description"] = artifact.description
    if artifact.extensions:
        value["extensions"] = artifact.extensions
    return _with_members(value, artifact.metadata, artifact.extra, _ARTIFACT)


def encode_status(status: TaskStatus) -> Object:
    """Return a status."""
    value: Object = {"state": STATE_NAMES[status.state]}
    if status.message is not None:
        value["message"] = encode_message(status.message)
    if status.timestamp:
        value["timestamp"] = status.timestamp
    return _with_members(value, {}, status.extra, _STATUS)


def encode_task(task: Task) -> Object:
    """Return a task."""
    value: Object = {
        "kind": "task",
        "id": task.id,
        "contextId": task.context_id,
        "status": encode_status(task.status),
    }
    if task.artifacts:
        value["artifacts"] = [encode_artifact(artifact) for artifact in task.artifacts]
    if task.history:
        value["history"] = [encode_message(message) for message in task.history]
    return _with_members(value, task.metadata, task.extra, _TASK)


def encode_status_update(event: StatusUpdate) -> Object:
    """Return a status event, final when a stream of this version ends with it."""
    state = event.status.state
    value: Object = {
        "kind": "status-update",
        "taskId": event.task_id,
        "contextId": event.context_id,
        "status": encode_status(event.status),
        "final": state.is_terminal or state is TaskState.INPUT_REQUIRED,
    }
    return _with_members(value, event.metadata, event.extra, _STATUS_UPDATE)


def encode_artifact_update(event: ArtifactUpdate) -> Object:
    """Return an artifact event."""
    value: Object = {
        "kind": "artifact-update",
        "taskId": event.task_id,
        "contextId": event.context_id,
        "artifact": encode_artifact(event.artifact),
        "append": event.append,
        "lastChunk": event.last_chunk,
    }
    return _with_members(value, event.metadata, event.extra, _ARTIFACT_UPDATE)


def encode_event(event: Event) -> Object:
    """Return what one event of a stream shows."""
    match event:
        case ArtifactUpdate():
            return encode_artifact_update(event)
        case StatusUpdate():
            return encode_status_update(event)
        case Task():
            return encode_task(event)
        case Message():
            return encode_message(event)
        case _:
            raise ValueError(f"{type(event).__name__} is not part of any stream")


def _implied_kind(fields: Object, path: str) -> str:
    kinds = [kind for kind in ("text", "file", "data") if kind in fields]
    if len(kinds) != 1:
        raise InvalidParams("must have exactly one of text, file and data", field=path)
    return kinds[0]


def implied_event(value: Object) -> str:
    """Return the kind of an event that has no `kind`, by the members it has; empty: of none."""
    if "artifact" in value:
        return "artifact-update"
    if "status" in value:
        return "status-update" if "taskId" in value else "task"
    return "message" if "parts" in value else ""


def _utc(value: Value, path: str) -> str:
    instant = reading.instant(value, path)
    try:
        return stamp(instant)
    except (ValueError, OverflowError):
        # Its zone moves it out of the years that have four digits.
        raise InvalidParams("must be an ISO 8601 time", field=path) from None


def _structured(value: Value, path: str) -> Value:
    if type(value) not in (dict, list):
        raise InvalidParams("must be an object or an array", field=path)
    return value


def _wrong_kind(kind: str, path: str) -> InvalidParams:
    return InvalidParams(f"must be {kind}", field=reading.at(path, "kind"))


def _decode_file(value: Value, path: str, metadata: Metadata, extra: Metadata) -> Part:
    path = f"{path}.file"
    fields, _ = reading.split(value, _FILE, path)
    if ("bytes" in fields) == ("uri" in fields):
        raise InvalidParams("must have exactly one of bytes and uri", field=path)
    return Part(
        raw=reading.base64_bytes(fields["bytes"], f"{path}.bytes") if "bytes" in fields else UNSET,
        url=reading.text(fields["uri"], f"{path}.uri") if "uri" in fields else UNSET,
        metadata=metadata,
        media_type=reading.text(fields.get("mime_type", ""), f"{path}.mimeType"),
        filename=reading.text(fields.get("name", ""), f"{path}.name"),
        extra=extra,
    )


def _restored(metadata: Metadata) -> tuple[Metadata, str, str]:
    """Return metadata without the media type and the file name it carried for us, and these."""
    carried = {
        name: metadata[name]
        for name in (MEDIA_TYPE, FILENAME)
        if type(metadata.get(name)) is str and metadata[name]
    }
    if not carried:
        return metadata, "", ""
    rest = {name: item for name, item in metadata.items() if name not in carried}
    return rest, carried.get(MEDIA_TYPE, ""), carried.get(FILENAME, "")


def _wrapped(data: Value, metadata: Metadata) -> tuple[Value, Metadata]:
    """Return a value as an object, and the metadata that says so."""
    return {"value": data}, {**metadata, WRAPPED: True}


def _unwrapped(data: Value, metadata: Metadata) -> tuple[Value, Metadata]:
    """Return what an object that is marked so stands for."""
    if metadata.get(WRAPPED) is not True or type(data) is not dict:
        return data, metadata
    fields = cast(Object, data)
    if list(fields) != ["value"]:
        return fields, metadata
    return fields["value"], {name: item for name, item in metadata.items() if name != WRAPPED}


def _with_member(metadata: Metadata, name: str, value: str) -> Metadata:
    return {**metadata, name: value} if value else metadata


def _with_members(
    value: Object, metadata: Metadata, extra: Metadata, known: Mapping[str, str]
) -> Object:
    """Return an object with its metadata and, under names that are free, its unknown fields."""
    if metadata:
        value["metadata"] = metadata
    for name, item in extra.items():
        if name not in known:
            value[name] = item
    return value
