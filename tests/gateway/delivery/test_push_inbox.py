"""Agents that cannot stream tell the gateway by posts that there is something to look at."""

import asyncio
from pathlib import Path

import pytest
from harness.serving import Site, serving
from harness.waiting import within

from dragoman import Agent
from dragoman.client.streams import stream
from dragoman.model.identity import Scope
from dragoman.testing.servers import NatsServer
from tests.gateway.gateway_site import gateway


async def test_a_post_spares_the_wait_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_EVERY", 600.0)
    gate, asked = asyncio.Event(), asyncio.Event()
    agent = Agent("Quiet", "Cannot stream.", streaming=False)

    @agent.skill
    async def work(text: str) -> str:
        asked.set()
        await gate.wait()
        return f"done: {text}"

    async with serving(agent, allow_private=True) as upstream, gateway(tmp_path) as site:
        site.gateway.push_inbox.base = site.url
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            sending = asyncio.create_task(client.send("x"))
            await within(asked.wait())
            await within(has_receiver(upstream))
            gate.set()
            assert (await within(sending)).text == "done: x"


@pytest.mark.parametrize("bus", ["notify", "nats"])
async def test_a_post_that_reaches_another_replica_wakes_the_one_that_carries_the_task(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: str,
    bus: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "POLL_EVERY", 600.0)
    gate, asked = asyncio.Event(), asyncio.Event()
    agent = Agent("Quiet", "Cannot stream.", streaming=False)

    @agent.skill
    async def work(text: str) -> str:
        asked.set()
        await gate.wait()
        return f"done: {text}"

    settings = {"store": database} | ({"bus": nats_url(request, tmp_path)} if bus == "nats" else {})
    async with (
        serving(agent, allow_private=True) as upstream,
        gateway(tmp_path, **settings) as one,
        gateway(tmp_path, **settings) as other,
    ):
        registered = await one.register(upstream.url)
        # Agents are told the address of a proxy, which passes on to any replica: here to the other.
        one.gateway.push_inbox.base = other.url
        async with one.client(registered) as client:
            sending = asyncio.create_task(client.send("x"))
            await within(asked.wait())
            await within(has_receiver(upstream))
            gate.set()
            assert (await within(sending)).text == "done: x"


def nats_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the address of a NATS server that ends with the test."""
    server = NatsServer(folder).start()
    request.addfinalizer(server.stop)
    return server.url


async def has_receiver(upstream: Site) -> None:
    """Return when the agent knows where to post news of its one task."""
    (task,) = (await upstream.call("ListTasks", {}))["tasks"]
    params = {"taskId": task["id"]}
    while not (await upstream.call("ListTaskPushNotificationConfigs", params)).get("configs"):
        pass


@pytest.mark.parametrize("place", ["t", "t/", "t/00", "", "t/" + "0" * 32])
async def test_nobody_wakes_a_task_without_its_address(tmp_path: Path, place: str) -> None:
    async with gateway(tmp_path) as site:
        answer = await site.http.post(f"/api/v1/hooks/{place}", content=b"{}")
        assert answer.status_code == 404
        assert (await site.http.get(f"/api/v1/hooks/{place}")).status_code == 405


async def test_a_task_s_own_address_is_taken_by_whoever_has_it(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        hooks = site.gateway.push_inbox
        hooks.base = site.url
        alice, bob = Scope("gateway", "", "alice"), Scope("gateway", "", "bob")
        with hooks.expecting(alice, "t") as pause, hooks.expecting(bob, "t") as other:
            waiting = asyncio.create_task(pause(600.0))
            others = asyncio.create_task(other(600.0))
            answer = await site.http.post(hooks.url(alice, "t"), content=b"anything at all")
            assert answer.status_code == 204
            await within(waiting)
            # Somebody else's task of the same id is not woken.
            assert not others.done()
            await site.http.post(hooks.url(bob, "t"))
            await within(others)
