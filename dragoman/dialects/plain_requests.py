"""The ordinary requests of 1.0 and 0.3, read by type: a text for an agent, a task by its id.

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

_is_id = msgspec.Meta(pattern=rf"^[\x21-\x7e]{{1,{MAX_ID_LENGTH}}}\Z")
_Id = Annotated[str, _is_id]
_MessageId = Annotated[MessageId, _is_id]
_TaskId = Annotated[TaskId, _is_id]
_Count = Annotated[int, msgspec.Meta(ge=0, le=reading.MAX_INT32)]
_MediaType = Annotated[str, msgspec.Meta(max_length=reading.MAX_MEDIA_TYPE_LENGTH)]
_MediaTypes = Annotated[list[_MediaType], msgspec.Meta(max_length=reading.MAX_MEDIA_TYPES)]
_few_parts = msgspec.Meta(min_length=1, max_length=reading.MAX_PARTS)
_ROLES = {
    "ROLE_USER": Role.USER,
    "ROLE_AGENT": Role.AGENT,
    "user": Role.USER,
    "agent": Role.AGENT,
}


class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    message_id: _MessageId
    role: Literal["ROLE_USER", "ROLE_AGENT"]
    parts: Annotated[list[_Text], _few_parts]
    context_id: _Id | None = None
    task_id: _Id | None = None
    metadata: Metadata | None = None


class _Configuration(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    accepted_output_modes: _MediaTypes | None = None
    history_length: _Count | None = None
    return_immediately: bool | None = None


class _Send(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    message: _Message
    configuration: _Configuration | None = None
    metadata: Metadata | None = None


class _Get(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    id: _TaskId
    history_length: _Count | None = None


class _Text03(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    kind: Literal["text"]
    text: str


class _Message03(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    message_id: _MessageId
    role: Literal["user", "agent"]
    parts: Annotated[list[_Text03], _few_parts]
    kind: Literal["message"] | None = None
    context_id: _Id | None = None
    task_id: _Id | None = None
    metadata: Metadata | None = None


class _Configuration03(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    accepted_output_modes: _MediaTypes | None = None
    history_length: _Count | None = None
    blocking: bool | None = None


class _Send03(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    message: _Message03
    configuration: _Configuration03 | None = None
    metadata: Metadata | None = None


def plain_send(params: Any, operation: type[ops.SendMessage]) -> ops.SendMessage | None:
    """Return a send of texts in 1.0; None: it is not one."""
    try:
        given = msgspec.convert(params, _Send)
    except msgspec.ValidationError:
        return None
    configuration = given.configuration
    message, metadata = _message(given.message), _metadata(given.metadata, "metadata")
    if configuration is None:
        return operation(message=message, metadata=metadata)
    return operation(
        message=message,
        accepted_output_modes=configuration.accepted_output_modes or [],
        history=configuration.history_length,
        wait=not configuration.return_immediately,
        metadata=metadata,
    )


def plain_send_0_3(params: Any, operation: type[ops.SendMessage]) -> ops.SendMessage | None:
    """Return a send of texts in 0.3; None: it is not one."""
    try:
        given = msgspec.convert(params, _Send03)
    except msgspec.ValidationError:
        return None
    configuration = given.configuration
    message, metadata = _message(given.message), _metadata(given.metadata, "metadata")
    if configuration is None:
        return operation(message=message, metadata=metadata)
    return operation(
        message=message,
        accepted_output_modes=configuration.accepted_output_modes or [],
        history=configuration.history_length,
        wait=configuration.blocking is not False,
        metadata=metadata,
    )


def plain_get(params: Any) -> ops.GetTask | None:
    """Return a request for a task, in 1.0 or 0.3; None: it is not one."""
    try:
        given = msgspec.convert(params, _Get)
    except msgspec.ValidationError:
        return None
    return ops.GetTask(task_id=given.id, history=given.history_length)


def _message(said: _Message | _Message03) -> Message:
    return Message(
        said.message_id,
        _ROLES[said.role],
        [Part(part.text) for part in said.parts],
        ContextId(said.context_id or ""),
        TaskId(said.task_id or ""),
        _metadata(said.metadata, "message.metadata"),
    )


def _metadata(value: Metadata | None, path: str) -> Metadata:
    """Return metadata, none where none is given; raises `InvalidParams` if it is too large."""
    return reading.metadata(value, path) if value else {}
