"""What a caller hands over, as the parts of a message.

What cannot be sent is refused here, where the place of the value in the caller's own data is still
known.
"""

import math
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

# All but the parts, and of those all but bytes.
_MEMBERS = (
    "message_id",
    "context_id",
    "task_id",
    "metadata",
    "extensions",
    "reference_task_ids",
    "extra",
)
_PART_MEMBERS = ("text", "url", "data", "metadata", "filename", "media_type", "extra")


def message_of(
    content: Content,
    *,
    task_id: str = "",
    context_id: str = "",
    message_id: str = "",
    metadata: Metadata | None = None,
) -> Message:
    """Return a message of the caller's; its id is new unless one is given.

    Raises `ConfigError` for what cannot be sent.
    """
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
    message = msgspec.structs.replace(given, **changes) if changes else given
    for name in _MEMBERS:
        check_json(getattr(message, name), f"{name} of the message")
    for number, part in enumerate(message.parts, 1):
        for name in _PART_MEMBERS:
            check_json(getattr(part, name), f"{name} of part {number}")
    return message


def check_json(value: Any, where: str) -> None:
    """Raise a `ConfigError` that names the place of what JSON cannot hold."""
    try:
        flaw = _flaw(value)
    except RecursionError:
        flaw = ": it is nested too deep, or contains itself"
    if flaw:
        raise ConfigError(f"{where}{flaw}")


def _flaw(value: Any) -> str:
    """Return what JSON cannot hold of a value, after the way that leads there; empty: nothing."""
    match value:
        case None | bool() | int() | msgspec.UnsetType():
            return ""
        case str():
            is_whole = value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
            return "" if is_whole else ": it has half of a surrogate pair, which is no text"
        case float():
            is_number = math.isfinite(value)
            return "" if is_number else f": it is {value}, and JSON has no NaN and no infinity"
        case dict():
            for name, item in cast("dict[Any, Any]", value).items():
                if not isinstance(name, str | int | float):
                    return f", at {name!r}: the names of a JSON object are texts"
                if flaw := _flaw(name) or _flaw(item):
                    return f", at {name!r}{flaw}"
            return ""
        case list() | tuple():
            for index, item in enumerate(cast("Sequence[Any]", value)):
                if flaw := _flaw(item):
                    return f", at {index}{flaw}"
            return ""
        case _:
            try:
                msgspec.json.encode(value)
            except (TypeError, ValueError):
                return f": JSON has no {type(value).__name__}"
            return ""


def file_part(path: Path) -> Part:
    """Return a file as a part; of its path only the last name leaves the house."""
    try:
        raw = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Part(raw=raw, filename=path.name, media_type=guessed)


def _parts(content: Content) -> list[Part]:
    if isinstance(content, list | tuple):
        return [part for item in cast("Sequence[Content]", content) for part in _parts(item)]
    if isinstance(content, Path):
        return [file_part(content)]
    if isinstance(content, dict):
        # It knows the place of what is wrong.
        check_json(content, "the content")
    try:
        return parts_of(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the content cannot be sent: {error}") from None
