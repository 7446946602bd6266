"""Lines of log: one record a line, with what it belongs to and without what nobody may read."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from dragoman.telemetry import logs, tracing
from dragoman.telemetry.tracing import Here, Trace

HERE = Here(Trace("a" * 32, "b" * 16), "task-1", "weather")


@pytest.fixture
def clean() -> Iterator[None]:
    """The logging of the test run is put back."""
    names = ("", "dragoman", "dragoman.access", *logs._NOISY)
    found = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in found]
    token = tracing.here.set(HERE)
    yield
    tracing.here.reset(token)
    found[0].handlers.clear()
    for logger, level in zip(found, levels, strict=True):
        logger.setLevel(level)


def written(form: str, level: str = "info", **more: bool) -> io.StringIO:
    stream = io.StringIO()
    # The test run has put its own there.
    logging.getLogger().handlers.clear()
    logs.configure(form, level, stream=stream, **more)
    return stream


@pytest.mark.usefixtures("clean")
def test_a_line_of_json_says_what_it_belongs_to() -> None:
    stream = written("json")
    logging.getLogger("dragoman").warning("%s is %d", "it", 4, extra={"incident": "i-1"})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "message": "it is 4",
        "logger": "dragoman",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "task_id": "task-1",
        "agent": "weather",
        "incident": "i-1",
    }


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_that_is_quoted_ends_a_line_or_colours_it(form: str) -> None:
    stream = written(form)
    hostile = "x\n2026-01-01 00:00:00 INFO forged\r\x1b[31mred\u2028\x85end\x00"
    logging.getLogger("dragoman").error("said %s", hostile)
    text = stream.getvalue()
    assert len(text.splitlines()) == 1 and text.endswith("\n")
    assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text[:-1])
    if form == "json":
        assert json.loads(text)["message"] == f"said {hostile}"


@pytest.mark.usefixtures("clean")
def test_an_exception_cannot_forge_a_line_for_people() -> None:
    stream = written("text")
    try:
        raise ValueError("bad\n2026-01-01 00:00:00 INFO forged")
    except ValueError:
        logging.getLogger("dragoman").exception("failed")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("]") and "task_id=task-1" in first
    assert others and all(line.startswith("  ") for line in others)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "secret",
    [
        "Bearer canary-1234567890",
        "bearer  canary.1234567890",
        "Authorization: Basic Y2FuYXJ5OmNhbmFyeQ==",
        "whsec_canary1234567890",
        "dgm_canary1234_abcdefghijklmnopqrstuvwxyz",
        "eyJcanary1234567890.eyJhIjoxfQ.sig",
        "https://user:canary-pass@example.com/path",
    ],
)
def test_what_looks_like_a_credential_is_not_written(form: str, secret: str) -> None:
    stream = written(form)
    log = logging.getLogger("dragoman")
    log.warning("got %s", secret)
    try:
        raise RuntimeError(secret)
    except RuntimeError:
        log.exception("failed")
    assert "anary" not in stream.getvalue() and "Y2FuYXJ5" not in stream.getvalue()
    assert "***" in stream.getvalue()


@pytest.mark.usefixtures("clean")
def test_debug_is_ours_and_not_what_libraries_say_of_requests() -> None:
    stream = written("json", "debug")
    logging.getLogger("dragoman.push").debug("ours")
    logging.getLogger("urllib3.connectionpool").debug("theirs")
    logging.getLogger("someone").debug("theirs too")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["ours"]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("wanted", [True, False])
def test_requests_are_logged_if_that_is_wanted(wanted: bool) -> None:
    stream = written("json", access=wanted)
    logging.getLogger("dragoman.access").info("SendMessage jsonrpc 1.0 ok 1.0 ms")
    assert bool(stream.getvalue()) is wanted


@pytest.mark.usefixtures("clean")
def test_a_log_that_was_set_up_before_is_left_as_it_is() -> None:
    first, second = written("json"), io.StringIO()
    logs.configure("text", stream=second)
    logging.getLogger("dragoman").info("once")
    assert json.loads(first.getvalue())["message"] == "once" and not second.getvalue()
