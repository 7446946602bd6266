"""A2A 0.3 as ProtoJSON of its proto, which is what official peers speak over REST.

Other names and wrappers around what 0.3 is anyway. The operations and how they are recognized; the
spelling of objects is in `v0_3_proto_shapes.py`.
"""

from collections.abc import Mapping
from typing import cast

import msgspec

from dragoman.dialects import cards, push, reading, v0_3_shapes
from dragoman.dialects.dialect import EncodedRequest, ProtoDialect, trimmed
from dragoman.dialects.operations import BY_V0_METHOD, BY_V0_REST_METHOD, row_of
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.dialects.v0_3 import V0, V0_3
from dragoman.dialects.v0_3_proto_shapes import (
    STATE_SPELLINGS,
    ProtoSpelling,
    content_within,
    unless_unlimited,
)
from dragoman.dialects.v1_0 import MAX_PAGE_SIZE
from dragoman.dialects.v1_0_shapes import ROLES
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.events import Event
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.patterns import late_pattern
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

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
_PAGE = both_spellings("configs", "nextPageToken")
_RESOURCE = late_pattern(r"tasks/(.+?)(?:/pushNotificationConfigs(?:/(.*))?)?\Z")


class V0Proto(V0, ProtoDialect):
    """The 0.3 dialect of REST, `/v1/…`."""

    # The proto says that such a stream has the task, as GetTask has it, and ends.
    shows_ended = True

    state_names: Mapping[TaskState, str] = {
        state: STATE_SPELLINGS[name] for state, name in v0_3_shapes.STATE_NAMES.items()
    }

    def __init__(self, spelling: ProtoSpelling) -> None:
        self._spelling = spelling
        self._shape = "0.3-proto-text" if spelling.holds_text else "0.3-proto"
        self.proto_shape = f"{self._shape}-bytes"

    # Requests

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for; its ids may be in resource names."""
        row = BY_V0_METHOD.get(method) or BY_V0_REST_METHOD.get(method)
        if row is None or row.operation is ops.GetExtendedCard:
            return super().decode_request(method, params)
        if issubclass(row.operation, ops.SendMessage):
            return super().decode_request(method, self._spelling.send(params))
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
        task_params: Object = {"id": fields.get("id", task_id), "metadata": fields.get("metadata")}
        if row.operation is ops.GetTask:
            task_params["historyLength"] = unless_unlimited(fields.get("history_length"))
        return super().decode_request(method, task_params)

    def encode_request(self, operation: ops.Operation) -> EncodedRequest:
        """Return the method and the parameters, which name tasks as resources."""
        names = row_of(operation).v0
        if not names:
            raise UnsupportedOperation("The peer's protocol version has no such operation")
        params: Object = {}
        match operation:
            case ops.SendMessage():
                params["message"] = self._spelling.encode_message(operation.message)
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
        return EncodedRequest(names[0], params)

    # Replies and events

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply; only answers to a send are wrapped."""
        match reply:
            case TaskPage():
                tasks = [trimmed(one).reading.task for one in reply.tasks]
                return encode([self._spelling.encode_task(task) for task in tasks])
            case AgentCard() | Nothing():
                return super().encode_reply(operation, reply)
            case _:
                return encode(self.reply_value(operation, reply))

    def reply_value(self, operation: ops.Operation, reply: Reply) -> Object:
        """Return a reply as plain values."""
        match reply:
            case TaskReply():
                task = self._spelling.encode_task(trimmed(reply).reading.task)
                return {"task": task} if isinstance(operation, ops.SendMessage) else task
            case Message():
                return {"message": self._spelling.encode_message(reply)}
            case PushConfig():
                return _encoded_push(reply, reply.task_id)
            case PushPage():
                configs = [_encoded_push(config, config.task_id) for config in reply.configs]
                return {"configs": configs, "nextPageToken": reply.next_page_token}
            case AgentCard():
                return cards.v0_3_proto(reply)
            case Nothing():
                return {}
            case TaskPage():
                raise UnsupportedOperation("The protocol version has no such operation")

    def event_value(self, event: Event) -> Object:
        """Return an event in its wrapper, as plain values."""
        return self._spelling.encode_event(event)

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
        return encode({"task": self._spelling.encode_task(trimmed(reply).reading.task)})

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self._shape)
        if shape is None:
            shape = recorded.shapes[self._shape] = encode(
                self._spelling.encode_event(recorded.event)
            )
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
                core = self._spelling.task(inner, kind)
            case "message":
                core = self._spelling.message(inner, kind)
            case "status-update" | "artifact-update":
                core = self._spelling.update(inner, kind)
            case _:
                core = inner
        return super().decode_event(core | {"kind": kind})


V0_3_PROTO = V0Proto(ProtoSpelling())
V0_3_PROTO_TEXT = V0Proto(ProtoSpelling(holds_text=True))


def is_core(body: Value) -> bool:
    """Tell whether a body is that of 0.3's JSON schema, and not of its proto."""
    fields = reading.members(body)
    message = reading.members(fields.get("message"))
    if not message:
        return "taskId" in fields and "pushNotificationConfig" in fields and "name" not in fields
    return (
        "kind" in message
        or ("parts" in message and message.get("role") in ("user", "agent"))
        or any("kind" in reading.members(part) for part in reading.elements(message.get("parts")))
    )


def has_plain_files(body: Value) -> bool:
    """Tell whether a send has a file that is not base64 text: its caller keeps to the proto."""
    message = reading.members(reading.members(body).get("message"))
    parts = reading.elements(message.get("content")) or reading.elements(message.get("parts"))
    files = [reading.members(reading.members(part).get("file")) for part in parts]
    given = [one.get("fileWithBytes", one.get("file_with_bytes")) for one in files]
    # An empty one is the same in both.
    return any(
        isinstance(one, str | bytes) and one and content_within(one) is None for one in given
    )


def is_newer(body: Value) -> bool:
    """Tell whether a body is a send of 1.0."""
    message = reading.members(reading.members(body).get("message"))
    role = message.get("role")
    is_role = type(role) in (str, int) and role in ROLES
    return is_role and "parts" in message and "content" not in message


def _unwrapped(given: Value) -> tuple[str, Object]:
    """Return what kind of event a value is, and the event itself."""
    value = reading.mapping(given, "result")
    if "kind" in value:
        return value["kind"], value
    wrapped, _ = reading.split(value, _WRAPPER, "")
    if len(wrapped) > 1:
        raise InvalidParams("must have one of task, message, statusUpdate and artifactUpdate")
    for name, inner in wrapped.items():
        return _KINDS[name], reading.mapping(inner, reading.camel(name))
    if "artifact" in value:
        return "artifact-update", value
    if "status" in value:
        return "status-update" if "taskId" in value or "task_id" in value else "task", value
    return ("message", value) if "content" in value or "parts" in value else ("", value)


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
