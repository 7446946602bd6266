"""One line of log for each task that rests and each refused login, however many there are."""

import logging
import re
from pathlib import Path

import pytest
from harness.serving import serving
from harness.waiting import eventually

from dragoman import Agent, Turn
from dragoman.engine import log
from dragoman.model.task import TaskState
from dragoman.telemetry import page
from dragoman.telemetry.activity import MOST, Activity
from tests.gateway.gateway_site import Restartable, gateway

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


async def test_a_question_in_the_millisecond_of_another_status_has_its_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    activity = Activity()
    activity.on = True
    monkeypatch.setattr(log, "activity", activity)
    monkeypatch.setattr(log.TaskLog, "now", lambda _: AT)
    agent = Agent("Asks", "Asks.")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        await turn.say("One moment.")
        await turn.ask("What?")
        await turn.say("Thank you.")
        return text

    async with serving(agent) as site:
        waiting = await site.send("x")
        await site.send("that", taskId=waiting["id"])
    activity.flush()
    words = [line.split(" after")[0] for line in caplog.messages if line.startswith("task ")]
    assert words == ["task input-required", "task completed"]


async def test_a_forwarded_task_is_logged_and_counted_under_the_name_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    activity = Activity()
    activity.on = True
    monkeypatch.setattr(log, "activity", activity)
    agent = Agent("Weather", "Tells the weather.")

    @agent.skill
    async def forecast(city: str) -> str:
        return f"Sunny in {city}"

    def turns(name: str) -> int:
        found = re.search(rf'turn_seconds_count{{agent="{name}"}} (\d+)', page.render().decode())
        return int(found[1]) if found else 0

    before = turns("weather")
    async with gateway(tmp_path) as site, Restartable(agent) as upstream:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            await client.send("Oslo")
        # The agent's own, and the gateway's.
        await eventually(lambda: turns("weather") == before + 2)
        figures = page.render().decode()
    activity.flush()
    agents = {line.__dict__["agent"] for line in caplog.records if "completed" in line.message}
    assert agents == {"weather"}
    assert 'dragoman_tasks_ended_total{agent="weather"' in figures
    assert registered.id not in figures
