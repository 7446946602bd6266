"""What a step's function returned, as the log keeps it and as the code gets it.

The code always gets the recorded form, the first time too: it cannot come to depend on anything
that a second run would not have.
"""

import typing
from collections.abc import Callable
from typing import Any

import msgspec

MAX_RESULT_BYTES = 1024 * 1024


def encode_result(name: str, value: Any) -> msgspec.Raw:
    """Return a result as JSON; says which step it was if there is no such thing."""
    try:
        body = msgspec.json.encode(value, enc_hook=_encode_model)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"step {name}: its result cannot be kept as JSON: {error}") from None
    if len(body) > MAX_RESULT_BYTES:
        raise ValueError(
            f"step {name}: its result has {len(body)} bytes; keep large things elsewhere and "
            "return where they are"
        )
    return msgspec.Raw(body)


def decode_result(body: msgspec.Raw, function: Callable[..., Any]) -> Any:
    """Return a result in the type its function is annotated with."""
    try:
        kind: Any = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        # Built-ins have no annotations, and names that only a type checker knows no meaning.
        kind = Any
    value: Any = msgspec.json.decode(body)
    try:
        if hasattr(kind, "model_validate"):
            return kind.model_validate(value)
        return msgspec.convert(value, kind)
    except (TypeError, ValueError):
        # The annotation is of a kind that JSON cannot be turned into, or it is not true.
        return value


def _encode_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} is no type of JSON")
