"""selectools: 0.2 with an older name for sending, one more place for the context, and agents that
read texts alone."""

import msgspec

from dragoman.dialects import reading
from dragoman.dialects.house import errors
from dragoman.dialects.reading import Object
from dragoman.dialects.v0_3 import V0
from dragoman.errors import A2AError, InvalidParams
from dragoman.model import operations as ops
from dragoman.model.identity import ContextId
from dragoman.model.record import TaskReading
from dragoman.model.task import Task
from dragoman.service import TaskReply

# Where its callers call.
PATHS = ("/a2a", "/a2a/")
ALIAS = "tasks/send"
_RESULT = "response"


class Selectools(V0):
    """What selectools servers and clients speak."""

    version = "0.2"

    def __init__(self, *, needs_text: bool = False) -> None:
        """`needs_text` says whether a message without a text is refused."""
        self._needs_text = needs_text

    def decode_request(self, method: str, params: Object) -> ops.Operation:
        """Return the operation that a request asks for."""
        operation = super().decode_request("message/send" if method == ALIAS else method, params)
        if not isinstance(operation, ops.SendMessage):
            return operation
        message = operation.message
        if self._needs_text and not any(isinstance(part.text, str) for part in message.parts):
            raise InvalidParams("must have a text part", field="message.parts")
        if message.context_id or params.get("contextId") is None:
            return operation
        context = ContextId(reading.optional_identifier(params["contextId"], "contextId"))
        message = msgspec.structs.replace(message, context_id=context)
        return msgspec.structs.replace(operation, message=message)

    def encode_opening(self, reply: TaskReply) -> bytes:
        """Return the JSON of a task, whose result has a name."""
        found = reply.reading
        return super().encode_opening(
            TaskReply(TaskReading(found.seq, _with_result_name(found.task)), reply.history)
        )

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of an answer."""
        return errors.selectools(error)


SELECTOOLS, SELECTOOLS_TEXT = Selectools(), Selectools(needs_text=True)


def _with_result_name(task: Task) -> Task:
    """Return a task whose one result is called as these clients know it."""
    if len(task.artifacts) != 1:
        return task
    result = msgspec.structs.replace(task.artifacts[0], name=_RESULT)
    return msgspec.structs.replace(task, artifacts=[result])
