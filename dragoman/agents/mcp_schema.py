"""Arguments held to the JSON Schema of a tool, before the tool is called."""

import re
from collections.abc import Mapping
from typing import Any, cast

from dragoman.errors import InvalidParams


class Schema:
    """A schema that arguments are held to."""

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
            # The server has the last word on a schema that only it understands.
            return
        # With a registry of its own, an empty one: a reference elsewhere is never fetched.
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
            # A reference to elsewhere, or a pattern of another language: as above.
            return
        if error is not None:
            place = "".join(f".{step}" for step in error.absolute_path)
            raise InvalidParams(_said(error), field=f"{field}{place}")


def _said(error: Any) -> str:
    """Return what is wrong without what was given: values are not for error texts."""
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
    """Return a value with whole numbers where its schema has integers: callers that know but one
    kind of number, as those of protobuf do, send 3.0 for 3, which not every server takes."""
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
