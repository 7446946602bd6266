"""Arguments checked against the JSON Schema of a tool, before the tool is called."""

import re
from collections.abc import Mapping
from typing import Any, cast

from dragoman.errors import InvalidParams


class Schema:
    """A JSON Schema that arguments have to fit."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema import Draft202012Validator, exceptions, validators
        from referencing import Registry

        # The package has types for half of what it returns.
        kinds, self._exceptions = cast(Any, validators), cast(Any, exceptions)
        kind = kinds.validator_for(schema, default=Draft202012Validator)
        self._validator: Any = None
        try:
            kind.check_schema(schema)
        except self._exceptions.SchemaError:
            # A schema that only the server understands: the server checks.
            return
        # With an empty registry: a reference to another document is never fetched.
        registry: Any = cast(Any, Registry)()
        self._validator = kind(schema, registry=registry)

    def check(self, given: dict[str, Any], field: str) -> None:
        """Raise `InvalidParams` naming what does not fit, below the name of a field."""
        from referencing.exceptions import Unresolvable

        if self._validator is None:
            return
        try:
            error = self._exceptions.best_match(self._validator.iter_errors(given))
        except (Unresolvable, re.error):
            # A reference to another document, or a pattern that is not Python's: the server checks.
            return
        if error is not None:
            place = "".join(f".{step}" for step in error.absolute_path)
            raise InvalidParams(_problem(error), field=f"{field}{place}")


def _problem(error: Any) -> str:
    """Return what is wrong, without the value: values do not belong into error texts."""
    match error.validator:
        case "required":
            names = [name for name in error.validator_value if name not in error.instance]
            return f"lacks {', '.join(names)}"
        case "additionalProperties":
            return "has something that the tool does not take"
        case "type":
            return f"is not of type {error.validator_value}"
        case kind:
            return f"does not fit the tool's schema ({kind})"


def with_integers(value: Any, schema: Any) -> Any:
    """Return a value with integers where its schema has them: callers with one kind of number, as
    those of protobuf, send 3.0 for 3, which not every server takes."""
    if not isinstance(schema, dict):
        return value
    facts = cast("dict[str, Any]", schema)
    if isinstance(value, float) and value.is_integer() and facts.get("type") == "integer":
        return int(value)
    if isinstance(value, dict):
        known = cast("dict[str, Any]", facts.get("properties") or {})
        fields = cast("dict[str, Any]", value)
        return {name: with_integers(one, known.get(name)) for name, one in fields.items()}
    if isinstance(value, list):
        items = facts.get("items")
        return [with_integers(one, items) for one in cast("list[Any]", value)]
    return value
