"""A2A 0.3 as its JSON schema has it: `kind` tells objects apart, results are never wrapped.

The operations; the objects in them are in `v0_3_shapes.py`.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from dragoman.dialects import cards, errors, push, reading
from dragoman.dialects import v0_3_shapes as shapes
from dragoman.dialects.dialect import Dialect, EncodedRequest, reply_to_send, task_params, trimmed
from dragoman.dialects.errors import RestError
from dragoman.dialects.operations import BY_V0_METHOD, row_of
from dragoman.dialects.plain_requests import plain_get, plain_send_0_3
from dragoman.dialects.reading import Object, Value, one_spelling
from dragoman.errors import A2AError, InvalidParams, MethodNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.events import Event
from dragoman.model.message import Message, Role
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

S = TypeVar("S")

_SEND = one_spelling("message", "configuration", "metadata", "messageId")
_CONFIGURATION = one_spelling(
    "acceptedOutputModes", "pushNotificationConfig", "historyLength", "blocking"
)
_GET = one_spelling("id", "historyLength", "metadata")


class V0(Dialect):
    """The 0.3 dialect, and what 0.2 shares with it."""

    version: str = "0.3"
    state_names: Mapping[TaskState, str] = shapes.STATE_NAMES
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
        if row.operation is ops.SendMessage or row.operation is ops.StreamMessage:
            kind = row.operation
            return plain_send_0_3(params, kind) or decode_send(params, kind, self.version)
        if row.operation is ops.GetExtendedCard:
            return ops.GetExtendedCard()
        if row.operation in push.OPERATIONS:
            return push.decode_v0(row.operation, params, self.version)
        if row.operation is ops.GetTask and (plain := plain_get(params)) is not None:
            return plain
        fields, _ = reading.split(params, _GET, "")
        task_id, metadata = reading.task_id_of(fields, "id"), reading.metadata_of(fields)
        if row.operation is ops.GetTask:
            return ops.GetTask(task_id=task_id, history=reading.history_of(fields))
        if row.operation is ops.SubscribeToTask:
            return ops.SubscribeToTask(task_id=task_id)
        return ops.CancelTask(task_id=task_id, metadata=metadata)

    def encode_request(self, operation: ops.Operation) -> EncodedRequest:
        """Return the method and the parameters; a tenant has no place in this version."""
        names = row_of(operation).v0
        if not names:
            raise UnsupportedOperation("The peer's protocol version has no such operation")
        params: Object = {}
        match operation:
            case ops.SendMessage():
                params["message"] = shapes.encode_message(self.fitted(operation.message))
                params["configuration"] = _configuration(operation)
                if operation.metadata:
                    params["metadata"] = operation.metadata
            case ops.GetTask() | ops.CancelTask() | ops.SubscribeToTask():
                params |= task_params(operation)
            case ops.CreatePush() | ops.GetPush() | ops.ListPush() | ops.DeletePush():
                params |= push.encode_v0(operation)
            case _:
                pass
        return EncodedRequest(names[0], params)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        match reply:
            case TaskReply():
                return self.encode_opening(reply)
            case Message():
                return encode(shapes.encode_message(self.fitted(reply)))
            case AgentCard():
                return encode(self.encode_card(reply))
            case PushConfig() | PushPage() | Nothing():
                return encode(push.encode_reply_v0(reply))
            case TaskPage():
                raise UnsupportedOperation("Tasks cannot be listed in this protocol version")

    def encode_rest_error(
        self, error: A2AError, table: errors.Table, task_id: str = ""
    ) -> RestError:
        """Return the HTTP status and the body of a REST answer; 0.x has one table."""
        return errors.rest_0_x(error)

    def encode_card(self, card: AgentCard) -> Object:
        """Return the card in this version's shape."""
        return cards.v0_3(card)

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the reply a peer gave to an operation."""
        if isinstance(operation, ops.SendMessage):
            return reply_to_send(self.decode_event(value))
        if isinstance(operation, ops.GetExtendedCard):
            return cards.decode(value)
        if isinstance(operation, push.PushOperation):
            return push.decode_reply_v0(operation, value, self.version)
        return TaskReply(TaskReading(0, shapes.decode_task(value, "result")))

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        if reply.history is not None:
            reply = trimmed(reply)
        return encode(shapes.encode_task(self.fitted(reply.reading.task)))

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self.shape)
        if shape is None:
            shape = recorded.shapes[self.shape] = encode(
                shapes.encode_event(self.fitted(recorded.event))
            )
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
        return encode(shapes.encode_task(self.fitted(task)))

    def decode_event(self, value: Value) -> Event:
        """Return the event a peer's stream showed; without `kind`, by the members it has."""
        fields = reading.mapping(value, "result")
        match fields.get("kind") or shapes.implied_event(fields):
            case "task":
                return shapes.decode_task(value, "result")
            case "message":
                return shapes.decode_message(value, "result")
            case "status-update":
                return shapes.decode_status_update(value, "result")
            case "artifact-update":
                return shapes.decode_artifact_update(value, "result")
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
        return shapes.with_objects(value)


V0_3 = V0()
V0_3_OBJECTS = V0Objects()


def decode_send(params: Object, operation: type[ops.SendMessage], version: str) -> ops.SendMessage:
    """Return a message to an agent, of any content and in any spelling."""
    fields, _ = reading.split(params, _SEND, "")
    path = "configuration"
    configuration, _ = reading.split(fields.get(path, {}), _CONFIGURATION, path)
    message = reading.mapping(reading.required(fields, "message", ""), "message")
    # An example of the specification puts the message's id beside it.
    if message.get("messageId") is None and "message_id" in fields:
        message = {**message, "messageId": fields["message_id"]}
    receiver = configuration.get("push_notification_config")
    return operation(
        message=shapes.decode_message(message, "message", Role.USER),
        accepted_output_modes=reading.media_types(
            configuration.get("accepted_output_modes", []), f"{path}.acceptedOutputModes"
        ),
        history=reading.history_of(configuration, path),
        # Who says where to post what happens does not wait for it, unless it says so.
        wait=reading.boolean(configuration.get("blocking", receiver is None), f"{path}.blocking"),
        push=None
        if receiver is None
        else push.decode_inner(receiver, f"{path}.pushNotificationConfig", version),
        metadata=reading.metadata_of(fields),
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
