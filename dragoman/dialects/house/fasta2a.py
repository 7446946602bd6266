"""fasta2a: the objects of 1.0 under the names of 0.x. Methods, roles and states are those of 0.3;
parts have no `kind`, and answers to a send and events are wrapped as in 1.0.

Only what its client asks for: messages, and the task read again. Whatever else is asked for in this
way is answered as 0.3.
"""

from typing import cast

import msgspec

from dragoman.dialects import push, reading, v0_3_shapes, v1_0_shapes
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message, Part
from dragoman.model.record import Recorded, encode
from dragoman.model.task import Task, TaskStatus
from dragoman.service import Reply, TaskReply

_SENDS = ("message/send", "message/stream")
_CONTENTS = {"text", "raw", "url", "data"}
_RECEIVER = "taskPushNotificationConfig"
# Stands for parts that are read on their own.
_NO_PARTS = [{"kind": "text", "text": ""}]


class Fasta2a(V0):
    """What fasta2a's client speaks."""

    # Readers of its events share their bytes with those of no other dialect.
    shape = "fasta2a"
    event_stream_methods = ("message/stream",)

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for: that of 0.3 but for the parts of a message
        and the receiver of its posts, which are as in 1.0."""
        if method not in _SENDS:
            return super().decode_request(method, params)
        raw_message = reading.mapping(
            reading.required(reading.mapping(params, ""), "message", ""), "message"
        )
        given = reading.required(raw_message, "parts", "message")
        parts = reading.parts(given, "message.parts", v1_0_shapes.decode_part)
        request: Object = {**params, "message": {**raw_message, "parts": _NO_PARTS}}
        configuration = reading.members(params.get("configuration"))
        flat = configuration.get(_RECEIVER)
        if flat is not None:
            # Who says where to post what happens does not wait for it, unless it says so.
            request["configuration"] = {"blocking": False, **configuration}
        operation = super().decode_request(method, request)
        assert isinstance(operation, ops.SendMessage), "both methods are sends"
        message = msgspec.structs.replace(operation.message, parts=parts)
        operation = msgspec.structs.replace(operation, message=message)
        if flat is None:
            return operation
        config = push.decode_flat(flat, f"configuration.{_RECEIVER}")
        # Whose it is, the message decides.
        config = msgspec.structs.replace(config, task_id=TaskId(""))
        return msgspec.structs.replace(operation, push=config)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply; only answers to a send are wrapped."""
        match reply:
            case TaskReply() if isinstance(operation, ops.SendMessage):
                return self.encode_opening(reply)
            case TaskReply():
                return encode(_encode_with_both_parts(trimmed(reply).reading.task))
            case Message():
                return encode({"message": _message(reply)})
            case _:
                return super().encode_reply(operation, reply)

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the Task that opens a stream."""
        return encode({"task": _task(trimmed(reply).reading.task)})

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event, made once for all its readers."""
        shape = recorded.shapes.get(self.shape)
        if shape is None:
            shape = recorded.shapes[self.shape] = encode(_event(recorded.event))
        return shape


FASTA2A = Fasta2a()


def is_spoken(method: str, params: Value) -> bool:
    """Tell whether a message is of this house: nothing in it says of which kind it is, and its
    parts are what parts of 1.0 are."""
    message = reading.members(reading.members(params).get("message"))
    parts = message.get("parts")
    if method not in _SENDS or "kind" in message or type(parts) is not list:
        return False
    found = [reading.members(part) for part in cast("list[Value]", parts)]
    return bool(found) and all(_is_bare(part) for part in found)


def _is_bare(part: Object) -> bool:
    return not {"kind", "type", "file"} & part.keys() and len(_CONTENTS & part.keys()) == 1


def _event(event: Event) -> Object:
    match event:
        case StatusUpdate():
            value = _plain(event)
            value["status"] = _status(event.status)
            return {"statusUpdate": value}
        case ArtifactUpdate():
            return {"artifactUpdate": _plain(event)}
        case Task():
            return {"task": _task(event)}
        case Message():
            return {"message": _message(event)}
        case _:
            raise ValueError(f"{type(event).__name__} is not part of any stream")


def _task(task: Task) -> Object:
    value = _plain(task)
    value["status"] = _status(task.status)
    if task.history:
        value["history"] = [_message(message) for message in task.history]
    return value


def _status(status: TaskStatus) -> Object:
    value = _plain(status)
    value["state"] = v0_3_shapes.STATE_NAMES[status.state]
    if status.message is not None:
        value["message"] = _message(status.message)
    return value


def _message(message: Message) -> Object:
    return _plain(message) | {"role": v0_3_shapes.ROLE_NAMES[message.role]}


def _plain(value: msgspec.Struct) -> Object:
    return msgspec.to_builtins(v1_0_shapes.without_extra(value))


def _encode_with_both_parts(task: Task) -> Object:
    """Return a task as 0.3 has it, whose parts also have the members of 1.0: a request that reads a
    task shows only by its envelope that it may be of this house."""
    value = v0_3_shapes.encode_task(task)
    for shown, artifact in zip(value.get("artifacts", []), task.artifacts, strict=True):
        _add_parts(shown, artifact.parts)
    for shown, message in zip(value.get("history", []), task.history, strict=True):
        _add_parts(shown, message.parts)
    if task.status.message is not None:
        _add_parts(value["status"]["message"], task.status.message.parts)
    return value


def _add_parts(shown: Object, parts: list[Part]) -> None:
    shown["parts"] = [
        _plain(part) | value for value, part in zip(shown["parts"], parts, strict=True)
    ]
