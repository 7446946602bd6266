"""corvid: two plain requests, a text and a task that is read again until it ended.

Both directions. The cards of their agents promise streams; there are none. A task of theirs has
four states and says everything in texts, so what a task is besides is told in words.
"""

from typing import cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from dragoman.dialects import house_paths, reading
from dragoman.dialects.house.nexus_shapes import answered
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0
from dragoman.dialects.v0_3_shapes import ROLE_NAMES, decode_state
from dragoman.errors import InvalidParams, MethodNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.clock import stamp
from dragoman.model.identity import ContextId, MessageId, TaskId, made_at, new_id
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.record import TaskReading, encode
from dragoman.model.task import OVERDUE, TRANSITIONS_URI, Task, TaskState, TaskStatus
from dragoman.service import Reply, TaskReply

SEND_PATH = house_paths.CORVID_SEND
TASK_PATH = house_paths.CORVID_TASK
# In the metadata of a request: how long its task may take, how often it was passed on, and by whom.
TIMEOUT, DEPTH, SOURCE = "timeoutMs", "depth", "sourceAgent"
# Milliseconds a task has, unless its sender says otherwise.
DEFAULT_TIMEOUT = 300_000
_TIMEOUTS = range(1_000, 600_001)
_DEPTHS = range(1, 11)
_STATES = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "failed",
    TaskState.REJECTED: "failed",
}
# What the agent is made to say where its state has no word here and it said nothing itself.
_ENDINGS = {
    TaskState.CANCELED: "Task canceled",
    TaskState.REJECTED: "Task rejected",
    TaskState.FAILED: "Task failed",
}
_TIMED_OUT = Message(MessageId("corvid:overdue"), Role.AGENT, [Part(text="Task timed out")])


class Corvid(V0):
    """What corvid agents speak."""

    version = "0.2"

    # Served

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        match method:
            case "tasks/send":
                return _decode_send(params)
            case "tasks/get":
                task_id = reading.required(reading.split(params, {}, "")[1], "id", "")
                return ops.GetTask(task_id=TaskId(reading.identifier(task_id, "id")))
            case _:
                raise MethodNotFound(method=method)

    def encode_reply(self, operation: ops.Operation, reply: Reply) -> bytes:
        """Return the JSON of a reply, which is a task in any case."""
        match reply:
            case TaskReply():
                is_sent = isinstance(operation, ops.SendMessage)
                task = reply.reading.task
                return encode(encode_task(_as_begun(task) if is_sent else task))
            case Message():
                message = operation.message if isinstance(operation, ops.SendMessage) else None
                return encode(encode_task(answered(reply, message)))
            case _:
                raise UnsupportedOperation

    # Called

    def request(self, operation: ops.Operation) -> tuple[str, str, Object | None]:
        """Return the verb, the path and the body that ask for an operation."""
        match operation:
            case ops.StreamMessage():
                raise UnsupportedOperation("These agents do not stream")
            case ops.SendMessage():
                message = operation.message
                if message.task_id:
                    raise UnsupportedOperation("A task of such an agent takes no further message")
                params: Object = {"message": message.text}
                metadata = operation.metadata
                skill = (
                    message.metadata.get("skillId")
                    or metadata.get("skillId")
                    or metadata.get("skill")
                )
                if isinstance(skill, str):
                    params["skill"] = skill
                for name, numbers in ((TIMEOUT, _TIMEOUTS), (DEPTH, _DEPTHS)):
                    if type(metadata.get(name)) is int and metadata[name] in numbers:
                        params[name] = metadata[name]
                return "POST", SEND_PATH, {"method": "tasks/send", "params": params}
            case ops.GetTask():
                return "GET", TASK_PATH + quote(operation.task_id, safe=""), None
            case _:
                raise UnsupportedOperation("These agents have no such operation")

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the task."""
        return TaskReply(TaskReading(0, decode_task(value)))


CORVID = Corvid()


def _decode_send(value: Value) -> ops.SendMessage:
    """Return the message of a request, whose members are at the top or under `params`."""
    if type(value) is not dict:
        raise InvalidParams("The request must be a JSON object")
    fields = cast(Object, value)
    if fields.get("method", "tasks/send") != "tasks/send":
        raise InvalidParams("must be tasks/send", field="method")
    if type(fields.get("params")) is dict:
        fields = cast(Object, fields["params"])
    text = fields.get("message")
    if type(text) is not str or not text.strip():
        raise InvalidParams("must be a text that is not blank", field="message")
    metadata: Metadata = {TIMEOUT: DEFAULT_TIMEOUT}
    for name in ("skill", SOURCE):
        if fields.get(name) is not None:
            metadata[name] = reading.text(fields[name], name)
    for name, numbers in ((TIMEOUT, _TIMEOUTS), (DEPTH, _DEPTHS)):
        if fields.get(name) is not None:
            metadata[name] = _number(fields[name], name, numbers)
    message = Message(MessageId(f"corvid:{new_id()}"), Role.USER, [Part(text=text)])
    return ops.SendMessage(message=message, wait=False, metadata=metadata)


def _number(value: Value, name: str, numbers: range) -> int:
    number = int(value) if type(value) is float and value.is_integer() else value
    if type(number) is not int or number not in numbers:
        raise InvalidParams(f"must be from {numbers[0]} to {numbers[-1]}", field=name)
    return number


def encode_task(task: Task) -> Object:
    """Return a task whose state is at the top and whose messages are the conversation."""
    status = task.status
    at = made_at(task.id)
    value: Object = {
        "id": task.id,
        "state": _STATES.get(status.state, "working"),
        "messages": [_encode_message(message) for message in _conversation(task)],
        "sessionId": task.context_id or None,
        "createdAt": stamp(at * 1000) if at is not None else status.timestamp,
        "updatedAt": status.timestamp,
    }
    if TRANSITIONS_URI in task.metadata:
        value["metadata"] = {TRANSITIONS_URI: task.metadata[TRANSITIONS_URI]}
    return value


def _as_begun(task: Task) -> Task:
    """Return a task as it was when its message came, however far it has come meanwhile: its sender
    reads the rest, and nothing of it in the answer to what it sent."""
    at = made_at(task.id)
    timestamp = stamp(at * 1000) if at is not None else task.status.timestamp
    status = TaskStatus(TaskState.WORKING, timestamp=timestamp)
    return Task(task.id, task.context_id, status, history=task.history[:1])


def _conversation(task: Task) -> list[Message]:
    """Return all that was said; of a task that ended, the agent's last word is what came of it:
    that is where these clients look for the answer."""
    messages, status = [*task.history], task.status
    if status.message is not None:
        is_overdue = status.state is TaskState.FAILED and status.message.text == OVERDUE
        return [*messages, _TIMED_OUT if is_overdue else status.message]
    if not status.state.is_terminal:
        return messages
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    if not parts and status.state in _ENDINGS:
        parts = [Part(text=_ENDINGS[status.state])]
    answer = Message(MessageId(f"{task.id}:answer"), Role.AGENT, parts)
    return [*messages, answer] if parts else messages


def _encode_message(message: Message) -> Object:
    # One part: some of their clients read no further.
    text = "\n".join(_words(part) for part in message.parts)
    return {"role": ROLE_NAMES[message.role], "parts": [{"type": "text", "text": text}]}


def _words(part: Part) -> str:
    """Return a part as text."""
    if isinstance(part.text, str):
        return part.text
    if part.data is not UNSET:
        return msgspec.json.encode(part.data).decode()
    if isinstance(part.url, str):
        return part.url
    return f"[{part.filename or part.type}]"


def decode_task(value: Value) -> Task:
    """Return a task whose state is at the top and whose messages are the conversation."""
    fields = reading.split(value, {}, "result")[1]
    task_id = TaskId(reading.identifier(reading.required(fields, "id", "result"), "result.id"))
    state = decode_state(reading.required(fields, "state", "result"), "result.state")
    messages = reading.array(fields.get("messages") or [], "result.messages", _decode_message)
    last = (
        messages.pop()
        if state is not TaskState.SUBMITTED and messages and _is_agents(messages)
        else None
    )
    session = fields.get("sessionId")
    return Task(
        id=task_id,
        context_id=ContextId(session if isinstance(session, str) else ""),
        status=TaskStatus(state, last),
        history=messages,
    )


def _is_agents(messages: list[Message]) -> bool:
    return messages[-1].role is Role.AGENT


def _decode_message(value: Value, path: str) -> Message:
    fields = reading.split(value, {}, path)[1]
    role = Role.USER if fields.get("role") == "user" else Role.AGENT
    parts = reading.array(reading.required(fields, "parts", path), f"{path}.parts", _decode_part)
    # They have no ids; a place in the conversation tells them apart, reading after reading.
    return Message(MessageId(f"corvid:{path.removeprefix('result.')}"), role, parts)


def _decode_part(value: Value, path: str) -> Part:
    fields = reading.split(value, {}, path)[1]
    return Part(text=reading.text(reading.required(fields, "text", path), f"{path}.text"))
