"""Untrusted values become plain ones, or are refused with the path of the field."""

from typing import Any

import pytest

from dragoman.dialects import reading
from dragoman.errors import InvalidParams


@pytest.mark.parametrize(
    ("value", "number"), [(5, 5), ("5", 5), ("-5", -5), (5.0, 5), (2**31 - 1, 2**31 - 1)]
)
def test_an_int32_may_be_a_number_or_its_text(value: Any, number: int) -> None:
    assert reading.integer(value, "n") == number


@pytest.mark.parametrize("value", [5.5, "5.0", "", "-", True, None, 2**31, "9" * 12, [5], 1e300])
def test_what_is_no_int32_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams) as refused:
        reading.integer(value, "n")
    assert refused.value.field == "n"


@pytest.mark.parametrize("text", ["+/8=", "+/8", "-_8=", "-_8"])
def test_base64_may_have_either_alphabet_and_no_padding(text: str) -> None:
    assert reading.base64_bytes(text, "raw") == b"\xfb\xff"


@pytest.mark.parametrize("value", ["a", "a b=", "é", 7, None])
def test_what_is_no_base64_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams):
        reading.base64_bytes(value, "raw")


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01T02:00:01+02:00", 1_000_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1970-01-01T00:00:00.5Z", 500_000),
    ],
)
def test_times_are_read_to_the_microsecond(text: str, microseconds: int) -> None:
    assert reading.instant(text, "at") == microseconds


@pytest.mark.parametrize("value", ["", "yesterday", 5, "2024-13-01T00:00:00Z", "1." + "0" * 99])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams):
        reading.instant(value, "at")


@pytest.mark.parametrize("value", ["a", "a" * 256, "urn:uuid:1~!"])
def test_visible_ascii_makes_an_id(value: str) -> None:
    assert reading.identifier(value, "id") == value


@pytest.mark.parametrize("value", ["", "a" * 257, "a b", "é", "a\n", "\x7f", 7, None])
def test_anything_else_makes_none(value: Any) -> None:
    with pytest.raises(InvalidParams):
        reading.identifier(value, "id")


def test_0_x_knows_one_spelling_of_a_name() -> None:
    assert reading.one_spelling("taskId", "id") == {"taskId": "task_id", "id": "id"}
    assert reading.both_spellings("taskId") == {"taskId": "task_id", "task_id": "task_id"}
