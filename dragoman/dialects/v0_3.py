"""A2A 0.3 as its JSON schema has it: `kind` tells objects apart, results are never wrapped.

Input is read liberally, because the specification's own examples break its schema; output keeps to
the schema. Objects of this version are open, so unknown fields go out again as they came.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.dialects import cards, push, reading
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.operations import BY_V0_METHOD, row_of
from dragoman.dialects.reading import Object, Value, one_spelling
from dragoman.errors import InvalidParams, MethodNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentCard
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

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
    # A peer that cannot tell may still finish: whoever follows the task asks again.
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
    "kind",
    "messageId",
    "contextId",
    "taskId",
    "role",
    "parts",
    "metadata",
    "extensions",
    "referenceTaskIds",
)
_ARTIFACT = one_spelling("artifactId", "name", "description", "parts", "metadata", "extensions")
_STATUS = one_spelling("state", "message", "timestamp")
_TASK = one_spelling("kind", "id", "contextId", "status", "artifacts", "history", "metadata")
_STATUS_UPDATE = one_spelling("kind", "taskId", "contextId", "status", "final", "metadata")
_ARTIFACT_UPDATE = one_spelling(
    "kind", "taskId", "contextId", "artifact", "append", "lastChunk", "metadata"
)
_SEND = one_spelling("message", "configuration", "metadata", "messageId")
_CONFIGURATION = one_spelling(
    "acceptedOutputModes", "pushNotificationConfig", "historyLength", "blocking"
)
_GET = one_spelling("id", "historyLength", "metadata")

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
    _check_kind(fields, "message", path)
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
        context_id=_context_id(fields, path),
        task_id=TaskId(reading.optional_identifier(fields.get("task_id", ""), f"{path}.taskId")),
        metadata=_metadata(fields, path),
        extensions=reading.array(fields.get("extensions", []), f"{path}.extensions", reading.text),
        reference_task_ids=reading.array(
            fields.get("reference_task_ids", []), f"{path}.referenceTaskIds", reading.identifier
        ),
        extra=extra,
    )


def decode_artifact(value: Value, path: str) -> Artifact:
    """Return an artifact or a chunk of one."""
    fields, extra = reading.split(value, _ARTIFACT, path)
    return Artifact(
        artifact_id=reading.text(
            reading.required(fields, "artifact_id", path), f"{path}.artifactId"
        ),
        parts=reading.array(reading.required(fields, "parts", path), f"{path}.parts", decode_part),
        name=reading.text(fields.get("name", ""), f"{path}.name"),
        description=reading.text(fields.get("description", ""), f"{path}.description"),
        metadata=_metadata(fields, path),
        extensions=reading.array(fields.get("extensions", []), f"{path}.extensions", reading.text),
        extra=extra,
    )


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
    fields, extra = reading.split(value, _TASK, path)
    _check_kind(fields, "task", path)
    return Task(
        id=TaskId(reading.identifier(reading.required(fields, "id", path), f"{path}.id")),
        context_id=_context_id(fields, path),
        status=decode_status(reading.required(fields, "status", path), f"{path}.status"),
        artifacts=reading.array(fields.get("artifacts", []), f"{path}.artifacts", decode_artifact),
        history=reading.array(fields.get("history", []), f"{path}.history", decode_message),
        metadata=_metadata(fields, path),
        extra=extra,
    )


def decode_status_update(value: Value, path: str) -> StatusUpdate:
    """Return a status event. That it is final follows from its state and is not kept."""
    fields, extra = reading.split(value, _STATUS_UPDATE, path)
    return StatusUpdate(
        task_id=_task_id(fields, "task_id", path),
        context_id=_context_id(fields, path),
        status=decode_status(reading.required(fields, "status", path), f"{path}.status"),
        metadata=_metadata(fields, path),
        extra=extra,
    )


def decode_artifact_update(value: Value, path: str) -> ArtifactUpdate:
    """Return an artifact event."""
    fields, extra = reading.split(value, _ARTIFACT_UPDATE, path)
    if "artifact" not in fields and type(extra.get("part")) is dict:
        fields |= _loose_part(extra.pop("part"), extra.pop("index", 0))
    return ArtifactUpdate(
        task_id=_task_id(fields, "task_id", path),
        context_id=_context_id(fields, path),
        artifact=decode_artifact(reading.required(fields, "artifact", path), f"{path}.artifact"),
        append=reading.boolean(fields.get("append", False), f"{path}.append"),
        last_chunk=reading.boolean(fields.get("last_chunk", False), f"{path}.lastChunk"),
        metadata=_metadata(fields, path),
        extra=extra,
    )


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
        metadata = _with(metadata, MEDIA_TYPE, part.media_type)
        metadata = _with(metadata, FILENAME, part.filename)
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
    return _closed(value, metadata, part.extra, _PART)


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
    return _closed(value, message.metadata, message.extra, _MESSAGE)


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
    return _closed(value, artifact.metadata, artifact.extra, _ARTIFACT)


def encode_status(status: TaskStatus) -> Object:
    """Return a status."""
    value: Object = {"state": STATE_NAMES[status.state]}
    if status.message is not None:
        value["message"] = encode_message(status.message)
    if status.timestamp:
        value["timestamp"] = status.timestamp
    return _closed(value, {}, status.extra, _STATUS)


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
    return _closed(value, task.metadata, task.extra, _TASK)


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
    return _closed(value, event.metadata, event.extra, _STATUS_UPDATE)


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
    return _closed(value, event.metadata, event.extra, _ARTIFACT_UPDATE)


class V0:
    """The 0.3 dialect, and what 0.2 shares with it."""

    version: str = "0.3"
    state_names: Mapping[TaskState, str] = STATE_NAMES
    push_content_type = "application/json"
    push_needs_task = True
    # Events of 0.2 and 0.3 have one shape, so readers of both share its bytes.
    shape: ClassVar[str] = "0.3"

    def fitted(self, value: S) -> S:
        """Return a value of the model as this dialect's readers can take it."""
        return value

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        row = BY_V0_METHOD.get(method)
        if row is None:
            raise MethodNotFound(method=method)
        if row.operation is ops.SendMessage:
            return _decode_send(params, ops.SendMessage, self.version)
        if row.operation is ops.StreamMessage:
            return _decode_send(params, ops.StreamMessage, self.version)
        if row.operation is ops.GetExtendedCard:
            return ops.GetExtendedCard()
        if row.operation in push.OPERATIONS:
            return push.decode_v0(row.operation, params, self.version)
        fields, _ = reading.split(params, _GET, "")
        task_id, metadata = _task_id(fields, "id"), _metadata(fields, "")
        if row.operation is ops.GetTask:
            return ops.GetTask(task_id=task_id, history=_history(fields))
        if row.operation is ops.SubscribeToTask:
            return ops.SubscribeToTask(task_id=task_id)
        return ops.CancelTask(task_id=task_id, metadata=metadata)

    def encode_request(self, operation: ops.Operation) -> tuple[str, Object]:
        """Return the method and the parameters; a tenant has no place in this version."""
        names = row_of(operation).v0
        if not names:
            raise UnsupportedOperation("The peer's protocol version has no such operation")
        params: Object = {}
        match operation:
            case ops.SendMessage():
                params["message"] = encode_message(self.fitted(operation.message))
                params["configuration"] = _configuration(operation)
                if operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.GetTask() | ops.CancelTask() | ops.SubscribeToTask():
                params["id"] = operation.task_id
                if isinstance(operation, ops.GetTask) and operation.history is not None:
                    params["historyLength"] = operation.history
                if isinstance(operation, ops.CancelTask) and operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush():
                params |= push.encode_v0(operation)
            case _:
                pass
        return names[0], params

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        match reply:
            case TaskReply():
                return self.encode_opening(reply)
            case Message():
                return encode(encode_message(self.fitted(reply)))
            case AgentCard():
                return encode(self.encode_card(reply))
            case PushConfig() | PushPage() | Nothing():
                return encode(push.encode_reply_v0(reply))
            case TaskPage():
                raise UnsupportedOperation("Tasks cannot be listed in this protocol version")

    def encode_card(self, card: AgentCard) -> Object:
        """Return the card in this version's shape."""
        return cards.v0_3(card)

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        if isinstance(operation, ops.SendMessage):
            event = self.decode_event(value)
            if isinstance(event, Message):
                return event
            if isinstance(event, Task):
                return TaskReply(TaskReading(0, event))
            raise InvalidParams("must be a task or a message", field="result")
        if isinstance(operation, ops.GetExtendedCard):
            return cards.decode(value)
        if isinstance(operation, push.PushOperation):
            return push.decode_reply_v0(operation, value, self.version)
        return TaskReply(TaskReading(0, decode_task(value, "result")))

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        return encode(encode_task(self.fitted(trimmed(reply).reading.task)))

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self.shape)
        if shape is None:
            shape = recorded.shapes[self.shape] = encode(_encode_event(self.fitted(recorded.event)))
        return shape

    def posts(self, recorded: Recorded) -> bool:
        """Tell whether receivers get a post of an event: of the creation and of each status."""
        return recorded.is_status or isinstance(recorded.event, Task)

    def encode_push(self, recorded: Recorded, task: Task | None) -> bytes:
        """Return the body of a post: the whole task as it stood with the event."""
        if isinstance(recorded.event, Task):
            return self.encode_event(recorded)
        if task is None:
            raise ValueError("a post of this version needs the task as of the event")
        return encode(encode_task(self.fitted(task)))

    def decode_event(self, value: Value) -> Event:
        """Return the event a peer's stream showed; without `kind`, by the members it has."""
        fields = _object(value, "result")
        match fields.get("kind") or _implied_event(fields):
            case "task":
                return decode_task(value, "result")
            case "message":
                return decode_message(value, "result")
            case "status-update":
                return decode_status_update(value, "result")
            case "artifact-update":
                return decode_artifact_update(value, "result")
            case _:
                raise InvalidParams(
                    "must be task, message, status-update or artifact-update",
                    field="result.kind",
                )


class V0Objects(V0):
    """0.3 for the official Python library, whose data parts are objects alone: it refuses a whole
    answer for one that is an array, and a whole request."""

    shape: ClassVar[str] = "0.3-objects"

    def fitted(self, value: S) -> S:
        """Return a value of the model without arrays in its data parts."""
        return with_objects(value)


V0_3 = V0()
V0_3_OBJECTS = V0Objects()


def _encode_event(event: Event) -> Object:
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


def _implied_event(value: Object) -> str:
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


def _object(value: Value, path: str) -> Object:
    if type(value) is not dict:
        raise InvalidParams("must be an object", field=path)
    return cast(Object, value)


def _structured(value: Value, path: str) -> Value:
    if type(value) not in (dict, list):
        raise InvalidParams("must be an object or an array", field=path)
    return value


def _check_kind(fields: Object, kind: str, path: str) -> None:
    if fields.get("kind", kind) != kind:
        raise InvalidParams(f"must be {kind}", field=reading.at(path, "kind"))


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


def _with(metadata: Metadata, name: str, value: str) -> Metadata:
    return {**metadata, name: value} if value else metadata


def _closed(value: Object, metadata: Metadata, extra: Metadata, known: Mapping[str, str]) -> Object:
    """Return an object with its metadata and, under names that are free, its unknown fields."""
    if metadata:
        value["metadata"] = metadata
    for name, item in extra.items():
        if name not in known:
            value[name] = item
    return value


def _context_id(fields: Object, path: str) -> ContextId:
    value = fields.get("context_id", "")
    return ContextId(reading.optional_identifier(value, reading.at(path, "contextId")))


def _metadata(fields: Object, path: str) -> Metadata:
    return reading.metadata(fields.get("metadata", {}), reading.at(path, "metadata"))


def _task_id(fields: Object, name: str, path: str = "") -> TaskId:
    value = reading.required(fields, name, path)
    return TaskId(reading.identifier(value, reading.at(path, reading.camel(name))))


def _history(fields: Object, path: str = "") -> int | None:
    if "history_length" not in fields:
        return None
    return reading.history_length(fields["history_length"], reading.at(path, "historyLength"))


def _decode_send(params: Object, operation: type[ops.SendMessage], version: str) -> ops.SendMessage:
    fields, _ = reading.split(params, _SEND, "")
    path = "configuration"
    configuration, _ = reading.split(fields.get(path, {}), _CONFIGURATION, path)
    message = _object(reading.required(fields, "message", ""), "message")
    # An example of the specification puts the message's id beside it.
    if message.get("messageId") is None and "message_id" in fields:
        message = {**message, "messageId": fields["message_id"]}
    receiver = configuration.get("push_notification_config")
    return operation(
        message=decode_message(message, "message", Role.USER),
        accepted_output_modes=reading.media_types(
            configuration.get("accepted_output_modes", []), f"{path}.acceptedOutputModes"
        ),
        history=_history(configuration, path),
        # Who says where to post what happens does not wait for it, unless it says so.
        wait=reading.boolean(configuration.get("blocking", receiver is None), f"{path}.blocking"),
        push=None
        if receiver is None
        else push.decode_inner(receiver, f"{path}.pushNotificationConfig", version),
        metadata=_metadata(fields, ""),
    )


def _configuration(operation: ops.SendMessage) -> Object:
    # Both members always: peers differ in what absence means, and 0.2 demands the first.
    configuration: Object = {
        "acceptedOutputModes": operation.accepted_output_modes,
        "blocking": operation.wait,
    }
    if operation.history is not None:
        configuration["historyLength"] = operation.history
    if operation.push is not None:
        configuration["pushNotificationConfig"] = push.encode_inner(operation.push)
    return configuration
