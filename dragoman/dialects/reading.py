"""Read untrusted JSON values into plain ones, naming the field when something is wrong.

Shared by all versions: ProtoJSON's two spellings of a name, numbers that may be strings, base64 in
either alphabet. Whatever is refused raises `InvalidParams` with the path of the field.
"""

import base64
import binascii
import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from dragoman.errors import InvalidParams
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import ContextId, TaskId, is_id
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.patterns import late_pattern
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskStatus

# Untrusted JSON: every function here exists to turn it into something typed.
Value = Any
Object = dict[str, Value]
T = TypeVar("T")

MAX_PARTS = 1_000
MAX_METADATA_BYTES = 64 * 1024
MAX_MEDIA_TYPES = 100
MAX_MEDIA_TYPE_LENGTH = 256
MAX_INT32 = 2**31 - 1
_DIGITS = late_pattern(r"-?[0-9]{1,10}\Z")
_TIME = late_pattern(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:?[0-9]{2})?\Z"
)


def both_spellings(*names: str) -> dict[str, str]:
    """Map camelCase and snake_case of each name to the snake_case one. Several names may be in one
    text, separated by spaces."""
    table: dict[str, str] = {}
    for name in " ".join(names).split():
        snake = "".join("_" + c.lower() if c.isupper() else c for c in name)
        table[name] = table[snake] = snake
    return table


def one_spelling(*names: str) -> Mapping[str, str]:
    """Map camelCase names to snake_case ones, as 0.x knows no second spelling."""
    camels = " ".join(names).split()
    return {name: snake for name, snake in both_spellings(*names).items() if name in camels}


def split(value: Value, known: Mapping[str, str], path: str) -> tuple[Object, Object]:
    """Return the known fields, unset ones left out, and the unknown ones as they came."""
    if type(value) is not dict:
        raise InvalidParams("must be an object", field=path)
    fields: Object = {}
    extra: Object = {}
    for key, item in cast(Object, value).items():
        name = known.get(key)
        if name is None:
            extra[key] = item
        elif name in fields:
            raise InvalidParams("is given twice", field=at(path, key))
        # null means unset, except where any JSON value is allowed.
        elif item is not None or name == "data":
            fields[name] = item
    return fields, extra


def mapping(value: Value, path: str) -> Object:
    """Return an object; raises `InvalidParams` for anything else."""
    if type(value) is not dict:
        raise InvalidParams("must be an object", field=path)
    return cast(Object, value)


def members(value: Value) -> Object:
    """Return the members of an object; what is no object has none."""
    return cast(Object, value) if type(value) is dict else {}


def elements(value: Value) -> list[Value]:
    """Return the elements of a list; what is no list has none."""
    return cast("list[Value]", value) if type(value) is list else []


def at(path: str, name: str) -> str:
    """Return the path of a member."""
    return f"{path}.{name}" if path else name


def required(fields: Object, name: str, path: str) -> Value:
    """Return a member that must be there; the path uses the wire's spelling."""
    if name not in fields:
        raise InvalidParams("is required", field=at(path, camel(name)))
    return fields[name]


@functools.lru_cache(256)
def camel(snake: str) -> str:
    """Return the wire's spelling of a name."""
    head, *rest = snake.split("_")
    return head + "".join(word.capitalize() for word in rest)


def text(value: Value, path: str) -> str:
    """Return a string."""
    if type(value) is not str:
        raise InvalidParams("must be a string", field=path)
    return value


def identifier(value: Value, path: str) -> str:
    """Return an id a peer may use."""
    if type(value) is not str or not is_id(value):
        raise InvalidParams("must be 1 to 256 visible ASCII characters", field=path)
    return value


def optional_identifier(value: Value, path: str) -> str:
    """Return an id, or the empty string where the protocol reads it as unset."""
    return "" if value == "" else identifier(value, path)


def boolean(value: Value, path: str) -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        raise InvalidParams("must be true or false", field=path)
    return value


def integer(value: Value, path: str) -> int:
    """Return an int32, given as a number or, as ProtoJSON allows, as its text."""
    if type(value) is str and _DIGITS.match(value):
        value = int(value)
    elif type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not -MAX_INT32 - 1 <= value <= MAX_INT32:
        raise InvalidParams("must be a 32-bit integer", field=path)
    return value


def history_length(value: Value, path: str) -> int:
    """Return how many messages the caller wants to see."""
    number = integer(value, path)
    if number < 0:
        raise InvalidParams("must not be negative", field=path)
    return number


def array(value: Value, path: str, item: Callable[[Value, str], T]) -> list[T]:
    """Return a list, each element read by `item`."""
    if type(value) is not list:
        raise InvalidParams("must be a list", field=path)
    listed = cast("list[Value]", value)
    return [item(element, f"{path}[{index}]") for index, element in enumerate(listed)]


def texts(value: Value, path: str) -> list[str]:
    """Return a list of strings."""
    return array(value, path, text)


def media_types(value: Value, path: str) -> list[str]:
    """Return a list of media types, not too many and none too long."""
    kinds = texts(value, path)
    if len(kinds) > MAX_MEDIA_TYPES or any(len(kind) > MAX_MEDIA_TYPE_LENGTH for kind in kinds):
        raise InvalidParams(
            f"must be at most {MAX_MEDIA_TYPES} media types of {MAX_MEDIA_TYPE_LENGTH} characters",
            field=path,
        )
    return kinds


def identifiers(value: Value, path: str) -> list[str]:
    """Return a list of ids."""
    return array(value, path, identifier)


def parts(value: Value, path: str, item: Callable[[Value, str], T]) -> list[T]:
    """Return the parts of a message or an artifact: at least one, not too many."""
    if type(value) is list:
        count = len(cast("list[Value]", value))
        if not count:
            raise InvalidParams("must not be empty", field=path)
        if count > MAX_PARTS:
            raise InvalidParams(f"must have at most {MAX_PARTS} elements", field=path)
    return array(value, path, item)


def metadata(value: Value, path: str) -> Metadata:
    """Return free-form metadata of bounded size."""
    if value.__class__ is not dict:
        raise InvalidParams("must be an object", field=path)
    if value and len(encode(value)) > MAX_METADATA_BYTES:
        raise InvalidParams(f"must be at most {MAX_METADATA_BYTES} bytes", field=path)
    return value


def base64_bytes(value: Value, path: str) -> bytes:
    """Return decoded base64, in the standard or the URL alphabet, padded or not. Bindings that
    carry bytes as such have them already."""
    if type(value) is bytes:
        return value
    plain = text(value, path).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams("must be base64", field=path) from None


def instant(value: Value, path: str) -> int:
    """Return an ISO 8601 time as microseconds since the epoch; no zone means UTC."""
    shape = _TIME.match(text(value, path))
    if shape is None:
        raise InvalidParams("must be an ISO 8601 time", field=path)
    # Nanoseconds, which ProtoJSON allows, are more than Python reads.
    date, clock, fraction, zone = shape.groups(default="")
    try:
        parsed = datetime.fromisoformat(f"{date}T{clock}{fraction[:7]}{zone.upper() or 'Z'}")
        elapsed = parsed.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidParams("must be an ISO 8601 time", field=path) from None
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


# Objects of the model, from members that every version has under the same names. A version tells
# known members from unknown ones, and knows how to read those inside.

Fields = tuple[Object, Object]


def artifact_of(given: Fields, path: str, decode_part: Callable[[Value, str], Part]) -> Artifact:
    """Return an artifact or a chunk of one, from its known and its unknown members."""
    fields, extra = given
    return Artifact(
        artifact_id=text(required(fields, "artifact_id", path), f"{path}.artifactId"),
        parts=array(required(fields, "parts", path), f"{path}.parts", decode_part),
        name=text(fields.get("name", ""), f"{path}.name"),
        description=text(fields.get("description", ""), f"{path}.description"),
        metadata=metadata_of(fields, path),
        extensions=texts(fields.get("extensions", []), f"{path}.extensions"),
        extra=extra,
    )


def task_of(
    given: Fields,
    path: str,
    decode_status: Callable[[Value, str], TaskStatus],
    decode_artifact: Callable[[Value, str], Artifact],
    decode_message: Callable[[Value, str], Message],
) -> Task:
    """Return a task from its known and its unknown members."""
    fields, extra = given
    return Task(
        id=task_id_of(fields, "id", path),
        context_id=context_id_of(fields, path),
        status=decode_status(required(fields, "status", path), f"{path}.status"),
        artifacts=array(fields.get("artifacts", []), f"{path}.artifacts", decode_artifact),
        history=array(fields.get("history", []), f"{path}.history", decode_message),
        metadata=metadata_of(fields, path),
        extra=extra,
    )


def status_update_of(
    given: Fields, path: str, decode_status: Callable[[Value, str], TaskStatus]
) -> StatusUpdate:
    """Return a status event from its known and its unknown members."""
    fields, extra = given
    return StatusUpdate(
        task_id=task_id_of(fields, "task_id", path),
        context_id=context_id_of(fields, path),
        status=decode_status(required(fields, "status", path), f"{path}.status"),
        metadata=metadata_of(fields, path),
        extra=extra,
    )


def artifact_update_of(
    given: Fields, path: str, decode_artifact: Callable[[Value, str], Artifact]
) -> ArtifactUpdate:
    """Return an artifact event from its known and its unknown members."""
    fields, extra = given
    return ArtifactUpdate(
        task_id=task_id_of(fields, "task_id", path),
        context_id=context_id_of(fields, path),
        artifact=decode_artifact(required(fields, "artifact", path), f"{path}.artifact"),
        append=boolean(fields.get("append", False), f"{path}.append"),
        last_chunk=boolean(fields.get("last_chunk", False), f"{path}.lastChunk"),
        metadata=metadata_of(fields, path),
        extra=extra,
    )


def task_id_of(fields: Object, name: str, path: str = "") -> TaskId:
    """Return the id of a task, which must be there."""
    value = required(fields, name, path)
    return TaskId(identifier(value, at(path, camel(name))))


def context_id_of(fields: Object, path: str = "") -> ContextId:
    """Return the id of a context; empty: none."""
    value = fields.get("context_id", "")
    return ContextId(optional_identifier(value, at(path, "contextId")))


def metadata_of(fields: Object, path: str = "") -> Metadata:
    """Return the metadata of an object."""
    return metadata(fields.get("metadata", {}), at(path, "metadata"))


def history_of(fields: Object, path: str = "") -> int | None:
    """Return how many messages the caller wants to see; None: all."""
    if "history_length" not in fields:
        return None
    return history_length(fields["history_length"], at(path, "historyLength"))
