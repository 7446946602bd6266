"""Agents that cannot stream tell the gateway by posts that there is something to look at."""

import asyncio
from pathlib import Path

import pytest
from harness.serving import serving
from harness.waiting import within

from dragoman import Agent
from dragoman.client.streams import stream
from dragoman.model.identity import Scope
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

            async def registered_for_posts() -> None:
                (task,) = (await upstream.call("ListTasks", {}))["tasks"]
                while True:
                    params = {"taskId": task["id"]}
                    found = await upstream.call("ListTaskPushNotificationConfigs", params)
                    if found.get("configs"):
                        return

            await within(registered_for_posts())
            gate.set()
            assert (await within(sending)).text == "done: x"


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
