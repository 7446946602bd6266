"""One line of log for each task that rests and each refused login, however many there are."""

import logging

import pytest

from dragoman.model.task import TaskState
from dragoman.telemetry.activity import MOST, Activity

# An id of ours has the time in it at which it was made, in milliseconds.
AT = 1_794_957_482_195
MADE = f"{AT >> 16:08x}-{AT & 0xFFFF:04x}-7001-8000-000000000001"


def test_beyond_some_lines_of_a_moment_the_rest_is_told_in_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    activity = Activity()
    for number in range(1000):
        activity.rested("weather", MADE if number else "theirs", TaskState.COMPLETED, AT + 90_000)
    activity.refused("10.0.0.1", "unknown credentials")
    assert not caplog.messages, "the loop writes nothing"
    activity.flush()
    assert len(caplog.messages) == MOST + 1 and caplog.messages[0] == "task completed"
    assert caplog.messages[1] == "task completed after 90.0 s"
    assert caplog.records[1].__dict__["task_id"] == MADE
    assert caplog.messages[-1] == "and in the same moment: 980 completed, 1 refused logins"
    activity.refused("", "no credentials")
    activity.flush()
    assert caplog.messages[MOST + 1 :] == ["login refused for a local caller: no credentials"]
