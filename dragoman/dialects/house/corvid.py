"""corvid agents: two plain requests, a text and a task that is read again until it ended.

Only what a client needs. Their cards promise streams; there are none.
"""

from urllib.parse import quote

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value
from dragoman.dialects.v0_3 import V0, decode_state
from dragoman.errors import UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply, TaskReply


class Corvid(V0):
    """What corvid agents speak."""

    version = "0.2"

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
                skill = message.metadata.get("skillId") or operation.metadata.get("skillId")
                if isinstance(skill, str):
                    params["skill"] = skill
                return "POST", "/a2a/tasks/send", {"method": "tasks/send", "params": params}
            case ops.GetTask():
                return "GET", f"/a2a/tasks/{quote(operation.task_id, safe='')}", None
            case _:
                raise UnsupportedOperation("These agents have no such operation")

    def decode_reply(self, operation: ops.Operation, value: Value) -> Reply:
        """Return the task."""
        return TaskReply(TaskReading(0, decode_task(value)))


CORVID = Corvid()


def decode_task(value: Value) -> Task:
    """Return a task whose state is at the top and whose messages are the conversation."""
    fields = reading.split(value, {}, "result")[1]
    task_id = TaskId(reading.identifier(reading.required(fields, "id", "result"), "result.id"))
    state = decode_state(reading.required(fields, "state", "result"), "result.state")
    said = reading.array(fields.get("messages") or [], "result.messages", _decode_message)
    last = said.pop() if state is not TaskState.SUBMITTED and said and _is_agents(said) else None
    session = fields.get("sessionId")
    return Task(
        id=task_id,
        context_id=ContextId(session if isinstance(session, str) else ""),
        status=TaskStatus(state, last),
        history=said,
    )


def _is_agents(said: list[Message]) -> bool:
    return said[-1].role is Role.AGENT


def _decode_message(value: Value, path: str) -> Message:
    fields = reading.split(value, {}, path)[1]
    role = Role.USER if fields.get("role") == "user" else Role.AGENT
    parts = reading.array(reading.required(fields, "parts", path), f"{path}.parts", _decode_part)
    # They have no ids; a place in the conversation tells them apart, reading after reading.
    return Message(MessageId(f"corvid:{path.removeprefix('result.')}"), role, parts)


def _decode_part(value: Value, path: str) -> Part:
    fields = reading.split(value, {}, path)[1]
    return Part(text=reading.text(reading.required(fields, "text", path), f"{path}.text"))
