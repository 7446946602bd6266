"""Forms on a terminal: asked for field by field, checked as they are typed."""

from typing import Any

import pytest

from dragoman.cli.calling.form_prompt import FormDialogue
from dragoman.cli.failures import Failure
from tests.authoring.test_form_fields import HOSTILE

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["size", "count"],
    "properties": {
        "size": {"enum": ["S", "M"], "title": "Size", "description": "As you wear it"},
        "count": {"type": "integer", "minimum": 1, "default": 2},
        "extras": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
        "gift": {"type": "boolean"},
        "address": {
            "type": "object",
            "required": ["street"],
            "properties": {"street": {"type": "string"}},
        },
        "tags": {"type": "array", "items": {"type": "string"}},
        "guests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}},
            },
        },
    },
}


def filled(schema: Any, *lines: str) -> tuple[Any, list[str]]:
    """Return what a form comes to, and what its person was shown."""
    form, shown = FormDialogue(schema), list[str]()
    for line in lines:
        assert form.question is not None, f"{line} was not asked for"
        shown += [form.question.problem, *form.question.lines]
        form.take(line)
    assert form.question is None, form.question
    return form.value, [line for line in shown if line]


def test_a_form_is_asked_for_field_by_field() -> None:
    value, shown = filled(
        SCHEMA, "2", "5", "1, c", "yes", "y", "Main St", "x", "y", "", "yes", "Bo", "no"
    )
    assert value == {
        "size": "M",
        "count": 5,
        "extras": ["a", "c"],
        "gift": True,
        "address": {"street": "Main St"},
        "tags": ["x", "y"],
        "guests": [{"name": "Bo"}],
    }
    assert shown[:4] == ["Size", "As you wear it", "1) S", "2) M"]
    assert "count - a whole number, [2]" in shown
    assert "gift - yes or no, may be left out" in shown
    assert "address / street" in shown
    assert "tags 1 (an empty line ends the list) - may be left out" in shown
    assert "guests: another? yes or no [no]" in shown


def test_an_empty_line_is_the_default_or_nothing() -> None:
    value, _ = filled(SCHEMA, "S", "", "", "", "", "", "")
    assert value == {"size": "S", "count": 2}


def test_what_does_not_fit_is_asked_for_again() -> None:
    value, shown = filled(
        SCHEMA, "", "XL", "S", "0", "many", "3", "z", "a", "perhaps", "no", "", "", ""
    )
    assert value == {"size": "S", "count": 3, "extras": ["a"], "gift": False}
    assert [line for line in shown if line.startswith(("is ", "must "))] == [
        "is required",
        "is not one of the choices",
        "must be at least 1",
        "must be a whole number",
        "is not one of the choices",
        "must be yes or no",
    ]


def test_what_is_neither_yes_nor_no_leaves_nothing_out() -> None:
    lines = ("M", "5", "", "", "Main St", "yes", "Main St", "", "Bo", "N")
    value, shown = filled(SCHEMA, *lines)
    assert value["address"] == {"street": "Main St"} and value.get("guests", []) == []
    assert shown.count("must be yes or no") == 2


def test_the_first_line_may_be_all_of_it_as_json() -> None:
    assert filled(SCHEMA, '{"size": "S"}')[0] == {"size": "S"}
    with pytest.raises(Failure, match="not JSON"):
        filled(SCHEMA, "{no")


def test_a_list_that_needs_rows_asks_for_them() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
    value, shown = filled(schema, "", "1", "x", "2", "3")
    assert value == [1, 2, 3] and "is required" in shown and "must be a whole number" in shown


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [({"type": "string"}, "x", "x"), ({}, "[1]", [1]), ({"type": "boolean"}, "n", False)],
)
def test_a_form_of_one_value_is_one_question(schema: Any, line: str, value: Any) -> None:
    assert filled(schema, line)[0] == value


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_a_schema_that_is_none_ends(schema: Any) -> None:
    form = FormDialogue(schema)
    # More than a form has fields.
    answers = iter(["x", '"x"', "1", "no", ""] * 100)
    try:
        for line in answers:
            if form.question is None:
                break
            form.take(line)
    except Failure:
        return
    assert form.question is None or len(form.question.lines) < 600
