"""The ordinary requests of 1.0, read by type: a text for an agent, a task by its id.

Most requests have one of these shapes, and a typed reader checks one in a single step. Whatever
does not fit exactly is left to the tolerant readers, which decide and word the error; what does fit
is read by both to the same operation.
"""

from typing import Annotated, Any, Literal

import msgspec

from dragoman.dialects import reading
from dragoman.model import operations as ops
from dragoman.model.identity import MAX_ID_LENGTH, ContextId, MessageId, TaskId
from dragoman.model.message import Message, Metadata, Part, Role

_Id = Annotated[str, msgspec.Meta(pattern=rf"^[\x21-\x7e]{{1,{MAX_ID_LENGTH}}}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=reading.MAX_INT32)]
_ROLES = {"ROLE_USER": Role.USER, "ROLE_AGENT": Role.AGENT}


class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    message_id: _Id
    role: Literal["ROLE_USER", "ROLE_AGENT"]
    parts: Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=reading.MAX_PARTS)]
    context_id: _Id | None = None
    task_id: _Id | None = None
    metadata: Metadata | None = None


class _Configuration(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    history_length: _Count | None = None
    return_immediately: bool | None = None


_NOTHING_CONFIGURED = _Configuration()


class _Send(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    message: _Message
    configuration: _Configuration | None = None
    metadata: Metadata | None = None


class _Get(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    id: _Id
    history_length: _Count | None = None


def plain_send(params: Any, operation: type[ops.SendMessage]) -> ops.SendMessage | None:
    """Return a send of texts; None: it is not one."""
    try:
        given = msgspec.convert(params, _Send)
    except msgspec.ValidationError:
        return None
    said = given.message
    configuration = given.configuration or _NOTHING_CONFIGURED
    metadata = said.metadata
    message = Message(
        MessageId(said.message_id),
        _ROLES[said.role],
        [Part(part.text) for part in said.parts],
        ContextId(said.context_id or ""),
        TaskId(said.task_id or ""),
        reading.metadata(metadata, "message.metadata") if metadata else {},
    )
    return operation(
        message=message,
        history=configuration.history_length,
        wait=not configuration.return_immediately,
        metadata=reading.metadata(given.metadata, "metadata") if given.metadata else {},
    )


def plain_get(params: Any) -> ops.GetTask | None:
    """Return a request for a task; None: it is not one."""
    try:
        given = msgspec.convert(params, _Get)
    except msgspec.ValidationError:
        return None
    return ops.GetTask(task_id=TaskId(given.id), history=given.history_length)
