"""A task that another agent took over, when the gateway goes away after that."""

import asyncio
from pathlib import Path

import pytest
from harness.serving import message, serving
from harness.waiting import eventually

from dragoman import Agent, Turn
from tests.gateway.gateway_site import GatewaySite, Restartable, gateway, log


def teller(gate: asyncio.Event, runs: list[str], *, is_quick: bool = True) -> Agent:
    """Return an agent that says two things, before and after a gate; or both after it."""
    agent = Agent("Teller", "Waits for a gate.")

    @agent.skill
    async def tell(text: str, turn: Turn) -> None:
        runs.append(text)
        if not is_quick:
            await gate.wait()
        async with turn.artifact(name="tale") as artifact:
            await artifact.write(f"{text}: before, ")
            await gate.wait()
            await artifact.write("after")

    return agent


async def moved(site: GatewaySite, told: int) -> str:
    """Wait until a task was given to a second agent and so many chunks are recorded; return it."""

    async def found() -> str:
        for task in (await site.call("ListTasks", {}))["tasks"]:
            bodies = await log(site, task["id"])
            chunks = sum(body.startswith(b'{"artifactUpdate"') for body in bodies)
            is_delivered = any(b'"moves":1' in body and b"isDelivered" in body for body in bodies)
            if is_delivered and chunks >= told:
                return task["id"]
        return ""

    return await eventually(found)


async def begun(site: GatewaySite, task_id: str) -> None:
    async def is_so() -> bool:
        return any(b"before" in body for body in await log(site, task_id))

    await eventually(is_so)


@pytest.mark.parametrize("is_safe", [True, False], ids=["safe to repeat", "another skill is"])
async def test_a_begun_task_is_moved_if_its_skill_is_safe_to_repeat(
    tmp_path: Path, is_safe: bool
) -> None:
    gate, runs = asyncio.Event(), list[str]()

    def two_skills(never: asyncio.Event) -> Agent:
        agent = teller(never, runs)

        @agent.skill
        async def other(text: str) -> str:
            return text

        return agent

    first = Restartable(two_skills(asyncio.Event()))
    await first.start()
    gate.set()
    said = {"repeatable_skills": ["tell" if is_safe else "other"]}
    async with (
        serving(two_skills(gate)) as second,
        gateway(tmp_path, forward_patience=1.0) as site,
    ):
        one = await site.register(first.url, name="first", **said)
        await site.register(second.url, name="second", **said)
        site.gateway.trust._scores[one.id] = 90
        params = {"message": message("x"), "metadata": {"skillId": "tell"}}
        params["configuration"] = {"returnImmediately": True}
        task_id = (await site.call("SendMessage", params))["task"]["id"]
        await begun(site, task_id)
        await first.stop()
        task = await site.rested(task_id)
    expected = ("TASK_STATE_COMPLETED", 2) if is_safe else ("TASK_STATE_FAILED", 1)
    assert (task["status"]["state"], len(runs)) == expected


@pytest.mark.parametrize("is_quick", [True, False], ids=["told again in part", "not told again"])
async def test_what_was_begun_anew_is_there_once_after_a_restart(
    tmp_path: Path, is_quick: bool
) -> None:
    never, gate = asyncio.Event(), asyncio.Event()
    runs: list[str] = []
    first = Restartable(teller(never, runs))
    await first.start()
    async with serving(teller(gate, runs, is_quick=is_quick)) as second:
        async with gateway(tmp_path, forward_patience=1.0) as site:
            one = await site.register(first.url, name="first", repeatable=True)
            await site.register(second.url, name="second", repeatable=True)
            site.gateway.trust._scores[one.id] = 90
            params = {"message": message("x"), "metadata": {"skillId": "tell"}}
            params["configuration"] = {"returnImmediately": True}
            task_id = (await site.call("SendMessage", params))["task"]["id"]
            await begun(site, task_id)
            await first.stop()
            assert await moved(site, 2 if is_quick else 1) == task_id
        gate.set()
        async with gateway(tmp_path) as site:
            task = await site.rested(task_id)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    (artifact,) = task["artifacts"]
    assert "".join(part["text"] for part in artifact["parts"]) == "x: before, after"
    assert len(runs) == 2
