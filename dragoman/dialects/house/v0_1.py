"""A2A 0.1, the ancestor of the house dialects: callers name their tasks, `type` tells parts apart,
chunks are numbered and no stream begins with a task.

Only sending and reading: what else there was is called as in 0.2, and answered as that.
"""

from typing import cast

from dragoman.dialects import reading, v0_3_shapes
from dragoman.dialects.dialect import trimmed
from dragoman.dialects.house.nexus_shapes import answered, message_id_of
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0
from dragoman.errors import MethodNotFound
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.message import Message
from dragoman.model.record import Recorded, encode
from dragoman.model.task import Task, TaskStatus
from dragoman.service import Reply, TaskReply

METHODS = {"tasks/send": "message/send", "tasks/sendSubscribe": "message/stream"}
# What ids of messages begin with, none of which had one: whose first message has such an id was
# begun by a caller of this version.
ORIGIN = "v0.1:"


class V0_1(V0):
    """The 0.1 dialect, for one request: it numbers the artifacts of a stream as they come."""

    version = "0.1"
    names_tasks = True

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        if method not in METHODS:
            raise MethodNotFound(method=method)
        fields = reading.mapping(params, "")
        raw_message = reading.mapping(reading.required(fields, "message", ""), "message")
        task_id = reading.optional_identifier(fields.get("id") or "", "id")
        message = {
            "messageId": message_id_of(ORIGIN, task_id, raw_message.get("parts")),
            **raw_message,
            "taskId": task_id,
            "contextId": fields.get("sessionId"),
        }
        configuration: Object = {"historyLength": fields.get("historyLength") or 0}
        if fields.get("pushNotification") is not None:
            configuration["pushNotificationConfig"] = fields["pushNotification"]
        request: Object = {"message": message, "configuration": configuration}
        if fields.get("metadata") is not None:
            request["metadata"] = fields["metadata"]
        return super().decode_request(METHODS[method], request)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply, which is a task in any case."""
        match reply:
            case TaskReply():
                return encode(self._task(trimmed(reply).reading.task))
            case Message():
                return encode(self._task(answered(reply, None)))
            case _:
                return super().encode_reply(operation, reply)

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of the status that opens a stream."""
        task = reply.reading.task
        for artifact in task.artifacts:
            self._number(artifact)
        return encode(_status_event(StatusUpdate(task.id, task.context_id, task.status)))

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the JSON of one event."""
        match recorded.event:
            case StatusUpdate() as event:
                return encode(_status_event(event))
            case ArtifactUpdate() as event:
                chunk = self._artifact(event.artifact)
                chunk |= {"append": event.append, "lastChunk": event.last_chunk}
                return encode({"id": event.task_id, "artifact": chunk})
            case Message() as event:
                return encode(self._task(answered(event, None)))
            case _:
                return super().encode_event(recorded)

    def _task(self, task: Task) -> Object:
        value: Object = {"id": task.id, "sessionId": task.context_id}
        value["status"] = _status(task.status)
        if task.artifacts:
            value["artifacts"] = [self._artifact(artifact) for artifact in task.artifacts]
        if task.history:
            value["history"] = [_message(message) for message in task.history]
        if task.metadata:
            value["metadata"] = task.metadata
        return value

    def _artifact(self, artifact: Artifact) -> Object:
        value = v0_3_shapes.encode_artifact(artifact)
        members = {
            name: value[name] for name in ("name", "description", "metadata") if name in value
        }
        parts = [_part(part) for part in value["parts"]]
        return {**members, "parts": parts, "index": self._number(artifact)}

    def _number(self, artifact: Artifact) -> int:
        return self._numbers.setdefault(artifact.artifact_id, len(self._numbers))


def is_spoken(method: str, params: Value) -> bool:
    """Tell whether a request is of this version: by its method, and by parts with a `type`."""
    if method == "tasks/sendSubscribe":
        return True
    parts = reading.members(reading.members(params).get("message")).get("parts")
    found = cast("list[Value]", parts) if type(parts) is list else []
    return method in METHODS and any("type" in reading.members(part) for part in found)


def _status_event(event: StatusUpdate) -> Object:
    is_final = v0_3_shapes.encode_status_update(event)["final"]
    value: Object = {"id": event.task_id, "status": _status(event.status), "final": is_final}
    return value | {"metadata": event.metadata} if event.metadata else value


def _status(status: TaskStatus) -> Object:
    value = v0_3_shapes.encode_status(status)
    if status.message is not None:
        value["message"] = _message(status.message)
    return value


def _message(message: Message) -> Object:
    value = v0_3_shapes.encode_message(message)
    shown: Object = {"role": value["role"], "parts": [_part(part) for part in value["parts"]]}
    return shown | {"metadata": message.metadata} if message.metadata else shown


def _part(part: Object) -> Object:
    return {"type": part["kind"], **{name: part[name] for name in part if name != "kind"}}
