"""Forms from JSON Schema: what is drawn, what is read, and what a hostile schema comes to."""

import enum
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dragoman.authoring.form_fields import Field, fields, read
from dragoman.authoring.forms import schema_of

ADDRESS = {
    "type": "object",
    "required": ["street"],
    "properties": {"street": {"type": "string", "minLength": 2}, "zip": {"type": "string"}},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "An order",
    "required": ["name", "count", "size", "address", "is_gift"],
    "properties": {
        "name": {"type": "string", "title": "Your name", "maxLength": 20},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "weight": {"type": "number", "exclusiveMinimum": 0},
        "is_gift": {"type": "boolean"},
        "size": {"enum": ["S", "M", 44]},
        "extras": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 2},
        "day": {"type": "string", "format": "date"},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "address": {"$ref": "#/$defs/Address"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "guests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "eats": {"type": "boolean"}},
            },
        },
        "a/b~c": {"type": "string"},
        "rest": {"type": "object"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
    "$defs": {"Address": ADDRESS},
}
GOOD = {
    "value/name": ["Ada"],
    "value/count": ["3"],
    "value/size": ["44"],
    "value/address/street": ["Main St"],
}


def by_key(field: Field) -> dict[str, Field]:
    found = {field.key: field}
    for one in field.fields:
        found |= by_key(one)
    return found


def test_every_kind_of_schema_is_a_field_of_its_kind() -> None:
    found = by_key(fields(SCHEMA))
    kinds = {key.removeprefix("value"): field.kind for key, field in found.items()}
    assert kinds == {
        "": "object",
        "/name": "text",
        "/count": "integer",
        "/weight": "number",
        "/is_gift": "boolean",
        "/size": "choice",
        "/extras": "several",
        "/day": "date",
        "/at": "datetime",
        "/address": "object",
        "/address/street": "text",
        "/address/zip": "text",
        "/tags": "list",
        "/tags/0": "text",
        "/guests": "list",
        "/guests/0": "object",
        "/guests/0/name": "text",
        "/guests/0/eats": "boolean",
        "/a~1b~0c": "text",
        "/rest": "json",
        "/code": "text",
    }
    assert found["value/name"].label == "Your name" and found["value/name"].maximum == 20
    assert found["value/count"].text == "2" and found["value/count"].minimum == 1
    assert [one.text for one in found["value/size"].choices] == ["S", "M", "44"]
    assert found["value/name"].required and not found["value/weight"].required


def test_a_value_fills_a_form_and_comes_back_from_it() -> None:
    value = {
        "name": "Ada",
        "count": 3,
        "weight": 1.5,
        "is_gift": True,
        "size": 44,
        "extras": ["a", "c"],
        "day": "2026-01-31",
        "at": "2026-01-31T09:30:00Z",
        "address": {"street": "Main St", "zip": "1"},
        "tags": ["x", "y"],
        "guests": [{"name": "Bo", "eats": False}, {"name": "Cy", "eats": True}],
        "a/b~c": "odd",
        "rest": {"any": [1, None]},
        "code": "ABC",
    }
    filled = by_key(fields(SCHEMA, value))
    given = {key: field.texts for key, field in filled.items() if field.texts}
    found = read(SCHEMA, given)
    assert found.errors == {} and found.value == value


def test_what_is_left_empty_is_left_out_unless_it_is_required() -> None:
    found = read(SCHEMA, GOOD | {"value/weight": [""], "value/tags/0": [""], "value/day": [" "]})
    assert found.errors == {}
    assert found.value == {
        "name": "Ada",
        "count": 3,
        "is_gift": False,
        "size": 44,
        "address": {"street": "Main St"},
    }
    empty = read(SCHEMA, {})
    expected = ("name", "count", "size", "address/street")
    assert empty.errors == {f"value/{name}": "is required" for name in expected}
    assert empty.value is None


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("name", "x" * 21, "at most 20 characters"),
        ("count", "10", "at most 9"),
        ("count", "1_0", "whole number"),
        ("count", "1.5", "whole number"),
        ("weight", "0", "more than 0"),
        ("weight", "nan", "must be a number"),
        ("weight", "1e999", "too large"),
        ("is_gift", "perhaps", "yes or no"),
        ("size", "XL", "not one of the choices"),
        ("extras", "z", "not one of the choices"),
        ("day", "31.1.2026", "must be a date"),
        ("at", "soon", "a date and a time"),
        ("address/street", "x", "at least 2 characters"),
        ("rest", "{", "is not JSON"),
        ("rest", "[1]", "must be object"),
        ("code", "abc", "must look like"),
    ],
)
def test_what_does_not_fit_is_told_at_its_field(key: str, text: str, problem: str) -> None:
    found = read(SCHEMA, GOOD | {f"value/{key}": [text]})
    assert list(found.errors) == [f"value/{key}"] and problem in found.errors[f"value/{key}"]
    shown = by_key(found.form)
    assert shown[f"value/{key}"].text == text and shown[f"value/{key}"].error
    assert shown["value/name"].text == (text if key == "name" else "Ada")


def test_rows_of_a_list_come_and_go_and_keep_their_errors() -> None:
    given = {
        "value/guests/0/name": ["Bo"],
        "value/guests/1/name": [""],
        "value/guests/4/name": ["Cy"],
        "value/guests/5/eats": ["on"],
    }
    found = read(SCHEMA, GOOD | given)
    assert found.errors == {"value/guests/5/name": "is required"}
    del given["value/guests/5/eats"]
    found = read(SCHEMA, GOOD | given)
    assert found.value["guests"] == [
        {"name": "Bo", "eats": False},
        {"name": "Cy", "eats": False},
    ]
    too_many = read(SCHEMA, GOOD | {"value/extras": ["a", "b", "c"]})
    assert too_many.errors == {"value/extras": "must have at most 2 items"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "word", "word"),
        ({"type": "integer"}, "4", 4),
        ({"enum": ["a", None]}, "null", None),
        ({"oneOf": [{"const": 1, "title": "One"}, {"const": 2, "title": "Two"}]}, "2", 2),
        ({}, '{"a": 1}', {"a": 1}),
        (True, "[]", []),
    ],
)
def test_a_form_need_not_be_an_object(schema: Any, text: str, value: Any) -> None:
    found = read(schema, {"value": [text]})
    assert (dict(found.errors), found.value) == ({}, value)


def test_types_of_authors_make_the_same_forms() -> None:
    class Room(msgspec.Struct):
        beds: int
        view: str | None = None

    class Stay(msgspec.Struct):
        rooms: list[Room]
        nights: int = 1

    found = read(
        msgspec.json.schema(Stay),
        {"value/rooms/0/beds": ["2"], "value/rooms/0/view": [""], "value/nights": [""]},
    )
    assert found.errors == {} and found.value == {"rooms": [{"beds": 2}]}
    # By the name of the field, and not by that of its type.
    labels = {key: field.label for key, field in by_key(found.form).items()}
    assert labels["value/rooms"] == "rooms" and labels["value/rooms/0"] == "rooms 1"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"in": schema}}
    return schema


HOSTILE: list[Any] = [
    None,
    [],
    "object",
    {"type": ["string", 5]},
    {"type": {"a": 1}},
    {"type": "object", "properties": ["a"]},
    {"type": "object", "properties": {"a": "string", "b": None}, "required": "a"},
    {"type": "string", "minLength": "many", "pattern": "("},
    {"type": "string", "pattern": ["x"], "title": {"x": 1}, "description": 7},
    {"enum": [[1], {"a": 1}]},
    {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
    {"$ref": "http://127.0.0.1/schema"},
    {"$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}, "$ref": "#/$defs/A"},
    {"type": "array", "items": {"$ref": "#"}},
    {"allOf": [{"allOf": [{"allOf": [1]}]}]},
    {"enum": list(range(10_000))},
    {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(5000)}},
    nested(300),
]


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_a_schema_that_is_none_is_drawn_within_bounds_and_read(schema: Any) -> None:
    form = fields(schema, {"a": [1]})
    assert len(by_key(form)) <= 250
    for text in ("", "x", "1", '{"a": 1}'):
        submission = read(schema, {"value": [text], "value/a": [text], "value/0": [text]})
        assert submission.form.key == "value"


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "a*a*a*a*a*a*b", r"(a*)\1*b", ".*.*.*.*=", "(?P<x>a+)(?P=x)+b"]
)
def test_a_pattern_that_would_take_long_is_not_searched_for(pattern: str) -> None:
    began = time.perf_counter()
    for size in (30, 500, 20_000):
        read({"type": "string", "pattern": pattern}, {"value": ["a" * size + "!"]})
    assert time.perf_counter() - began < 10


def test_a_default_is_what_a_field_shows_and_not_what_is_read() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 5}}}
    assert by_key(fields(schema))["value/a"].text == "5"
    assert read(schema, {"value/a": [""]}).value == {}


class Speed(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


Finish = Literal["matt", "gloss"]


@dataclass
class Coat:
    finish: Finish | None = None
    speeds: Annotated[list[Speed], msgspec.Meta(max_length=2)] = field(default_factory=list[Speed])


class Paint(msgspec.Struct):
    size: Literal["small", "medium", "large"]
    grade: Literal[3, 1, 2]
    coats: list[Coat]


def test_choices_stand_in_the_order_of_their_author() -> None:
    schema = schema_of(Paint)
    paint, coat = schema["$defs"]["Paint"]["properties"], schema["$defs"]["Coat"]["properties"]
    assert paint["size"]["enum"] == ["small", "medium", "large"]
    assert paint["grade"]["enum"] == [3, 1, 2]
    assert coat["finish"]["anyOf"][0]["enum"] == ["matt", "gloss"]
    assert schema["$defs"]["Speed"]["enum"] == ["slow", "fast"]
    size = fields(schema).fields[0]
    assert [one.label for one in size.choices] == ["small", "medium", "large"]
