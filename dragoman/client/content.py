"""What a caller hands over, as the parts of a message."""

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.content import parts_of
from dragoman.model.identity import ContextId, MessageId, TaskId, new_id
from dragoman.model.message import Message, Metadata, Part, Role

# A text, a file, bytes, a value for a data part, or several of these in order.
Content = str | Path | bytes | Part | Message | Mapping[str, Any] | Sequence[Any]


def message_of(
    content: Content,
    *,
    task_id: str = "",
    context_id: str = "",
    message_id: str = "",
    metadata: Metadata | None = None,
) -> Message:
    """Return a message of the caller's; its id is new unless one is given."""
    if isinstance(content, Message):
        given = content
    else:
        given = Message(MessageId(new_id()), Role.USER, _parts(content))
    changes: dict[str, Any] = {}
    if task_id:
        changes["task_id"] = TaskId(task_id)
    if context_id:
        changes["context_id"] = ContextId(context_id)
    if message_id:
        changes["message_id"] = MessageId(message_id)
    if metadata:
        changes["metadata"] = {**given.metadata, **metadata}
    return msgspec.structs.replace(given, **changes) if changes else given


def file_part(path: Path, media_type: str = "") -> Part:
    """Return a file as a part; of its path only the last name leaves the house."""
    try:
        raw = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    guessed = media_type or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Part(raw=raw, filename=path.name, media_type=guessed)


def _parts(content: Content) -> list[Part]:
    if isinstance(content, list | tuple):
        return [part for item in cast("Sequence[Content]", content) for part in _parts(item)]
    if isinstance(content, Path):
        return [file_part(content)]
    return parts_of(content)
