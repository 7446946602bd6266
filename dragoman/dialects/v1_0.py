"""A2A 1.0 as ProtoJSON. The model has this version's semantics, so encoding is the record's own
JSON less the unknown fields, which 1.0 peers reject."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.dialects import cards, push, reading
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.operations import BY_V1_METHOD, row_of
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.errors import InvalidParams, MethodNotFound
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentCard
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushConfig
from dragoman.model.record import EXTRA_MEMBER, Recorded, TaskReading, encode, encode_event
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

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
_STATE_NAME = re.compile(r"TASK_STATE_[A-Z_]{1,64}\Z")
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 100

_PART = both_spellings("text", "raw", "url", "data", "metadata", "filename", "mediaType")
_MESSAGE = both_spellings(
    "messageId",
    "contextId",
    "taskId",
    "role",
    "parts",
    "metadata",
    "extensions",
    "referenceTaskIds",
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
_SEND = both_spellings("tenant", "message", "configuration", "metadata")
_CONFIGURATION = both_spellings(
    "acceptedOutputModes", "taskPushNotificationConfig", "historyLength", "returnImmediately"
)
_GET = both_spellings("tenant", "id", "historyLength", "metadata")
_LIST = both_spellings(
    "tenant",
    "contextId",
    "status",
    "pageSize",
    "pageToken",
    "historyLength",
    "statusTimestampAfter",
    "includeArtifacts",
)
_TENANT = both_spellings("tenant")
# The change notes of 1.0 misspell two wrappers; peers that believed them are understood.
_WRAPPER = both_spellings("task", "message", "statusUpdate", "artifactUpdate") | {
    "taskStatusUpdate": "status_update",
    "taskArtifactUpdate": "artifact_update",
}

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
    fields, extra = reading.split(value, _ARTIFACT, path)
    return Artifact(
        artifact_id=reading.text(
            reading.required(fields, "artifact_id", path), f"{path}.artifactId"
        ),
        parts=reading.array(reading.required(fields, "parts", path), f"{path}.parts", decode_part),
        name=reading.text(fields.get("name", ""), f"{path}.name"),
        description=reading.text(fields.get("description", ""), f"{path}.description"),
        metadata=reading.metadata(fields.get("metadata", {}), f"{path}.metadata"),
        extensions=reading.array(fields.get("extensions", []), f"{path}.extensions", reading.text),
        extra=extra,
    )


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
    working: whoever follows the task asks again. What it was called stays among the unknown."""
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
    fields, extra = reading.split(value, _TASK, path)
    return Task(
        id=TaskId(reading.identifier(reading.required(fields, "id", path), f"{path}.id")),
        context_id=ContextId(
            reading.optional_identifier(fields.get("context_id", ""), f"{path}.contextId")
        ),
        status=decode_status(reading.required(fields, "status", path), f"{path}.status"),
        artifacts=reading.array(fields.get("artifacts", []), f"{path}.artifacts", decode_artifact),
        history=reading.array(fields.get("history", []), f"{path}.history", decode_message),
        metadata=reading.metadata(fields.get("metadata", {}), f"{path}.metadata"),
        extra=extra,
    )


def decode_status_update(value: Value, path: str) -> StatusUpdate:
    """Return a status event."""
    fields, extra = reading.split(value, _STATUS_UPDATE, path)
    return StatusUpdate(
        task_id=TaskId(
            reading.identifier(reading.required(fields, "task_id", path), f"{path}.taskId")
        ),
        context_id=ContextId(
            reading.optional_identifier(fields.get("context_id", ""), f"{path}.contextId")
        ),
        status=decode_status(reading.required(fields, "status", path), f"{path}.status"),
        metadata=reading.metadata(fields.get("metadata", {}), f"{path}.metadata"),
        extra=extra,
    )


def decode_artifact_update(value: Value, path: str) -> ArtifactUpdate:
    """Return an artifact event."""
    fields, extra = reading.split(value, _ARTIFACT_UPDATE, path)
    return ArtifactUpdate(
        task_id=TaskId(
            reading.identifier(reading.required(fields, "task_id", path), f"{path}.taskId")
        ),
        context_id=ContextId(
            reading.optional_identifier(fields.get("context_id", ""), f"{path}.contextId")
        ),
        artifact=decode_artifact(reading.required(fields, "artifact", path), f"{path}.artifact"),
        append=reading.boolean(fields.get("append", False), f"{path}.append"),
        last_chunk=reading.boolean(fields.get("last_chunk", False), f"{path}.lastChunk"),
        metadata=reading.metadata(fields.get("metadata", {}), f"{path}.metadata"),
        extra=extra,
    )


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


def encode_task(reply: TaskReply) -> bytes:
    """Return the JSON of a task, from the stored bytes where they already have this shape."""
    if reply.history is not None:
        reply = trimmed(reply)
    body = reply.reading.body
    return encode(without_extra(reply.reading.task)) if EXTRA_MEMBER in body else body


class V1:
    """The 1.0 dialect."""

    version = "1.0"
    state_names: Mapping[TaskState, str] = {state: state.value for state in TaskState}
    push_content_type = "application/a2a+json"
    push_needs_task = False

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        row = BY_V1_METHOD.get(method)
        if row is None:
            raise MethodNotFound(method=method)
        if row.operation is ops.SendMessage:
            return _decode_send(params, ops.SendMessage)
        if row.operation is ops.StreamMessage:
            return _decode_send(params, ops.StreamMessage)
        if row.operation is ops.ListTasks:
            return _decode_list(params)
        if row.operation in push.OPERATIONS:
            return push.decode_v1(row.operation, params)
        if row.operation is ops.GetExtendedCard:
            return ops.GetExtendedCard(tenant=_tenant(reading.split(params, _TENANT, "")[0]))
        fields, _ = reading.split(params, _GET, "")
        task_id = TaskId(reading.identifier(reading.required(fields, "id", ""), "id"))
        tenant = _tenant(fields)
        if row.operation is ops.GetTask:
            return ops.GetTask(task_id=task_id, history=_history(fields), tenant=tenant)
        if row.operation is ops.SubscribeToTask:
            return ops.SubscribeToTask(task_id=task_id, tenant=tenant)
        metadata = reading.metadata(fields.get("metadata", {}), "metadata")
        return ops.CancelTask(task_id=task_id, metadata=metadata, tenant=tenant)

    def encode_request(self, operation: ops.Operation) -> tuple[str, Object]:
        """Return the method and the parameters that ask for an operation."""
        params: Object = {"tenant": operation.tenant} if operation.tenant else {}
        match operation:
            case ops.SendMessage():
                message = operation.message
                if EXTRA_MEMBER in encode(message):
                    message = without_extra(message)
                params["message"] = _plain(message)
                params["configuration"] = _configuration(operation)
                if operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.GetTask() | ops.CancelTask() | ops.SubscribeToTask():
                params["id"] = operation.task_id
                if isinstance(operation, ops.GetTask) and operation.history is not None:
                    params["historyLength"] = operation.history
                if isinstance(operation, ops.CancelTask) and operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.ListTasks():
                params |= _list_params(operation)
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush():
                params |= push.encode_v1(operation)
            case _:
                pass
        return row_of(operation).v1, params

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply; only answers to a send are wrapped."""
        match reply:
            case TaskReply():
                body = encode_task(reply)
                wrapped = isinstance(operation, ops.SendMessage)
                return b'{"task":' + body + b"}" if wrapped else body
            case Message():
                body = encode_event(reply)
                return body if EXTRA_MEMBER not in body else encode_event(without_extra(reply))
            case TaskPage():
                return _encode_page(reply)
            case AgentCard():
                return encode(cards.v1_0(reply))
            case PushConfig() | PushPage() | Nothing():
                return encode(push.encode_reply_v1(reply, operation.tenant))

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        if isinstance(operation, ops.SendMessage):
            event = self.decode_event(value)
            if isinstance(event, Message):
                return event
            if isinstance(event, Task):
                return TaskReply(TaskReading(0, event))
            raise InvalidParams("must be a task or a message", field="result")
        if isinstance(operation, ops.ListTasks):
            return _decode_page(value, operation)
        if isinstance(operation, ops.GetExtendedCard):
            return cards.decode(value)
        if isinstance(operation, push.PushOperation):
            return push.decode_reply_v1(operation, value)
        return TaskReply(TaskReading(0, decode_task(value, "result")))

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        return b'{"task":' + encode_task(reply) + b"}"

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event: the stored bytes, unless unknown fields are among them."""
        body = recorded.body
        if EXTRA_MEMBER not in body:
            return body
        shape = recorded.shapes.get(self.version)
        if shape is None:
            shape = recorded.shapes[self.version] = encode_event(without_extra(recorded.event))
        return shape

    def posts(self, recorded: Recorded) -> bool:
        """Tell whether receivers get a post of an event: of each that streams show."""
        return recorded.is_public

    def encode_push(self, recorded: Recorded, task: Task | None) -> bytes:
        """Return the body of a post: the event as streams show it."""
        return self.encode_event(recorded)

    def decode_event(self, value: Value) -> Event:
        """Return the event a peer's stream showed."""
        fields, _ = reading.split(value, _WRAPPER, "")
        if len(fields) != 1:
            raise InvalidParams(
                "must have exactly one of task, message, statusUpdate and artifactUpdate"
            )
        (name, inner), *_ = fields.items()
        match name:
            case "task":
                return decode_task(inner, "task")
            case "message":
                return decode_message(inner, "message")
            case "status_update":
                return decode_status_update(inner, "statusUpdate")
            case _:
                return decode_artifact_update(inner, "artifactUpdate")


V1_0 = V1()


def _tenant(fields: Object) -> str:
    return reading.optional_identifier(fields.get("tenant", ""), "tenant")


def _history(fields: Object, path: str = "") -> int | None:
    if "history_length" not in fields:
        return None
    return reading.history_length(fields["history_length"], reading.at(path, "historyLength"))


def _decode_send(params: Object, operation: type[ops.SendMessage]) -> ops.SendMessage:
    fields, _ = reading.split(params, _SEND, "")
    path = "configuration"
    configuration, _ = reading.split(fields.get(path, {}), _CONFIGURATION, path)
    return operation(
        message=decode_message(reading.required(fields, "message", ""), "message"),
        accepted_output_modes=reading.media_types(
            configuration.get("accepted_output_modes", []), f"{path}.acceptedOutputModes"
        ),
        history=_history(configuration, path),
        wait=not reading.boolean(
            configuration.get("return_immediately", False), f"{path}.returnImmediately"
        ),
        push=_decode_push(configuration, path),
        metadata=reading.metadata(fields.get("metadata", {}), "metadata"),
        tenant=_tenant(fields),
    )


def _decode_push(configuration: Object, path: str) -> PushConfig | None:
    value = configuration.get("task_push_notification_config")
    if value is None:
        return None
    config = push.decode_flat(value, f"{path}.taskPushNotificationConfig")
    # Whose it is, the message decides.
    return msgspec.structs.replace(config, task_id=TaskId(""))


def _decode_list(params: Object) -> ops.ListTasks:
    fields, _ = reading.split(params, _LIST, "")
    state = fields.get("status")
    size = reading.integer(fields.get("page_size", DEFAULT_PAGE_SIZE), "pageSize")
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidParams(f"must be between 1 and {MAX_PAGE_SIZE}", field="pageSize")
    since = fields.get("status_timestamp_after")
    return ops.ListTasks(
        context_id=ContextId(
            reading.optional_identifier(fields.get("context_id", ""), "contextId")
        ),
        state=None
        if state is None or (type(state) in (str, int) and state in UNSPECIFIED)
        else decode_state(state, "status"),
        page_size=size,
        page_token=reading.text(fields.get("page_token", ""), "pageToken"),
        history=_history(fields),
        status_since=None if since is None else reading.instant(since, "statusTimestampAfter"),
        include_artifacts=reading.boolean(
            fields.get("include_artifacts", False), "includeArtifacts"
        ),
        tenant=_tenant(fields),
    )


def _encode_page(page: TaskPage) -> bytes:
    tasks = [encode_task(reply) for reply in page.tasks]
    if page.include_artifacts:
        # Asked-for artifacts are there even when there are none, so that absence has one meaning.
        tasks = [
            body if reply.reading.task.artifacts else body[:-1] + b',"artifacts":[]}'
            for body, reply in zip(tasks, page.tasks, strict=True)
        ]
    return b'{"tasks":[%b],"nextPageToken":%b,"pageSize":%d,"totalSize":%d}' % (
        b",".join(tasks),
        encode(page.next_page_token),
        page.page_size,
        page.total_size,
    )


_PAGE = both_spellings("tasks", "nextPageToken", "pageSize", "totalSize")


def _decode_page(value: Value, operation: ops.ListTasks) -> TaskPage:
    fields, _ = reading.split(value, _PAGE, "result")
    tasks = reading.array(fields.get("tasks", []), "tasks", decode_task)
    return TaskPage(
        tasks=[TaskReply(TaskReading(0, task)) for task in tasks],
        next_page_token=reading.text(fields.get("next_page_token", ""), "nextPageToken"),
        page_size=reading.integer(fields.get("page_size", operation.page_size), "pageSize"),
        total_size=reading.integer(fields.get("total_size", len(tasks)), "totalSize"),
        include_artifacts=operation.include_artifacts,
    )


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _configuration(operation: ops.SendMessage) -> Object:
    configuration: Object = {}
    if operation.accepted_output_modes:
        configuration["acceptedOutputModes"] = operation.accepted_output_modes
    if operation.history is not None:
        configuration["historyLength"] = operation.history
    if not operation.wait:
        configuration["returnImmediately"] = True
    if operation.push is not None:
        configuration["taskPushNotificationConfig"] = push.encode_flat(operation.push)
    return configuration


def _list_params(operation: ops.ListTasks) -> Object:
    params: Object = {"pageSize": operation.page_size}
    if operation.context_id:
        params["contextId"] = operation.context_id
    if operation.state is not None:
        params["status"] = operation.state.value
    if operation.page_token:
        params["pageToken"] = operation.page_token
    if operation.history is not None:
        params["historyLength"] = operation.history
    if operation.status_since is not None:
        params["statusTimestampAfter"] = stamp(operation.status_since)
    if operation.include_artifacts:
        params["includeArtifacts"] = True
    return params
