"""The table of global options: how texts become values, and that nothing is said twice."""

from typing import Any

import pytest

from dragoman.cli import options
from dragoman.cli.options import BY_NAME, ROWS
from dragoman.cli.sources import CommandSettings
from dragoman.model.duration import duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2),
        ("1m30s", 90),
        ("1h", 3600),
        ("1.5", 1.5),
        ("0", 0),
        ("1h1m", 3660),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "2x", "-1", "nan", "inf", "1s2h", "1 s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("output", "json", "json"),
        ("transport", "rest", "HTTP+JSON"),
        ("transport", "http+JSON", "HTTP+JSON"),
        ("transport", "GRPC", "GRPC"),
        ("a2a-version", "0.3.0", "0.3"),
        ("svc-param", "x-a:b:c", ("x-a", "b:c")),
        ("svc-param", "x-a=b:c", ("x-a", "b:c")),
        ("metadata", '{"a": 1}', {"a": 1}),
        ("wait", "Off", False),
    ],
)
def test_values_are_read(name: str, text: str, value: Any) -> None:
    assert BY_NAME[name].read(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("output", "jsonl"),
        ("poll-interval", "99ms"),
        ("transport", "soap"),
        ("a2a-version", "one"),
        ("svc-param", "nothing"),
        ("svc-param", "bad name:x"),
        ("svc-param", "x-a:b\r\nx-c:d"),
        ("svc-param", "A2A-Version:1.0"),
        ("metadata", "[]"),
        ("metadata", "{"),
        ("wait", "perhaps"),
    ],
)
def test_values_that_make_no_sense_are_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"must|cannot"):
        BY_NAME[name].read(text)


def test_a_secret_that_makes_no_sense_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="name:value") as caught:
        BY_NAME["svc-param"].read("x-secret\x01:hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_comma_inside_a_service_parameter_stays_in_it() -> None:
    assert options.parameters("a:1,2,b=3") == ["a:1,2", "b=3"]


def test_settings_have_a_field_for_each_row_and_the_defaults_of_the_table() -> None:
    settings = CommandSettings()
    names = CommandSettings.__annotations__.keys() | vars(settings).keys()
    for row in ROWS:
        assert row.field in names
        if row.default is not None:
            assert getattr(settings, row.field) == row.read(row.default)


def test_only_four_short_flags_exist() -> None:
    assert {row.short for row in ROWS if row.short} == {"-a", "-o"}


def test_streaming_is_never_configured() -> None:
    assert not BY_NAME["stream"].in_environment and not BY_NAME["stream"].in_files
    assert not BY_NAME["config"].in_files


def test_help_of_credentials_says_that_flags_are_seen_and_names_the_variable() -> None:
    for name in ("bearer", "api-key"):
        row = BY_NAME[name]
        assert "process list" in row.help and "history" in row.help and row.variable in row.help
