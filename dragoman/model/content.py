"""Python values to parts: what an author may return, yield, say or put in an artifact."""

import dataclasses
import inspect
import math
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.message import Message, Part

# Any value of the author's code.
Content = Any


def parts_of(content: Content) -> list[Part]:
    """Return the parts that carry a value; raises `TypeError` for what JSON cannot hold."""
    match content:
        case str():
            return [Part(text=content)]
        case Part():
            return [content]
        case bytes() | bytearray() | memoryview():
            return [Part(raw=bytes(cast(bytes, content)), media_type="application/octet-stream")]
        case Message() | Artifact():
            return list(content.parts)
        case [Part(), *_]:
            return _all_parts(cast(Iterable[object], content))
        case _:
            return [Part(data=json_value(content))]


def _all_parts(items: Iterable[object]) -> list[Part]:
    parts = [item for item in items if isinstance(item, Part)]
    if len(parts) != len(list(items)):
        raise TypeError("a list of parts holds nothing but parts")
    return parts


def json_value(value: Any) -> Any:
    """Return plain JSON for a value, a dataclass, a msgspec struct or a pydantic-like model."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if inspect.iscoroutine(value):
        # Closed, so that Python does not warn of it as well, at a line of ours.
        value.close()
        raise TypeError("a coroutine is no content: write `await` before the call that made it")
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except TypeError as error:
        raise TypeError(f"{error}; content is text, bytes, a part, or what JSON can hold") from None
    _check_numbers(plain)
    return plain


def _check_numbers(value: Any) -> None:
    """NaN and infinity have no JSON; a stored one would break every later reader."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("JSON has no NaN and no infinity")
    if isinstance(value, dict):
        for item in cast(dict[str, Any], value).values():
            _check_numbers(item)
    elif isinstance(value, list | tuple):
        for item in cast(Iterable[Any], value):
            _check_numbers(item)
