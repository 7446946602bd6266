"""Agents in processes that are stopped: they are silent, and their connections stay open."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.processes import running
from harness.serving import V1, Site, client, message
from harness.waiting import eventually, within

from dragoman.client.agent_connection import AgentConnection
from dragoman.testing.processes import ServerProcess
from tests.gateway.delivery.silence import passed, state, text_of, words
from tests.gateway.gateway_site import GatewaySite, gateway

# Seconds; a process that is not stopped answers within them also on a busy machine.
PATIENCE = 3.0
SHORT = {"forward_patience": PATIENCE, "forward_quiet": 0.3, "forward_timeout": PATIENCE}
SILENT = f"The agent could not be reached. No sign of life of the agent for {PATIENCE:g} s."

AGENT = '''
import asyncio, os, pathlib
from dragoman import Agent, Turn

agent = Agent("Frozen", "Works until a file is there.")

@agent.skill
async def work(text: str, turn: Turn) -> None:
    """Works."""
    async with turn.artifact(name="work") as artifact:
        await artifact.write(f"{os.environ['NAME']} ")
        while not pathlib.Path(text).exists():
            await asyncio.sleep(0.02)
        await artifact.write("done")
'''


@contextmanager
def agent(folder: Path, name: str, **env: str) -> Generator[ServerProcess]:
    """Serve an agent in a process of its own."""
    (folder / "frozen.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "memory:")
    with running("serve", "frozen.py", *options, cwd=folder, env={"NAME": name, **env}) as child:
        child.ready()
        try:
            yield child
        finally:
            child.process.send_signal(signal.SIGCONT)


def freeze(child: ServerProcess) -> None:
    child.process.send_signal(signal.SIGSTOP)


async def begun(site: GatewaySite, text: str, **metadata: Any) -> str:
    """Give a task to an agent; return its id once the agent has shown something of it."""
    body = {
        "message": message(text),
        "configuration": {"returnImmediately": True},
        "metadata": metadata,
    }
    made = (await site.call("SendMessage", body))["task"]["id"]
    await site.task_when(made, lambda task: task.get("artifacts"))
    return made


async def test_a_task_of_a_frozen_agent_fails_and_says_why(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
            freeze(one)
            found = await site.rested(made)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert words(found) == SILENT


async def test_a_frozen_replica_s_task_is_done_by_another(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one, agent(tmp_path, "two") as two:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="both", replicas=[two.url], repeatable=True)
            made = await begun(site, str(tmp_path / "gate"), agentId="both")
            shown = text_of(await site.call("GetTask", {"id": made}))
            child, other = (one, "two") if shown == "one " else (two, "one")
            freeze(child)
            (tmp_path / "gate").touch()
            found = await site.rested(made)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(found) == f"{other} done"


async def test_another_agent_does_what_a_frozen_one_had(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one, agent(tmp_path, "two") as two:
        async with gateway(tmp_path, **SHORT) as site:
            first = await site.register(one.url, name="one", repeatable=True)
            await site.register(two.url, name="two", repeatable=True)
            site.gateway.trust._scores[first.id] = 90
            made = await begun(site, str(tmp_path / "gate"), skillId="work")
            freeze(one)
            (tmp_path / "gate").touch()
            found = await site.rested(made)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(found) == "two done"


async def test_an_agent_that_thaws_in_time_goes_on_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    answer_once = AgentConnection.answer_once

    async def noted(self: AgentConnection, operation: Any) -> Any:
        asked.set()
        return await answer_once(self, operation)

    monkeypatch.setattr(AgentConnection, "answer_once", noted)
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, forward_patience=60.0, forward_quiet=0.2) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
            freeze(one)
            asked.clear()
            await within(asked.wait())
            one.process.send_signal(signal.SIGCONT)
            (tmp_path / "gate").touch()
            found = await site.rested(made)
    assert text_of(found) == "one done"


async def test_the_clock_runs_again_when_the_gateway_starts_again(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
        freeze(one)
        async with gateway(tmp_path, **SHORT) as site:
            found = await site.rested(made)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert words(found) == SILENT


async def test_an_agent_that_has_nothing_to_say_after_a_restart_of_the_gateway_keeps_its_task(
    tmp_path: Path,
) -> None:
    """It is silent for longer than our patience, and lives."""
    env = {"DRAGOMAN_KEEPALIVE": "0.1"}
    with agent(tmp_path, "one", **env) as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
        async with gateway(tmp_path, **SHORT) as site:
            await passed(1.5 * PATIENCE)
            assert (await state(site, made)) == "TASK_STATE_WORKING"
            (tmp_path / "gate").touch()
            assert text_of(await site.rested(made)) == "one done"


@pytest.mark.parametrize("quorum", [1, 2])
async def test_a_race_goes_on_without_a_frozen_agent(tmp_path: Path, quorum: int) -> None:
    with agent(tmp_path, "same") as one, agent(tmp_path, "same") as two:
        async with gateway(tmp_path, **SHORT) as site:
            for name, child in (("one", one), ("two", two)):
                await site.register(child.url, name=name, repeatable=True)
            body = {
                "message": message(str(tmp_path / "gate")),
                "configuration": {"returnImmediately": True},
                "metadata": {"skillId": "work", "race": 2, "quorum": quorum},
            }
            made = (await site.call("SendMessage", body))["task"]["id"]
            for child in (one, two):
                await working(child)
            freeze(one)
            if quorum == 1:
                (tmp_path / "gate").touch()
            else:
                freeze(two)
            found = await site.rested(made)
    if quorum == 1:
        assert text_of(found) == "same done"
    else:
        assert found["status"]["state"] == "TASK_STATE_FAILED"


async def working(child: ServerProcess) -> None:
    """Wait until a process has a task."""
    async with client(child.url) as http:
        site = Site(child.url, http)

        async def has_one() -> int:
            return (await site.call("ListTasks", {}, headers=V1))["totalSize"]

        await eventually(has_one)
