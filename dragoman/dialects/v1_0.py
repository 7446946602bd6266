"""A2A 1.0 as ProtoJSON. The model has this version's semantics, so encoding is the record's own
JSON less the unknown fields, which 1.0 peers reject.

The operations; how the objects of peers are read is in `v1_0_shapes.py`.
"""

from collections.abc import Mapping

import msgspec

from dragoman.dialects import cards, errors, push, reading
from dragoman.dialects import v1_0_shapes as shapes
from dragoman.dialects.dialect import (
    EncodedRequest,
    ProtoDialect,
    reply_to_send,
    task_params,
    trimmed,
)
from dragoman.dialects.errors import RestError
from dragoman.dialects.operations import BY_V1_METHOD, row_of
from dragoman.dialects.plain_answers import plain_event
from dragoman.dialects.plain_requests import plain_get, plain_send
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.dialects.v1_0_shapes import without_extra
from dragoman.errors import A2AError, InvalidParams, MethodNotFound
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.push import PushConfig
from dragoman.model.record import EXTRA_MEMBER, Recorded, TaskReading, encode, encode_event
from dragoman.model.task import Task, TaskState
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 100

_SEND = both_spellings("tenant", "message", "configuration", "metadata")
_CONFIGURATION = both_spellings(
    "acceptedOutputModes", "taskPushNotificationConfig", "historyLength", "returnImmediately"
)
_GET = both_spellings("tenant", "id", "historyLength", "metadata")
_LIST = both_spellings(
    "tenant contextId status pageSize pageToken historyLength statusTimestampAfter",
    "includeArtifacts",
)
_TENANT = both_spellings("tenant")
# The change notes of 1.0 misspell two wrappers; peers that believed them are understood.
_WRAPPER = both_spellings("task", "message", "statusUpdate", "artifactUpdate") | {
    "taskStatusUpdate": "status_update",
    "taskArtifactUpdate": "artifact_update",
}


def encode_task(reply: TaskReply) -> bytes:
    """Return the JSON of a task, from the stored bytes where they already have this shape."""
    if reply.history is not None:
        reply = trimmed(reply)
    body = reply.reading.body
    return encode(without_extra(reply.reading.task)) if EXTRA_MEMBER in body else body


class V1(ProtoDialect):
    """The 1.0 dialect."""

    version = "1.0"
    state_names: Mapping[TaskState, str] = {state: state.value for state in TaskState}
    push_content_type = "application/a2a+json"
    push_needs_task = False
    proto_shape = "1.0-bytes"

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        row = BY_V1_METHOD.get(method)
        if row is None:
            raise MethodNotFound(method=method)
        operation = row.operation
        if operation is ops.GetTask:
            return plain_get(params) or decode_get(params)
        if operation is ops.SendMessage or operation is ops.StreamMessage:
            return plain_send(params, operation) or decode_send(params, operation)
        if row.operation is ops.ListTasks:
            return _decode_list(params)
        if row.operation in push.OPERATIONS:
            return push.decode_v1(row.operation, params)
        if row.operation is ops.GetExtendedCard:
            return ops.GetExtendedCard(tenant=_tenant(reading.split(params, _TENANT, "")[0]))
        fields, _ = reading.split(params, _GET, "")
        task_id = reading.task_id_of(fields, "id")
        tenant = _tenant(fields)
        if row.operation is ops.SubscribeToTask:
            return ops.SubscribeToTask(task_id=task_id, tenant=tenant)
        metadata = reading.metadata_of(fields)
        return ops.CancelTask(task_id=task_id, metadata=metadata, tenant=tenant)

    def encode_request(self, operation: ops.Operation) -> EncodedRequest:
        """Return the method and the parameters that ask for an operation."""
        params: Object = {"tenant": operation.tenant} if operation.tenant else {}
        match operation:
            case ops.SendMessage():
                message = operation.message
                if EXTRA_MEMBER in encode(message):
                    message = without_extra(message)
                params["message"] = _value_of(message)
                params["configuration"] = _configuration(operation)
                if operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.GetTask() | ops.CancelTask() | ops.SubscribeToTask():
                params |= task_params(operation)
            case ops.ListTasks():
                params |= _list_params(operation)
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush():
                params |= push.encode_v1(operation)
            case _:
                pass
        return EncodedRequest(row_of(operation).v1, params)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply; only answers to a send are wrapped."""
        if isinstance(reply, TaskReply):
            # Most replies are one.
            body = encode_task(reply)
            wrapped = isinstance(operation, ops.SendMessage)
            return b'{"task":' + body + b"}" if wrapped else body
        match reply:
            case Message():
                body = encode_event(reply)
                return body if EXTRA_MEMBER not in body else encode_event(without_extra(reply))
            case TaskPage():
                return _encode_page(reply)
            case AgentCard():
                return encode(cards.v1_0(reply))
            case PushConfig() | PushPage() | Nothing():
                return encode(push.encode_reply_v1(reply, operation.tenant))

    def reply_value(self, operation: ops.Operation, reply: Reply) -> Object:
        """Return a reply as plain values."""
        match reply:
            case TaskReply():
                task = _task_value(reply)
                return {"task": task} if isinstance(operation, ops.SendMessage) else task
            case Message():
                return {"message": _value_of(reply)}
            case TaskPage():
                return {
                    "tasks": [_task_value(task) for task in reply.tasks],
                    "nextPageToken": reply.next_page_token,
                    "pageSize": reply.page_size,
                    "totalSize": reply.total_size,
                }
            case AgentCard():
                return cards.v1_0(reply)
            case PushConfig() | PushPage() | Nothing():
                return push.encode_reply_v1(reply, operation.tenant) or {}

    def event_value(self, event: Event) -> Object:
        """Return an event in its wrapper, as plain values."""
        return {_MEMBERS[type(event)]: _value_of(event)}

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        if isinstance(operation, ops.SendMessage):
            return reply_to_send(self.decode_event(value))
        if isinstance(operation, ops.ListTasks):
            return _decode_page(value, operation)
        if isinstance(operation, ops.GetExtendedCard):
            return cards.decode(value)
        if isinstance(operation, push.PushOperation):
            return push.decode_reply_v1(operation, value)
        return TaskReply(TaskReading(0, shapes.decode_task(value, "result")))

    def encode_rest_error(
        self, error: A2AError, table: errors.Table, task_id: str = ""
    ) -> RestError:
        """Return the HTTP status and the body of a REST answer."""
        return errors.rest(error, table)

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
        return plain_event(value) or decode_event(value)


V1_0 = V1()
# The member of the wrapper for each kind of event.
_MEMBERS: Mapping[type[Event], str] = {
    Task: "task",
    Message: "message",
    StatusUpdate: "statusUpdate",
    ArtifactUpdate: "artifactUpdate",
}


def _value_of(value: msgspec.Struct) -> Object:
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def _task_value(reply: TaskReply) -> Object:
    return _value_of(trimmed(reply).reading.task)


def _tenant(fields: Object) -> str:
    return reading.optional_identifier(fields.get("tenant", ""), "tenant")


def decode_get(params: Object) -> ops.GetTask:
    """Return a request for a task, in any spelling."""
    fields, _ = reading.split(params, _GET, "")
    task_id = reading.task_id_of(fields, "id")
    history = reading.history_of(fields)
    return ops.GetTask(task_id=task_id, history=history, tenant=_tenant(fields))


def decode_send(params: Object, operation: type[ops.SendMessage]) -> ops.SendMessage:
    """Return a message to an agent, of any content and in any spelling."""
    fields, _ = reading.split(params, _SEND, "")
    path = "configuration"
    configuration, _ = reading.split(fields.get(path, {}), _CONFIGURATION, path)
    return operation(
        message=shapes.decode_message(reading.required(fields, "message", ""), "message"),
        accepted_output_modes=reading.media_types(
            configuration.get("accepted_output_modes", []), f"{path}.acceptedOutputModes"
        ),
        history=reading.history_of(configuration, path),
        wait=not reading.boolean(
            configuration.get("return_immediately", False), f"{path}.returnImmediately"
        ),
        push=_decode_push(configuration, path),
        metadata=reading.metadata_of(fields),
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
        context_id=reading.context_id_of(fields),
        state=None
        if state is None or (type(state) in (str, int) and state in shapes.UNSPECIFIED)
        else shapes.decode_state(state, "status"),
        page_size=size,
        page_token=reading.text(fields.get("page_token", ""), "pageToken"),
        history=reading.history_of(fields),
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
    tasks = reading.array(fields.get("tasks", []), "tasks", shapes.decode_task)
    return TaskPage(
        tasks=[TaskReply(TaskReading(0, task)) for task in tasks],
        next_page_token=reading.text(fields.get("next_page_token", ""), "nextPageToken"),
        page_size=reading.integer(fields.get("page_size", operation.page_size), "pageSize"),
        total_size=reading.integer(fields.get("total_size", len(tasks)), "totalSize"),
        include_artifacts=operation.include_artifacts,
    )


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


def decode_event(value: Value) -> Event:
    """Return an event of any content and in any spelling."""
    fields, _ = reading.split(value, _WRAPPER, "")
    if len(fields) != 1:
        raise InvalidParams(
            "must have exactly one of task, message, statusUpdate and artifactUpdate"
        )
    (name, inner), *_ = fields.items()
    match name:
        case "task":
            return shapes.decode_task(inner, "task")
        case "message":
            return shapes.decode_message(inner, "message")
        case "status_update":
            return shapes.decode_status_update(inner, "statusUpdate")
        case _:
            return shapes.decode_artifact_update(inner, "artifactUpdate")
