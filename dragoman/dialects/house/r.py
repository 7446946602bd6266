"""R: 0.3 with questions that say how they are answered, parts for the results of tools, and
streams that stay open while a task waits.

Inside, a tool's result is a data part of a media type of its own, and a question's form is in the
metadata of its message: peers of other dialects see these.
"""

from typing import Any, Literal, cast

import msgspec

from dragoman.dialects import reading, v0_3
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.house import errors
from dragoman.dialects.house.house import House
from dragoman.dialects.reading import Object, Value
from dragoman.errors import A2AError, InvalidParams, InvalidRequest, ParseFailed
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded, encode
from dragoman.model.requests import REQUESTS_URI, open_requests
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Batch, Opening, Reply, TaskReply

# Where its callers call.
PATH = "/api/a2a"
# What a question is in the metadata of its message, and the kind of a part in that of a part.
INPUT_REQUEST, KIND = "rx:inputRequest", "rx:kind"
TOOL_RESULT = "application/vnd.a2a.tool-result+json"
_TOOLS = {"tool-result": TOOL_RESULT, "tool-use": "application/vnd.a2a.tool-use+json"}

Place = Literal["home", "rest", "abroad"]


class R(House):
    """What R agents and their clients speak."""

    version = "0.3"

    def __init__(self, place: Place) -> None:
        """`place` is the house's own path, 0.3's paths of REST, or where others are served too and
        only what is asked shows who asks."""
        self._is_home = place == "home"
        # Over REST a task that failed is a task.
        self._has_codes = place != "rest"
        self.keeps_open = place != "abroad"
        # Over REST its callers name tasks that they begin.
        self.names_tasks = place == "rest"
        self._shape = f"rx-{place}"

    # Requests

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for; a task may be named by `taskId` too."""
        fields = _fields(params)
        if method == "tasks/get" and "taskId" in fields:
            rest = {name: item for name, item in fields.items() if name != "taskId"}
            return super().decode_request(method, {"id": fields["taskId"], **rest})
        if "message" in fields and type(fields["message"]) is dict:
            message = _message_0_3(cast(Object, fields["message"]))
            return super().decode_request(method, {**fields, "message": message})
        return super().decode_request(method, params)

    # Answers

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply."""
        if isinstance(reply, Message):
            return encode(_shown(v0_3.encode_message(reply)))
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
                value = v0_3.encode_status_update(event)
                value["status"] = _encode_status(event.status)
                if self.keeps_open:
                    value["final"] = event.status.state.is_terminal
                return value
            case ArtifactUpdate():
                value = v0_3.encode_artifact_update(event)
                value["artifact"] = _shown(value["artifact"])
                return value
            case Task():
                return _encode_task(event)
            case Message():
                return _shown(v0_3.encode_message(event))
            case _:
                raise ValueError(f"{type(event).__name__} is not part of any stream")

    # Errors

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of a JSON-RPC answer."""
        return errors.rx(error)

    def http_status(self, error: A2AError) -> int:
        """Return the status of an error: at home a bad envelope is one of HTTP as well."""
        is_envelope = isinstance(error, InvalidRequest | ParseFailed)
        return 400 if self._is_home and is_envelope else 200


RX, RX_REST, RX_ABROAD = R("home"), R("rest"), R("abroad")


def is_spoken(method: str, params: Value) -> bool:
    """Tell whether a request says something that only this house says."""
    fields = _fields(params)
    if method == "tasks/get":
        return "taskId" in fields and "id" not in fields
    message = _fields(fields.get("message"))
    return "inputRequest" in message or any(
        _tool(_fields(part)) for part in _list(message.get("parts"))
    )


# Questions and answers


def request_ids(status: TaskStatus) -> list[str]:
    """Return the ids by which open questions are answered; empty where none is asked."""
    is_input = status.state is TaskState.INPUT_REQUIRED
    # Word of a permission that was given elsewhere answers nothing by an id.
    found = [one for one in open_requests(status) if is_input or one.handoff is not None]
    return [request.request_id for request in found]


def answers(message: Message) -> list[str]:
    """Return the ids of the questions that a message answers."""
    found: list[str] = []
    for part in message.parts:
        if part.media_type == TOOL_RESULT:
            named = _fields(part.data).get("toolUseId")
            if isinstance(named, str):
                found.append(named)
    return found


def _input_request(question: Message) -> Object:
    """Return how a question is answered: as it says itself, else by its own id."""
    # An agent of this house, whose words a client reads as those of 0.3, has it beside the parts.
    found = question.metadata.get(INPUT_REQUEST) or question.extra.get("inputRequest")
    given = _fields(found)
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
    parts = _list(message.get("parts"))
    if parts:
        value["parts"] = [_part_0_3(part) for part in parts]
    is_extended = "inputRequest" in message or any(_tool(_fields(part)) for part in parts)
    given, named = message.get("extensions"), _list(message.get("extensions"))
    if is_extended and (given is None or type(given) is list) and REQUESTS_URI not in named:
        value["extensions"] = [*named, REQUESTS_URI]
    if "inputRequest" in message:
        metadata = reading.metadata(message.get("metadata") or {}, "message.metadata")
        value["metadata"] = {**metadata, INPUT_REQUEST: message["inputRequest"]}
    return value


def _part_0_3(part: Value) -> Value:
    fields = _fields(part)
    kind = _tool(fields)
    if not kind:
        return part
    if kind == "tool-result" and not isinstance(fields.get("toolUseId"), str):
        raise InvalidParams("must be a string", field="message.parts.toolUseId")
    data = {name: item for name, item in fields.items() if name not in ("kind", "metadata")}
    metadata = reading.metadata(fields.get("metadata") or {}, "message.parts.metadata")
    marks = {KIND: kind, v0_3.MEDIA_TYPE: _TOOLS[kind]}
    return {"kind": "data", "data": data, "metadata": {**metadata, **marks}}


def _encode_task(task: Task) -> Object:
    value = v0_3.encode_task(task)
    value["status"] = _encode_status(task.status)
    for name in ("artifacts", "history"):
        if name in value:
            value[name] = [_shown(item) for item in value[name]]
    return value


def _encode_status(status: TaskStatus) -> Object:
    value = v0_3.encode_status(status)
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
        given = _fields(metadata[INPUT_REQUEST])
        value["inputRequest"] = {**given, "kind": "input-request"}
        value["metadata"] = {n: item for n, item in metadata.items() if n != INPUT_REQUEST}
        if not value["metadata"]:
            del value["metadata"]
    return value


def _shown_part(part: Object) -> Object:
    metadata: Metadata = part.get("metadata", {})
    kind = next(
        (kind for kind, name in _TOOLS.items() if name == metadata.get(v0_3.MEDIA_TYPE)), ""
    )
    if not kind or part.get("kind") != "data":
        return part
    value: Object = {"kind": kind}
    value |= {name: item for name, item in part["data"].items() if name != "kind"}
    own = {n: item for n, item in metadata.items() if n not in (KIND, v0_3.MEDIA_TYPE)}
    return value | {"metadata": own} if own else value


def _tool(part: Object) -> str:
    """Return which of this house's own kinds a part is of; empty: none."""
    kind = part.get("kind")
    return kind if isinstance(kind, str) and kind in _TOOLS else ""


def _fields(value: Any) -> Object:
    return cast(Object, value) if type(value) is dict else {}


def _list(value: Value) -> list[Value]:
    return cast("list[Value]", value) if type(value) is list else []


# Traces


def with_trace(batch: Batch, trace: Metadata) -> Batch:
    """Return events of a stream with their trace, which an agent may not set for them."""
    if isinstance(batch, Opening | Message):
        return batch
    return [_with_trace(recorded, trace) for recorded in batch]


def _with_trace(recorded: Recorded, trace: Metadata) -> Recorded:
    if not recorded.is_status:
        return recorded
    event = recorded.event
    assert isinstance(event, StatusUpdate), "it is one"
    return Recorded(
        recorded.seq, msgspec.structs.replace(event, metadata={**event.metadata, **trace})
    )


def as_status(opening: Opening) -> list[Recorded]:
    """Return what a stream opens with as the status alone, for readers who come back."""
    task = opening.reply.reading.task
    event = StatusUpdate(task.id, task.context_id, task.status)
    return [Recorded(opening.reply.reading.seq, event)]
