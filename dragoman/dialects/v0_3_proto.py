"""A2A 0.3 as ProtoJSON of its proto, which is what official peers speak over REST.

Other names and wrappers around what 0.3 is anyway: values are respelled and then read, or made by
0.3 and then respelled. Input may be a mixture of both; output has no member the proto lacks, since
official readers refuse whole objects for one.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from dragoman.dialects import push, reading, v0_3
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.operations import BY_V0_METHOD, BY_V0_REST_METHOD, row_of
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.dialects.v0_3 import V0, V0_3
from dragoman.dialects.v1_0 import MAX_PAGE_SIZE, ROLES, STATES, UNSPECIFIED, without_extra
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

_ROLES = {name: role.value for role, name in v0_3.ROLE_NAMES.items()}
# The proto spells one of them with two Ls.
_STATES = {name: state.value for state, name in v0_3.STATE_NAMES.items()} | {
    v0_3.STATE_NAMES[TaskState.CANCELED]: "TASK_STATE_CANCELLED"
}

_MESSAGE = both_spellings("messageId", "contextId", "taskId", "referenceTaskIds", "parts") | {
    "content": "parts"
}
_ARTIFACT = both_spellings("artifactId", "parts")
_STATUS = both_spellings("state", "message", "timestamp") | {"update": "message"}
_TASK = both_spellings("contextId", "status", "artifacts", "history")
_UPDATE = both_spellings("taskId", "contextId", "status", "artifact", "lastChunk")
_FILE = both_spellings("fileWithBytes", "fileWithUri", "mimeType")
_SEND = both_spellings("message", "configuration", "metadata") | {"request": "message"}
_CONFIGURATION = both_spellings(
    "acceptedOutputModes", "pushNotificationConfig", "historyLength", "blocking"
) | dict.fromkeys(("pushNotification", "push_notification"), "push_notification_config")
_NAMED = both_spellings(
    "id", "taskId", "name", "parent", "historyLength", "pageSize", "pageToken", "metadata"
)
_WRAPPER = both_spellings("task", "message", "statusUpdate", "artifactUpdate") | {
    "msg": "message",
    "taskStatusUpdate": "status_update",
    "taskArtifactUpdate": "artifact_update",
}
_KINDS = {
    "task": "task",
    "message": "message",
    "status_update": "status-update",
    "artifact_update": "artifact-update",
}
S = TypeVar("S")
_PAGE = both_spellings("configs", "nextPageToken")
_RESOURCE = re.compile(r"tasks/(.+?)(?:/pushNotificationConfigs(?:/(.*))?)?\Z")
# How files of a type begin: enough to see that bytes are the file and not its base64.
_BEGINNINGS = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "audio/wav": b"RIFF",
    "audio/mpeg": b"ID3",
    "audio/ogg": b"OggS",
    "application/pdf": b"%PDF",
    "application/zip": b"PK",
    "application/gzip": b"\x1f\x8b",
}


class V0Proto(V0):
    """The 0.3 dialect of REST, `/v1/…`.

    The official Python library puts the base64 of a file, and not the file, where the proto has
    bytes, and cannot read anything else: `holds_text` speaks with it.
    """

    # Whether this is ProtoJSON: what is zero or empty may be left out, and states may be numbers.
    is_proto = True
    state_names: Mapping[TaskState, str] = {
        state: _STATES[name] for state, name in v0_3.STATE_NAMES.items()
    }

    def __init__(self, *, holds_text: bool = False) -> None:
        self._holds_text = holds_text
        self._shape = "0.3-proto-text" if holds_text else "0.3-proto"

    # Requests

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for; its ids may be in resource names."""
        row = BY_V0_METHOD.get(method) or BY_V0_REST_METHOD.get(method)
        if row is None or row.operation is ops.GetExtendedCard:
            return super().decode_request(method, params)
        if issubclass(row.operation, ops.SendMessage):
            return super().decode_request(method, self._send(params))
        if row.operation is ops.ListTasks:
            # All there is of it in 0.3 is a list without pages.
            return ops.ListTasks(page_size=MAX_PAGE_SIZE, include_artifacts=True)
        if row.operation is ops.CreatePush:
            return _decode_create(params)
        fields, _ = reading.split(params, _NAMED, "")
        task_id, config_id = _resource(fields)
        if row.operation in push.OPERATIONS:
            named = {"taskId": fields.get("task_id", task_id), "id": fields.get("id", config_id)}
            page = {reading.camel(name): fields.get(name) for name in ("page_size", "page_token")}
            return push.decode_v1(row.operation, named | page)
        asked: Object = {"id": fields.get("id", task_id), "metadata": fields.get("metadata")}
        if row.operation is ops.GetTask:
            asked["historyLength"] = _unless_unlimited(fields.get("history_length"))
        return super().decode_request(method, asked)

    def encode_request(self, operation: ops.Operation) -> tuple[str, Object]:
        """Return the method and the parameters, which name tasks as resources."""
        names = row_of(operation).v0
        if not names:
            raise UnsupportedOperation("The peer's protocol version has no such operation")
        params: Object = {}
        match operation:
            case ops.SendMessage():
                params["message"] = self._encoded_message(operation.message)
                params["configuration"] = _configuration(operation)
                if operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.GetTask() | ops.CancelTask() | ops.SubscribeToTask():
                params["name"] = f"tasks/{operation.task_id}"
                if isinstance(operation, ops.GetTask) and operation.history:
                    params["historyLength"] = operation.history
            case ops.CreatePush():
                params["parent"] = f"tasks/{operation.task_id}"
                if operation.config.id:
                    params["configId"] = operation.config.id
                params["config"] = _encoded_push(operation.config, operation.task_id)
            case ops.ListPush():
                params |= {"parent": f"tasks/{operation.task_id}", "pageSize": operation.page_size}
                if operation.page_token:
                    params["pageToken"] = operation.page_token
            case ops.GetPush() | ops.DeletePush():
                if not operation.config_id:
                    raise UnsupportedOperation("The peer's binding reads none but by its id")
                params["name"] = _push_name(operation.task_id, operation.config_id)
            case _:
                pass
        return names[0], params

    # Replies and events

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply; only answers to a send are wrapped."""
        match reply:
            case TaskReply():
                task = self._encoded_task(trimmed(reply).reading.task)
                return encode({"task": task} if isinstance(operation, ops.SendMessage) else task)
            case Message():
                return encode({"message": self._encoded_message(reply)})
            case PushConfig():
                return encode(_encoded_push(reply, reply.task_id))
            case PushPage():
                configs = [_encoded_push(config, config.task_id) for config in reply.configs]
                return encode({"configs": configs, "nextPageToken": reply.next_page_token})
            case TaskPage():
                tasks = [trimmed(one).reading.task for one in reply.tasks]
                return encode([self._encoded_task(task) for task in tasks])
            case _:
                return super().encode_reply(operation, reply)

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply a peer gave, in the wrapper of the proto or bare."""
        if isinstance(operation, push.PushOperation):
            return _decode_push_reply(operation, value)
        if isinstance(operation, ops.GetExtendedCard):
            return super().decode_reply(operation, value)
        event = self.decode_event(value)
        if isinstance(event, Message) and isinstance(operation, ops.SendMessage):
            return event
        if not isinstance(event, Task):
            raise InvalidParams("must be a task", field="result")
        if isinstance(operation, ops.SendMessage | ops.GetTask) and operation.history == 0:
            # The proto cannot ask for none: zero is everything to it.
            event = msgspec.structs.replace(event, history=[])
        return TaskReply(TaskReading(0, event))

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        return encode({"task": self._encoded_task(trimmed(reply).reading.task)})

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self._shape)
        if shape is None:
            shape = recorded.shapes[self._shape] = encode(self._encoded_event(recorded.event))
        return shape

    def encode_push(self, recorded: Recorded, task: Task | None) -> bytes:
        """Return the body of a post, which is no matter of the binding."""
        return V0_3.encode_push(recorded, task)

    def decode_event(self, value: Value) -> Event:
        """Return the event a peer's stream showed, wrapped or bare, with `kind` or without."""
        kind, inner = _unwrapped(value)
        core: Object
        match kind:
            case "task":
                core = self._task(inner, kind)
            case "message":
                core = self._message(inner, kind)
            case "status-update" | "artifact-update":
                core = self._update(inner, kind)
            case _:
                core = inner
        return super().decode_event(core | {"kind": kind})

    # From the proto's spelling to that of 0.3

    def _send(self, params: Object) -> Object:
        core = _respelled(params, _SEND, "")
        if "message" in core:
            core["message"] = self._message(core["message"], "message")
        if type(core.get("configuration")) is dict:
            configuration = _respelled(core["configuration"], _CONFIGURATION, "configuration")
            length = _unless_unlimited(configuration.pop("historyLength", None))
            # Whoever configures anything and does not say to wait, does not.
            core["configuration"] = {"blocking": False, "historyLength": length} | configuration
        return core

    def _message(self, value: Value, path: str) -> Value:
        if type(value) is not dict:
            return value
        core = _respelled(value, _MESSAGE, path)
        role = core.get("role")
        if type(role) in (str, int) and role in ROLES:
            core["role"] = v0_3.ROLE_NAMES[ROLES[role]]
        return core | self._parts(core)

    def _parts(self, core: Object) -> Object:
        if type(core.get("parts")) is not list:
            return {}
        return {"parts": [self._part(part) for part in _list(core["parts"])]}

    def _part(self, value: Value) -> Value:
        if type(value) is not dict:
            return value
        core = dict(cast(Object, value))
        data = core.get("data")
        if "kind" not in core and type(data) is dict and list(cast(Object, data)) == ["data"]:
            core["data"] = data["data"]
        if type(core.get("file")) is dict:
            core["file"] = self._file(core["file"])
        return core

    def _file(self, value: Object) -> Object:
        core = _respelled(value, _FILE, "file")
        given = core.get("fileWithBytes")
        if type(given) is str:
            kind = core.get("mimeType")
            beginning = _BEGINNINGS.get(kind) if type(kind) is str else None
            content = _content_within(given)
            if content is not None and (
                self._holds_text or (beginning is not None and content.startswith(beginning))
            ):
                core["fileWithBytes"] = base64.b64encode(content).decode()
        return core

    def _artifact(self, value: Value, path: str) -> Value:
        if type(value) is not dict:
            return value
        core = _respelled(value, _ARTIFACT, path)
        if self.is_proto:
            core.setdefault("parts", [])
        return core | self._parts(core)

    def _status(self, value: Value, path: str) -> Value:
        if type(value) is not dict:
            return value
        core = _respelled(value, _STATUS, path)
        # The proto leaves its zero out, which says that the state is not known.
        state = core.get("state", 0 if self.is_proto else None)
        if type(state) is str or (type(state) is int and self.is_proto):
            if state in UNSPECIFIED:
                core["state"] = "unknown"
            elif state in STATES:
                core["state"] = v0_3.STATE_NAMES[STATES[state]]
        if "message" in core:
            core["message"] = self._message(core["message"], f"{path}.message")
        return core

    def _task(self, value: Value, path: str) -> Object:
        core = _respelled(value, _TASK, path)
        if "status" in core:
            core["status"] = self._status(core["status"], f"{path}.status")
        for name, read in (("artifacts", self._artifact), ("history", self._message)):
            if type(core.get(name)) is list:
                core[name] = [read(item, f"{path}.{name}") for item in _list(core[name])]
        return core

    def _update(self, value: Value, path: str) -> Object:
        core = _respelled(value, _UPDATE, path)
        for name, read in (("status", self._status), ("artifact", self._artifact)):
            if name in core:
                core[name] = read(core[name], f"{path}.{name}")
        return core

    # From 0.3 to the proto

    def _encoded_event(self, event: Event) -> Object:
        match event:
            case Task():
                return {"task": self._encoded_task(event)}
            case Message():
                return {"message": self._encoded_message(event)}
            case StatusUpdate():
                update = v0_3.encode_status_update(_fitted(event))
                self._spell_status(update["status"])
                return {"statusUpdate": _without_kind(update)}
            case ArtifactUpdate():
                update = v0_3.encode_artifact_update(_fitted(event))
                self._spell_parts(update["artifact"]["parts"])
                return {"artifactUpdate": _without_kind(update)}
            case _:
                raise ValueError(f"{type(event).__name__} is not part of any stream")

    def _encoded_task(self, task: Task) -> Object:
        value = v0_3.encode_task(_fitted(task))
        self._spell_status(value["status"])
        for artifact in value.get("artifacts", []):
            self._spell_parts(artifact["parts"])
        for message in value.get("history", []):
            self._spell_message(message)
        return _without_kind(value)

    def _encoded_message(self, message: Message) -> Object:
        value = v0_3.encode_message(_fitted(message))
        self._spell_message(value)
        return value

    def _spell_status(self, value: Object) -> None:
        value["state"] = _STATES[value["state"]]
        if "message" in value:
            self._spell_message(value["message"])

    def _spell_message(self, value: Object) -> None:
        del value["kind"]
        # The proto has no such field.
        value.pop("referenceTaskIds", None)
        value["role"] = _ROLES[value["role"]]
        value["content"] = value.pop("parts")
        self._spell_parts(value["content"])

    def _spell_parts(self, parts: list[Object]) -> None:
        for part in parts:
            match part.pop("kind"):
                case "data":
                    part["data"] = {"data": part["data"]}
                case "file":
                    file: Object = part["file"]
                    if "uri" in file:
                        file["fileWithUri"] = file.pop("uri")
                    else:
                        raw: bytes = file.pop("bytes")
                        file["fileWithBytes"] = base64.b64encode(raw) if self._holds_text else raw
                case _:
                    pass


V0_3_PROTO = V0Proto()
V0_3_PROTO_TEXT = V0Proto(holds_text=True)


def is_core(body: Value) -> bool:
    """Tell whether a body is that of 0.3's JSON schema, and not of its proto."""
    fields = _fields(body)
    message = _fields(fields.get("message"))
    if not message:
        return "taskId" in fields and "pushNotificationConfig" in fields and "name" not in fields
    return (
        "kind" in message
        or ("parts" in message and message.get("role") in ("user", "agent"))
        or any("kind" in _fields(part) for part in _list(message.get("parts")))
    )


def has_plain_files(body: Value) -> bool:
    """Tell whether a send has a file that is not base64 text: its caller keeps to the proto."""
    message = _fields(_fields(body).get("message"))
    parts = _list(message.get("content")) or _list(message.get("parts"))
    files = [_fields(_fields(part).get("file")) for part in parts]
    given = [one.get("fileWithBytes", one.get("file_with_bytes")) for one in files]
    # An empty one is the same in both.
    return any(type(one) is str and one and _content_within(one) is None for one in given)


def is_newer(body: Value) -> bool:
    """Tell whether a body is a send of 1.0."""
    message = _fields(_fields(body).get("message"))
    role = message.get("role")
    is_role = type(role) in (str, int) and role in ROLES
    return is_role and "parts" in message and "content" not in message


def _fitted(value: S) -> S:
    """Return a value of the model as the proto can hold it: its data parts are objects alone, and
    it has no place for unknown fields."""
    return v0_3.with_objects(without_extra(value))


def _respelled(value: Value, known: dict[str, str], path: str) -> Object:
    """Return an object with the names that 0.3's schema has for its members."""
    fields, extra = reading.split(value, known, path)
    return extra | {reading.camel(name): item for name, item in fields.items()}


def _unwrapped(given: Value) -> tuple[str, Object]:
    """Return what kind of event a value is, and the event itself."""
    value = _object(given, "result")
    if "kind" in value:
        return value["kind"], value
    wrapped, _ = reading.split(value, _WRAPPER, "")
    if len(wrapped) > 1:
        raise InvalidParams("must have one of task, message, statusUpdate and artifactUpdate")
    for name, inner in wrapped.items():
        return _KINDS[name], _object(inner, reading.camel(name))
    if "artifact" in value:
        return "artifact-update", value
    if "status" in value:
        return "status-update" if "taskId" in value or "task_id" in value else "task", value
    return ("message", value) if "content" in value or "parts" in value else ("", value)


def _fields(value: Value) -> Object:
    return cast(Object, value) if type(value) is dict else {}


def _object(value: Value, path: str) -> Object:
    if type(value) is not dict:
        raise InvalidParams("must be an object", field=path)
    return cast(Object, value)


def _without_kind(value: Object) -> Object:
    del value["kind"]
    return value


def _list(value: Value) -> list[Any]:
    return cast(list[Any], value) if type(value) is list else []


def _content_within(given: str) -> bytes | None:
    """Return what base64 holds twice; None: it holds something else."""
    try:
        inner = reading.base64_bytes(given, "").decode("ascii")
        return base64.b64decode(inner, validate=True) if inner else None
    except (InvalidParams, UnicodeDecodeError, binascii.Error):
        return None


def _unless_unlimited(length: Value) -> Value:
    # Zero is how the proto says nothing.
    return None if length in (0, "0", "") and type(length) is not bool else length


def _configuration(operation: ops.SendMessage) -> Object:
    configuration: Object = {"blocking": operation.wait}
    if operation.accepted_output_modes:
        configuration["acceptedOutputModes"] = operation.accepted_output_modes
    if operation.history:
        configuration["historyLength"] = operation.history
    if operation.push is not None:
        configuration["pushNotification"] = push.encode_inner(operation.push)
    return configuration


# Push configurations


def _push_name(task_id: str, config_id: str) -> str:
    return f"tasks/{task_id}/pushNotificationConfigs/{config_id}"


def _encoded_push(config: PushConfig, task_id: str) -> Object:
    return {
        "name": _push_name(task_id, config.id),
        "pushNotificationConfig": push.encode_inner(config),
    }


def _resource(fields: Object) -> tuple[str, str]:
    """Return the ids in a resource's name, empty where it has none."""
    name = fields.get("name") or fields.get("parent")
    found = _RESOURCE.match(name) if type(name) is str else None
    task_id, config_id = found.groups(default="") if found else ("", "")
    # The official Python library names a configuration without an id like this.
    return task_id, "" if config_id == "None" else config_id


def _config(value: Value, path: str) -> PushConfig:
    """Return a configuration in any of the shapes peers send, with what its name says."""
    read = push.decode_flat(value, path)
    outer = cast(Object, value)
    inner = outer.get("config")
    task_id, config_id = _resource(outer)
    if not config_id and type(inner) is dict:
        named, config_id = _resource(cast(Object, inner))
        task_id = task_id or named
    return msgspec.structs.replace(
        read,
        id=read.id or reading.optional_identifier(config_id, "name"),
        task_id=read.task_id or TaskId(reading.optional_identifier(task_id, "name")),
        version="0.3",
    )


def _decode_create(params: Object) -> ops.CreatePush:
    config = _config(params, "")
    if not config.task_id:
        raise InvalidParams("is required", field="parent")
    return ops.CreatePush(task_id=config.task_id, config=config)


def _decode_push_reply(operation: push.PushOperation, value: Value) -> Reply:
    def config(item: Value, path: str) -> PushConfig:
        read = _config(item, path)
        return msgspec.structs.replace(read, task_id=read.task_id or operation.task_id)

    match operation:
        case ops.CreatePush() | ops.GetPush():
            return config(value, "result")
        case ops.ListPush():
            if type(value) is list:
                return PushPage(reading.array(value, "result", config))
            fields, _ = reading.split(value, _PAGE, "result")
            token = reading.text(fields.get("next_page_token", ""), "result.nextPageToken")
            return PushPage(reading.array(fields.get("configs", []), "configs", config), token)
        case ops.DeletePush():
            return Nothing()
