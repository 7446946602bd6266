"""R: 0.3 with questions that say how they are answered, parts for the results of tools, and
streams that stay open while a task waits.

Inside, a tool's result is a data part of a media type of its own, and a question's form is in the
metadata of its message: peers of other dialects see these.
"""

from typing import Literal, cast

from dragoman.dialects import house_paths, reading, v0_3_shapes
from dragoman.dialects.dialect import Headers, trimmed
from dragoman.dialects.errors import RestError, Table
from dragoman.dialects.house import errors
from dragoman.dialects.house.r_service import RService
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0
from dragoman.errors import A2AError, InvalidParams, InvalidRequest, ParseFailed
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded, encode
from dragoman.model.requests import FIRST as INPUT_REQUEST
from dragoman.model.requests import REQUESTS_URI, TOOL_RESULT
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply, Service, TaskReply

# Where its callers call.
PATH = house_paths.R
# The kind of a part, in its metadata.
KIND = "rx:kind"
_TOOLS = {"tool-result": TOOL_RESULT, "tool-use": "application/vnd.a2a.tool-use+json"}

Place = Literal["home", "rest", "abroad"]


class R(V0):
    """What R agents and their clients speak."""

    version = "0.3"

    def __init__(
        self, place: Place, *, follows: bool = False, rest_frame: tuple[bytes, bytes] = (b"", b"")
    ) -> None:
        """`place` is the house's own path, 0.3's paths of REST, or a path of all dialects, where
        only the request shows who calls. `follows` says that reading a task by `taskId` means to
        follow it, since the caller reads events."""
        self._is_home = place == "home"
        self._follows = follows
        # Over REST a task that failed is a task.
        self._has_codes = place != "rest"
        self.keeps_open = place != "abroad"
        # Over REST its callers name tasks that they begin.
        self.names_tasks = place == "rest"
        self.rest_frame = rest_frame
        if self.keeps_open:
            # HTTP/1.1 has this by default; its callers look for it.
            self.stream_headers = ((b"connection", b"keep-alive"),)
        self._shape = f"rx-{place}"

    # Requests

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for; a task may be named by `taskId` too."""
        fields = reading.members(params)
        if method == "tasks/get" and "taskId" in fields:
            rest = {name: item for name, item in fields.items() if name != "taskId"}
            operation = super().decode_request(method, {"id": fields["taskId"], **rest})
            if self._follows and isinstance(operation, ops.GetTask):
                return ops.SubscribeToTask(task_id=operation.task_id)
            return operation
        if "message" in fields and type(fields["message"]) is dict:
            message = _message_0_3(cast(Object, fields["message"]))
            return super().decode_request(method, {**fields, "message": message})
        return super().decode_request(method, params)

    # Answers

    def around(self, service: Service, headers: Headers) -> Service:
        """Return the service with what this house does beyond the protocol."""
        return RService(service, headers, from_status=self._follows, shows_trace=self.keeps_open)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        if isinstance(reply, Message):
            return encode(_shown(v0_3_shapes.encode_message(reply)))
        if isinstance(reply, TaskReply) and isinstance(operation, ops.SendMessage):
            self._refuse(reply.reading.task.id, reply.reading.task.status)
        return super().encode_reply(operation, reply)

    def _refuse(self, task_id: str, status: TaskStatus) -> None:
        """Raise what this house has a code for, where it is how a task ended."""
        if self._has_codes and (error := errors.rx_failure(task_id, status)) is not None:
            raise error

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        return encode(_encode_task(trimmed(reply).reading.task))

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self._shape)
        if shape is None:
            shape = recorded.shapes[self._shape] = encode(self._encode(recorded.event))
        return shape

    def _encode(self, event: Event) -> Object:
        match event:
            case StatusUpdate():
                self._refuse(event.task_id, event.status)
                value = v0_3_shapes.encode_status_update(event)
                value["status"] = _encode_status(event.status)
                if self.keeps_open:
                    value["final"] = event.status.state.is_terminal
                return value
            case ArtifactUpdate():
                value = v0_3_shapes.encode_artifact_update(event)
                value["artifact"] = _shown(value["artifact"])
                return value
            case Task():
                return _encode_task(event)
            case Message():
                return _shown(v0_3_shapes.encode_message(event))
            case _:
                raise ValueError(f"{type(event).__name__} is not part of any stream")

    # Errors

    def encode_rest_error(self, error: A2AError, table: Table, task_id: str = "") -> RestError:
        """Return the HTTP status and the body of a REST answer."""
        return errors.rx_rest(error, task_id)

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of a JSON-RPC answer."""
        return errors.rx(error)

    def http_status(self, error: A2AError) -> int:
        """Return the status of an error: at home a bad envelope is one of HTTP as well."""
        is_envelope = isinstance(error, InvalidRequest | ParseFailed)
        return 400 if self._is_home and is_envelope else 200


RX, RX_ABROAD = R("home"), R("abroad")
RX_FOLLOWING, RX_ABROAD_FOLLOWING = R("home", follows=True), R("abroad", follows=True)
# REST streams are bare events, or wrapped as results of JSON-RPC, as the settings say.
RX_REST = R("rest")
RX_REST_WRAPPED = R("rest", rest_frame=(b'{"jsonrpc":"2.0","id":null,"result":', b"}"))


def is_spoken(method: str, params: Value) -> bool:
    """Tell whether a request says something that only this house says."""
    fields = reading.members(params)
    if method == "tasks/get":
        return "taskId" in fields and "id" not in fields
    message = reading.members(fields.get("message"))
    return "inputRequest" in message or any(
        _tool(reading.members(part)) for part in reading.elements(message.get("parts"))
    )


# Questions


def _input_request(question: Message) -> Object:
    """Return how a question is answered: as it says itself, else by its own id."""
    # An agent of this house, whose words a client reads as those of 0.3, has it beside the parts.
    found = question.metadata.get(INPUT_REQUEST) or question.extra.get("inputRequest")
    given = reading.members(found)
    return {
        "kind": "input-request",
        "prompt": question.text,
        "sensitive": question.metadata.get("sensitive") is True,
        "requestId": question.message_id,
        **{name: given[name] for name in given if name != "kind"},
    }


# To 0.3 and back


def _message_0_3(message: Object) -> Object:
    """Return a message whose tool parts are data, and whose question is in its metadata: what is
    no part of 0.3 it has by an extension, which it names."""
    value = {name: item for name, item in message.items() if name != "inputRequest"}
    parts = reading.elements(message.get("parts"))
    if parts:
        value["parts"] = [_part_0_3(part) for part in parts]
    is_extended = "inputRequest" in message or any(_tool(reading.members(part)) for part in parts)
    given, named = message.get("extensions"), reading.elements(message.get("extensions"))
    if is_extended and (given is None or type(given) is list) and REQUESTS_URI not in named:
        value["extensions"] = [*named, REQUESTS_URI]
    if "inputRequest" in message:
        metadata = reading.metadata(message.get("metadata") or {}, "message.metadata")
        value["metadata"] = {**metadata, INPUT_REQUEST: message["inputRequest"]}
    return value


def _part_0_3(part: Value) -> Value:
    fields = reading.members(part)
    kind = _tool(fields)
    if not kind:
        return part
    if kind == "tool-result" and not isinstance(fields.get("toolUseId"), str):
        raise InvalidParams("must be a string", field="message.parts.toolUseId")
    data = {name: item for name, item in fields.items() if name not in ("kind", "metadata")}
    metadata = reading.metadata(fields.get("metadata") or {}, "message.parts.metadata")
    marks = {KIND: kind, v0_3_shapes.MEDIA_TYPE: _TOOLS[kind]}
    return {"kind": "data", "data": data, "metadata": {**metadata, **marks}}


def _encode_task(task: Task) -> Object:
    value = v0_3_shapes.encode_task(task)
    value["status"] = _encode_status(task.status)
    for name in ("artifacts", "history"):
        if name in value:
            value[name] = [_shown(item) for item in value[name]]
    return value


def _encode_status(status: TaskStatus) -> Object:
    value = v0_3_shapes.encode_status(status)
    if status.message is not None:
        value["message"] = _shown(value["message"])
        if status.state is TaskState.INPUT_REQUIRED:
            value["message"]["inputRequest"] = _input_request(status.message)
    return value


def _shown(value: Object) -> Object:
    """Return a message or an artifact of 0.3 with its tool parts as this house has them."""
    value["parts"] = [_shown_part(part) for part in value["parts"]]
    metadata = value.get("metadata", {})
    if INPUT_REQUEST in metadata and value.get("kind") == "message":
        given = reading.members(metadata[INPUT_REQUEST])
        value["inputRequest"] = {**given, "kind": "input-request"}
        value["metadata"] = {n: item for n, item in metadata.items() if n != INPUT_REQUEST}
        if not value["metadata"]:
            del value["metadata"]
    return value


def _shown_part(part: Object) -> Object:
    metadata: Metadata = part.get("metadata", {})
    kind = next(
        (kind for kind, name in _TOOLS.items() if name == metadata.get(v0_3_shapes.MEDIA_TYPE)), ""
    )
    if not kind or part.get("kind") != "data":
        return part
    value: Object = {"kind": kind}
    value |= {name: item for name, item in part["data"].items() if name != "kind"}
    own = {n: item for n, item in metadata.items() if n not in (KIND, v0_3_shapes.MEDIA_TYPE)}
    return value | {"metadata": own} if own else value


def _tool(part: Object) -> str:
    """Return which of this house's own kinds a part is of; empty: none."""
    kind = part.get("kind")
    return kind if isinstance(kind, str) and kind in _TOOLS else ""
