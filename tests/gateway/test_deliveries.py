"""What a gateway gives to an agent of its own process is two tasks; lists can have it once."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.waiting import eventually

from dragoman import Agent, Turn
from dragoman.model.request_metadata import HOPS
from dragoman.server.operator.tasks import deliveries
from dragoman.server.served_agents import ServedAgents
from tests.gateway.gateway_site import gateway
from tests.gateway.guarded_site import ALICE, OPERATOR, guarded

API = "/api/v1/console"


def clerk() -> Agent:
    agent = Agent("Clerk", "does paperwork")

    @agent.skill
    async def hello(text: str, turn: Turn) -> str:
        return f"hello {text}"

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask("Which one?")).text

    @agent.skill
    async def wait(text: str, turn: Turn) -> None:
        await asyncio.Event().wait()

    return agent


async def listed(http: httpx.AsyncClient, limit: int = 50, **query: Any) -> list[tuple[str, str]]:
    """Return the agent and the words of all tasks of a list, page by page."""
    found: list[tuple[str, str]] = []
    token = ""
    while True:
        answer = await http.get(
            f"{API}/tasks", params={"pageToken": token, "limit": limit, **query}
        )
        assert answer.status_code == 200, answer.text
        found += [(one["agent"], one["words"]) for one in answer.json()["items"]]
        token = answer.json()["nextPageToken"]
        if not token:
            return found


async def test_a_list_has_what_a_gateway_delivers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path, clerk()) as site:
        agent = await site.register(f"{site.url}/agents/clerk")
        async with site.client(agent) as asked:
            for number in range(4):
                await asked.send(f"x{number}")
        await say(site.http, "/agents/clerk", "directly")
        whole = await listed(site.http)
        assert len(whole) == 9 and await listed(site.http, deliveries="show") == whole
        once = [("clerk", "directly"), *(("gateway", f"x{number}") for number in (3, 2, 1, 0))]
        for limit in (1, 2, 3, 50):
            assert await listed(site.http, limit, deliveries="hide") == once
        # A page ends when its time is over; the next one goes on there.
        monkeypatch.setattr(deliveries.ReadBudget, "is_spent", True)
        assert await listed(site.http, 1, deliveries="hide") == once
        assert await listed(site.http, deliveries="hide", text="x2") == [("gateway", "x2")]
        assert await listed(site.http, deliveries="hide", agent="clerk") == once[:1]
        top = (await site.http.get(f"{API}/top")).json()
        assert top["tasks"] == 5 and [one["tasks"] for one in top["agents"]] == [4, 1]


async def say(
    http: httpx.AsyncClient, path: str, text: str, *, token: str = "", **metadata: Any
) -> None:
    """Send a message, and wait for the end of its task."""
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    sent = await http.post(
        f"{path}/message:send",
        json={"message": message, "metadata": metadata},
        headers={"A2A-Version": "1.0"} | ({"Authorization": f"Bearer {token}"} if token else {}),
    )
    assert sent.status_code == 200, sent.text


async def test_samples_count_what_a_gateway_delivers_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, clerk()) as site:
        agent = await site.register(f"{site.url}/agents/clerk")
        (part,) = [one for one in site.app.site.parts if isinstance(one, ServedAgents)]
        live = part.operators.live
        await live.take_sample(time.time_ns() // 1_000_000)
        path = f"/a2a/{agent.name}"
        await say(site.http, path, "x")
        await say(site.http, path, "y", skillId="ask")
        message = {"messageId": "z", "role": "ROLE_USER", "parts": [{"text": "z"}]}
        body: dict[str, Any] = {"message": message, "metadata": {"skillId": "wait"}}
        body["configuration"] = {"returnImmediately": True}
        await site.http.post(f"{path}/message:send", json=body, headers={"A2A-Version": "1.0"})
        # Both of its tasks work.
        await eventually(lambda: _are(site.http, {"state": "TASK_STATE_WORKING"}, 2))
        await say(site.http, "/agents/clerk", "directly")
        await live.take_sample(time.time_ns() // 1_000_000)
        found = live.ring.samples[-1]
        assert (found.started, found.ended, found.failed) == (4, 2, 0)
        assert (found.running, found.waiting) == (1, 1)


async def _are(http: httpx.AsyncClient, query: dict[str, str], count: int) -> bool:
    return len(await listed(http, **query)) == count


async def test_a_caller_who_claims_to_be_a_gateway_is_listed(tmp_path: Path) -> None:
    async with guarded(tmp_path, clerk()) as site:
        for part in site.app.site.parts:
            # The gateway registers the agents of its process, and proves to them who it is.
            await part.listening([site.url])
        forged = {HOPS: [site.gateway.id]}
        await say(site.http, "/agents/clerk", "forged", token=ALICE, **forged)
        await say(site.http, "/a2a/clerk", "delivered", token=OPERATOR)
        site.http.headers["Authorization"] = f"Bearer {OPERATOR}"
        shown = await listed(site.http, deliveries="hide")
        assert shown == [("gateway", "delivered"), ("clerk", "forged")]
        assert len(await listed(site.http)) == 3


async def test_another_gateways_deliveries_are_listed(tmp_path: Path) -> None:
    """They are in this store once."""
    (tmp_path / "first").mkdir()
    async with gateway(tmp_path / "first") as first, gateway(tmp_path, clerk()) as second:
        agent = await first.register(f"{second.url}/agents/clerk")
        async with first.client(agent) as asked:
            await asked.send("x")
        assert await listed(second.http, deliveries="hide") == [("clerk", "x")]
        assert await listed(first.http, deliveries="hide") == [("gateway", "x")]
