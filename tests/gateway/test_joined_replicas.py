"""An agent that dialled out is connected to one replica of a gateway, and all of them reach it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from harness.serving import client, hosting
from harness.waiting import eventually, within

from dragoman import Agent, Client, TaskState
from dragoman.config import load_settings
from dragoman.gateway import joined_agents
from dragoman.gateway.app import gateway_app
from dragoman.gateway.registry.registered import TunnelEnd
from dragoman.gateway.sibling_tunnels import PATH, PROOF_HEADER, SiblingTunnels
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.test_joined_agents import cut, joined, skill

pytestmark = pytest.mark.anyio
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@asynccontextmanager
async def replicas(location: str, count: int) -> AsyncGenerator[list[GatewaySite]]:
    async with AsyncExitStack() as opened:
        sites: list[GatewaySite] = []
        for _ in range(count):
            settings = load_settings({}, store=location, forward_patience=10.0)
            app = gateway_app(settings=settings, is_local=True)
            url = await opened.enter_async_context(hosting(app, is_ours=True))
            await app.listening([url])
            http = await opened.enter_async_context(client(url))
            sites.append(GatewaySite(url, http, app))
        yield sites


async def at(site: GatewaySite, url: str) -> str:
    """Return the address of an agent at another replica, once that one knows where it is."""
    name = url.rpartition("/")[2]

    def is_known() -> bool:
        agent = site.gateway.registry.get(name)
        return agent is not None and bool(agent.tunnels)

    await eventually(is_known)
    return f"{site.url}/a2a/{name}"


async def test_every_replica_reaches_an_agent_that_is_connected_to_one(database: str) -> None:
    text = "0123456789abcdef" * 40_000
    async with replicas(database, 3) as (first, *others), joined(first) as url:
        for site in others:
            async with Client(await at(site, url)) as caller:
                assert (await within(caller.send("hello"))).text == "echo: hello"
                numbers = {"to": 30}
                chunks = [
                    part async for part in caller.stream_text(numbers, metadata=skill("count"))
                ]
                assert "".join(chunks) == "".join(f"{n} " for n in range(1, 31))
                assert (await within(caller.send(text))).text == f"echo: {text}"
                asked = await within(caller.send({"what": "tea"}, metadata=skill("order")))
                assert asked.state is TaskState.INPUT_REQUIRED
                answered = await within(caller.send("Rome", task_id=asked.task_id))
                assert answered.text == "tea to Rome"
            assert len(site.gateway.joined) == 0, "the agent did not connect there"


async def test_a_cut_of_the_tunnel_costs_a_caller_at_another_replica_no_event(
    database: str,
) -> None:
    agent, steps = Agent("Counter", "Counts."), asyncio.Semaphore(0)

    @agent.skill(default=True)
    async def count(text: str) -> AsyncIterator[str]:
        """Counts as it is told."""
        for number in range(4):
            await steps.acquire()
            yield f"{number} "

    async with replicas(database, 2) as (one, two), joined(one, agent) as url:
        seen: list[str] = []

        async def read() -> None:
            async with Client(await at(two, url)) as caller:
                async for text in caller.stream_text("go"):
                    seen.append(text)

        reading = asyncio.create_task(read())
        for number in range(4):
            steps.release()
            await eventually(lambda n=number: f"{n} " in "".join(seen))
            # It may be looking for a way to the other replica too.
            assert cut(one) >= 1
            await eventually(lambda: len(one.gateway.joined) >= 1)
        await within(reading)
        assert "".join(seen) == "0 1 2 3 "


async def test_an_agent_that_moves_to_another_replica_is_found_there(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_agents, "_DEPARTED_AFTER", 0.1)
    store = str(tmp_path / "agent.db")
    async with replicas(database, 3) as (one, two, three):
        async with joined(one, store=store) as url, Client(await at(three, url)) as caller:
            assert (await within(caller.send("a"))).text == "echo: a"
        async with joined(two, store=store) as url, Client(await at(three, url)) as caller:
            assert (await within(caller.send("b"))).text == "echo: b"
        # Whoever asks the one that it left is not told of it for ever.
        name = url.rpartition("/")[2]
        async with joined(two, store=store):

            def is_forgotten() -> bool:
                agent = three.gateway.registry.get(name)
                workers = [] if agent is None else [end.worker for end in agent.tunnels]
                return workers == [two.gateway.store.worker]

            await eventually(is_forgotten)


async def test_what_is_being_said_of_an_agent_that_left_is_not_said_to_a_store_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_agents, "_DEPARTED_AFTER", 0.0)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def set_tunnels(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with gateway(tmp_path, is_ours=True) as site:
        async with joined(site):
            monkeypatch.setattr(site.gateway.registry, "set_tunnels", set_tunnels)
        await within(begun.wait())
    assert ended.is_set()


async def test_nobody_but_a_process_of_the_same_store_is_led_into_a_tunnel(database: str) -> None:
    async with replicas(database, 2) as (one, two), joined(one) as url:
        await at(two, url)
        (agent,) = two.gateway.registry.all()
        (end,) = agent.tunnels
        good = proof(two.gateway.joined.siblings, end, int(time.time()))
        other = proof(two.gateway.joined.siblings, end, int(time.time()) - 3600)
        wrong = proof(
            two.gateway.joined.siblings, TunnelEnd(end.host, 99, end.url), int(time.time())
        )
        shown: list[tuple[str, str]] = [
            (end.host, ""),
            (end.host, "1.00"),
            (end.host, f"{'9' * 400}.00"),
            # Its last digit is another one.
            (end.host, good[:-1] + ("1" if good.endswith("0") else "0")),
            (end.host, other),
            (end.host, wrong),
            (f"x{end.host}", good),
            ("", good),
        ]
        for host, header in shown:
            headers = UPGRADE | ({PROOF_HEADER: header} if header else {})
            answer = await one.http.get(f"{PATH}{host}", headers=headers)
            assert (answer.status_code, answer.content) == (404, b""), (host, header)
        # Without an upgrade there is nothing, whatever is shown.
        answer = await one.http.get(f"{PATH}{end.host}", headers={PROOF_HEADER: good})
        assert answer.status_code == 404


def proof(siblings: SiblingTunnels, end: TunnelEnd, at: int) -> str:
    return siblings._proof(end.host, end.worker, at)  # pyright: ignore[reportPrivateUsage]  # what only a sibling can make
