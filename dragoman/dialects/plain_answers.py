"""The ordinary answers of 1.0, read by type: texts of an agent, in a task, a message or an event.

A typed reader checks such an answer in one step, and reads it in a second one. Whatever does not
fit exactly is left to the tolerant readers, which decide and word the error; what does fit is read
by both to the same event.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, cast

import msgspec

from dragoman.dialects import reading
from dragoman.dialects.reading import Value
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import MAX_ID_LENGTH
from dragoman.model.message import Message, Metadata, Role
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState, TaskStatus

_VISIBLE = r"[\x21-\x7e]"
_Id = Annotated[str, msgspec.Meta(pattern=rf"^{_VISIBLE}{{1,{MAX_ID_LENGTH}}}\Z")]
_OptionalId = Annotated[str, msgspec.Meta(pattern=rf"^{_VISIBLE}{{0,{MAX_ID_LENGTH}}}\Z")]
# A time in UTC with nine digits of a second, which is as exact as ProtoJSON is.
_LONGEST_TIME = len("2026-01-01T00:00:00.123456789Z")


# What an answer is checked by. The types of the model themselves would ignore unknown members.


class _Shape(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    pass


class _Text(_Shape):
    text: str
    media_type: str = ""


class _Message(_Shape):
    message_id: _Id
    role: Role
    parts: Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=reading.MAX_PARTS)]
    context_id: _OptionalId = ""
    task_id: _OptionalId = ""
    metadata: Metadata = {}
    extensions: list[str] = []
    reference_task_ids: list[_Id] = []


class _Artifact(_Shape):
    artifact_id: str
    parts: list[_Text]
    name: str = ""
    description: str = ""
    metadata: Metadata = {}
    extensions: list[str] = []


class _Status(_Shape):
    state: TaskState
    message: _Message | msgspec.UnsetType = msgspec.UNSET
    timestamp: datetime | msgspec.UnsetType = msgspec.UNSET


class _Task(_Shape):
    id: _Id
    context_id: _OptionalId
    status: _Status
    artifacts: list[_Artifact] = []
    history: list[_Message] = []
    metadata: Metadata = {}


class _StatusUpdate(_Shape):
    task_id: _Id
    context_id: _OptionalId
    status: _Status
    metadata: Metadata = {}


class _ArtifactUpdate(_Shape):
    task_id: _Id
    context_id: _OptionalId
    artifact: _Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata = {}


# What types do not say.


def _has_room(holder: Task | Message | Artifact | StatusUpdate | ArtifactUpdate) -> bool:
    metadata = holder.metadata
    return not metadata or len(encode(metadata)) <= reading.MAX_METADATA_BYTES


def _is_plain_status(status: TaskStatus) -> bool:
    time, message = status.timestamp, status.message
    is_utc = not time or (time[-1] == "Z" and len(time) <= _LONGEST_TIME)
    return is_utc and (message is None or _has_room(message))


def _is_plain_task(task: Task) -> bool:
    for artifact in task.artifacts:
        if not _has_room(artifact):
            return False
    for message in task.history:
        if not _has_room(message):
            return False
    return _is_plain_status(task.status) and _has_room(task)


def _is_plain_status_update(event: StatusUpdate) -> bool:
    return _is_plain_status(event.status) and _has_room(event)


def _is_plain_artifact_update(event: ArtifactUpdate) -> bool:
    return _has_room(event.artifact) and _has_room(event)


# By the member of the answer: its shape, its type in the model, and the rest of the check.
_KINDS: dict[str, tuple[type[_Shape], type[Event], Callable[[Any], bool]]] = {
    "task": (_Task, Task, _is_plain_task),
    "message": (_Message, Message, _has_room),
    "statusUpdate": (_StatusUpdate, StatusUpdate, _is_plain_status_update),
    "artifactUpdate": (_ArtifactUpdate, ArtifactUpdate, _is_plain_artifact_update),
}


def plain_event(value: Value) -> Event | None:
    """Return an answer or an event of a stream that holds texts; None: it is not one."""
    if type(value) is not dict:
        return None
    answer = cast("dict[str, Any]", value)
    if len(answer) != 1:
        return None
    ((name, inner),) = answer.items()
    kind = _KINDS.get(name)
    if kind is None:
        return None
    shape, model, is_plain = kind
    try:
        msgspec.convert(inner, shape)
        event = msgspec.convert(inner, model)
    except msgspec.ValidationError:
        return None
    return event if is_plain(event) else None
