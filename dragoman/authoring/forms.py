"""Forms: what an answer has to fit, given as a type or as a JSON Schema.

Of JSON Schema this checks what forms use: types, members, items, choices, bounds, lengths and
patterns. Other keywords are for the client that shows the form.
"""

import enum
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

Schema = Mapping[str, Any]
T = TypeVar("T")

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


class Unfit(ValueError):
    """A value does not fit; says where and why, and nothing of the value itself."""


def schema_of(form: Any) -> dict[str, Any]:
    """Return the JSON Schema of a form; raises `TypeError` for what can be none."""
    if isinstance(form, Mapping):
        return dict(cast("Mapping[str, Any]", form))
    if hasattr(form, "model_json_schema"):
        return form.model_json_schema()
    return json_schema(form)


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, with its choices in the order its author gave them."""
    return in_authors_order(msgspec.json.schema(kind), [kind])


def in_authors_order(schema: T, kinds: Iterable[Any]) -> T:
    """Put the choices of literals and enums in a schema of these types back in the order of their
    declaration: msgspec sorts them. Of two with the same choices, the order of the first holds."""
    orders: dict[frozenset[Any], list[Any]] = {}
    for choices in _choices(kinds):
        orders.setdefault(_alike(choices), choices)
    if orders:
        _put_in_order(schema, orders)
    return schema


def _choices(kinds: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the choices of every literal and enum that types are made of."""
    # By identity, since not every type can be hashed; kept, so that no id is used twice.
    left, seen = list(kinds)[::-1], dict[int, Any]()
    while left:
        kind = left.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind
        if typing.get_origin(kind) is Literal:
            yield list(_literal_values(kind))
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            yield [one.value for one in kind]
        else:
            left += list(_inner_types(kind))[::-1]


def _literal_values(kind: Any) -> Iterator[Any]:
    for one in typing.get_args(kind):
        if typing.get_origin(one) is Literal:
            yield from _literal_values(one)
        else:
            yield one


def _inner_types(kind: Any) -> Iterator[Any]:
    """Yield the types that a type is made of: of its members, items, alternatives, and what an
    alias or a new name stands for."""
    yield from typing.get_args(kind)
    for name in ("__value__", "__supertype__"):
        if hasattr(kind, name):
            yield getattr(kind, name)
    origin = typing.get_origin(kind) or kind
    if isinstance(origin, type) and hasattr(origin, "__annotations__"):
        yield from typing.get_type_hints(origin, include_extras=True).values()


def _alike(choices: Iterable[Any]) -> frozenset[Any]:
    # True is 1 to a set, and two choices to JSON.
    return frozenset((type(one), one) for one in choices)


def _put_in_order(schema: Any, orders: Mapping[frozenset[Any], list[Any]]) -> None:
    if isinstance(schema, list):
        for one in cast("list[Any]", schema):
            _put_in_order(one, orders)
    elif isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        for name, one in members.items():
            if name == "enum" and isinstance(one, list):
                choices = cast("list[Any]", one)
                members[name] = orders.get(_alike(choices), choices)
            else:
                _put_in_order(one, orders)


def filled(form: Any, value: Any) -> Any:
    """Return a value in the type of a form; raises `Unfit`."""
    if isinstance(form, Mapping):
        schema = cast(Schema, form)
        check(value, schema, schema)
        return value
    if hasattr(form, "model_validate"):
        try:
            return form.model_validate(value)
        except ValueError as error:
            raise Unfit(_first(error)) from None
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise Unfit(_without_value(str(error))) from None


def _first(error: Any) -> str:
    """Return the first problem that a model's validation found, without the value."""
    try:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        return f"{place}: {first['type'].replace('_', ' ')}"
    except (AttributeError, LookupError, TypeError):
        return "it is not valid"


def _without_value(reason: str) -> str:
    """Return why a value cannot be converted, without the value where that is named."""
    if reason.startswith("Invalid enum value"):
        return "it is not one of the choices" + reason[reason.rfind(" - at") :].replace(
            " - at", " at"
        )
    return reason.replace(" - at", " at").replace("`", "")


def check(value: Any, schema: Schema, root: Schema, at: str = "$") -> None:
    """Raise `Unfit` unless a value fits a schema."""
    schema = _resolved(schema, root)
    kinds: Any = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        raise Unfit(f"{at} must be {' or '.join(kinds)}")
    if "enum" in schema and value not in schema["enum"]:
        raise Unfit(f"{at} is not one of the choices")
    if "const" in schema and value != schema["const"]:
        raise Unfit(f"{at} is not the allowed value")
    for one in schema.get("allOf", ()):
        check(value, one, root, at)
    for name in ("anyOf", "oneOf"):
        if name in schema and not any(_fits(value, one, root, at) for one in schema[name]):
            raise Unfit(f"{at} fits none of the allowed types")
    if isinstance(value, str):
        _check_text(value, schema, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, schema, at)
    elif isinstance(value, list):
        _check_items(cast("list[Any]", value), schema, root, at)
    elif isinstance(value, dict):
        _check_members(cast("dict[str, Any]", value), schema, root, at)


def _resolved(schema: Schema, root: Schema) -> Schema:
    seen = 0
    while isinstance(place := schema.get("$ref"), str):
        seen += 1
        if not place.startswith("#/") or seen > 32:
            raise Unfit(f"the form names {place}, which it does not have")
        found: Any = root
        for step in place[2:].split("/"):
            found = cast(Schema, found).get(step, {}) if isinstance(found, Mapping) else {}
        schema = cast(Schema, found)
    return schema


def _fits(value: Any, schema: Schema, root: Schema, at: str) -> bool:
    try:
        check(value, schema, root, at)
    except Unfit:
        return False
    return True


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


def _check_text(value: str, schema: Schema, at: str) -> None:
    if len(value) < schema.get("minLength", 0):
        raise Unfit(f"{at} must have at least {schema['minLength']} characters")
    if len(value) > schema.get("maxLength", len(value)):
        raise Unfit(f"{at} must have at most {schema['maxLength']} characters")
    # The pattern is the author's own; only the text comes from the caller.
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise Unfit(f"{at} must look like {schema['pattern']}")


def _check_number(value: float, schema: Schema, at: str) -> None:
    if value < schema.get("minimum", value):
        raise Unfit(f"{at} must be at least {schema['minimum']}")
    if value > schema.get("maximum", value):
        raise Unfit(f"{at} must be at most {schema['maximum']}")
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        raise Unfit(f"{at} must be more than {schema['exclusiveMinimum']}")
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        raise Unfit(f"{at} must be less than {schema['exclusiveMaximum']}")


def _check_items(value: Sequence[Any], schema: Schema, root: Schema, at: str) -> None:
    if len(value) < schema.get("minItems", 0):
        raise Unfit(f"{at} must have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", len(value)):
        raise Unfit(f"{at} must have at most {schema['maxItems']} items")
    if isinstance(items := schema.get("items"), Mapping):
        for index, item in enumerate(value):
            check(item, cast(Schema, items), root, f"{at}[{index}]")


def _check_members(value: dict[str, Any], schema: Schema, root: Schema, at: str) -> None:
    for name in schema.get("required", ()):
        if name not in value:
            raise Unfit(f"{at}.{name} is missing")
    members: Mapping[str, Any] = schema.get("properties", {})
    more: Any = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in members:
            check(item, members[name], root, f"{at}.{name}")
        elif more is False:
            raise Unfit(f"{at} has a member too many")
        elif isinstance(more, Mapping):
            check(item, cast(Schema, more), root, f"{at}.{name}")
