"""One line of log for each task that rests and each refused login, however many there are."""

import logging

import pytest

from dragoman.telemetry import activity as module
from dragoman.telemetry.activity import MOST, Activity


def test_beyond_some_lines_in_a_second_the_rest_is_told_in_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    activity = Activity()
    for number in range(1000):
        activity.rested("weather", f"t-{number}", "completed", 0.25)
    activity.refused("10.0.0.1", "unknown credentials")
    assert len(caplog.messages) == MOST and caplog.messages[0] == "task completed after 250 ms"
    assert caplog.records[0].__dict__["task_id"] == "t-0"
    now += 1.0
    activity.refused("", "no credentials")
    assert caplog.messages[MOST:] == [
        "and within a second: 980 completed, 1 refused logins",
        "login refused for a local caller: no credentials",
    ]
