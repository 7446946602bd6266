"""What an agent is told, made of what was posted."""

from typing import Any

import pytest

from dragoman.errors import InvalidParams
from dragoman.gateway.triggers.template import LONGEST_TEXT, at, check, filled

POSTED = {"issue": {"title": "Broken", "labels": ["a", "b"], "n": 7}, "a/b": {"m~n": True}}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", POSTED),
        ("/issue/title", "Broken"),
        ("/issue/labels/1", "b"),
        ("/issue/labels/2", None),
        ("/issue/labels/-1", None),
        ("/issue/labels/99999999999999999999", None),
        ("/a~1b/m~0n", True),
        ("/nothing/here", None),
        ("/issue/title/deeper", None),
    ],
)
def test_a_pointer_names_a_value(pointer: str, value: Any) -> None:
    assert at(POSTED, pointer) == value


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("New: {/issue/title} ({/issue/n})", "New: Broken (7)"),
        ("{/issue/labels}", ["a", "b"]),
        ("all {/issue/labels}", 'all ["a", "b"]'),
        ("{{kept}} {due}", "{kept} now"),
        ("{due}", "now"),
        (
            {"x": ["{/issue/n}", {"y": "{/issue/title}!"}], "n": 3},
            {"x": [7, {"y": "Broken!"}], "n": 3},
        ),
    ],
)
def test_placeholders_are_filled_in(template: Any, made: Any) -> None:
    check(template)
    assert filled(template, POSTED, "now") == made


def test_what_was_posted_is_no_template() -> None:
    assert filled("{/a}", {"a": "{/b} {due}", "b": "secret"}, "now") == "{/b} {due}"


@pytest.mark.parametrize("template", ["{", "}", "{name}", "{/a", "a } b", {"x": ["{y}"]}])
def test_a_brace_that_means_nothing_is_refused(template: Any) -> None:
    with pytest.raises(InvalidParams):
        check(template)


def test_a_text_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(InvalidParams):
        filled("x {/a}", {"a": "y" * LONGEST_TEXT}, "now")
