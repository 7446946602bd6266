"""Gateways on one database: what is registered at one is used at the other, and a forwarded task is
everybody's."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.processes import running
from harness.serving import Site, client
from harness.waiting import WAIT, eventually, within

from tests.replicas.replicas import AGENT, Replicas, proxying, result, said, state


@pytest.fixture
async def two(tmp_path: Path, database: str) -> AsyncIterator[tuple[Replicas, Site]]:
    """Two gateways, and an agent that is a process of its own."""
    (tmp_path / "shared_agent.py").write_text(AGENT)
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxying())
        serve = ("serve", "shared_agent.py", "--listen", "127.0.0.1:0", "--store", "memory:")
        agent = stack.enter_context(running(*serve, cwd=tmp_path))
        command = ("gateway", "--listen", "127.0.0.1:0", "--store", database)
        both = Replicas(tmp_path, command, {"DRAGOMAN_PUBLIC_URL": proxy.url}, proxy)
        await stack.enter_async_context(contextlib.aclosing(both))
        for server in [both.begin(), both.begin()]:
            await both.join(server)
        url = await asyncio.to_thread(agent.ready)
        yield both, Site(url, await stack.enter_async_context(client(url)))


async def register(gateway: Site, agent: Site) -> Any:
    body = {"endpoint": agent.url, "isDefault": True}
    answer = await gateway.http.post("/api/v1/agents", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def agents(gateway: Site) -> list[str]:
    answer = await gateway.http.get("/api/v1/agents")
    assert answer.status_code == 200, answer.text
    return [agent["id"] for agent in answer.json()["data"]["agents"]]


async def test_what_is_registered_at_one_gateway_is_used_at_the_other(
    two: tuple[Replicas, Site],
) -> None:
    gateways, agent = two
    a, b = gateways.sites
    registered = (await register(a, agent))["id"]

    async def is_known() -> bool:
        return registered in await agents(b)

    await eventually(is_known)
    done = await within(b.send("hello", metadata={"skill": "quick"}))
    assert (state(done), result(done)) == ("completed", "hello")
    assert result(await a.task(done["id"])) == "hello"

    # A question of the agent, forwarded by one, is answered at the other.
    asked = await within(a.send("a colour", metadata={"skill": "asks"}))
    assert state(asked) == "input-required"
    answered = await within(b.send("blue", taskId=asked["id"]))
    assert result(answered) == "a colour, blue"

    answer = await b.http.delete(f"/api/v1/agents/{registered}")
    assert answer.status_code == 204, answer.text

    async def is_gone() -> bool:
        return registered not in await agents(a)

    await eventually(is_gone)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_forwarded_task_goes_on_at_the_other_gateway(
    two: tuple[Replicas, Site], number: int
) -> None:
    gateways, agent = two
    a, b = gateways.sites
    await register(a, agent)
    task = await within(
        a.send("gate", metadata={"skill": "held"}, configuration={"returnImmediately": True})
    )
    # It has begun at the agent.
    await eventually(partial(is_held, agent))
    gateways.servers[0].signal(number)
    await asyncio.to_thread(gateways.servers[0].process.wait, WAIT)
    gateways.open("gate")
    done = await gateways.until(1, task["id"], lambda task: state(task) == "completed")
    # The agent did it once.
    assert len([text for text in said(done) if text.endswith("ends")]) == 1
    assert await agent.total() == 1
    assert state(await b.task(task["id"])) == "completed"


async def is_held(agent: Site) -> bool:
    return any(state(task) == "working" for task in await agent.tasks())
