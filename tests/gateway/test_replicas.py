"""Two replicas of a gateway on one database: what one finds out or is told, the other acts on."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.serving import client, hosting, serving
from harness.waiting import eventually, within

from dragoman import Agent
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app
from dragoman.gateway.delivery.breaker import CONNECTIONS
from dragoman.gateway.registry.registered import Registered
from dragoman.model.identity import LOCAL, Principal
from dragoman.model.money import MICRO
from dragoman.stores.interface.agents import CircuitRow
from tests.gateway.gateway_site import GatewaySite, workshop
from tests.gateway.guarded_site import ALICE, ask, guarded
from tests.gateway.registry.test_agent_key_doors import mint, registered, status


@asynccontextmanager
async def replica(location: str, *agents: Agent, **settings: Any) -> AsyncGenerator[GatewaySite]:
    chosen = load_settings({}, store=location, forward_patience=10.0, **settings)
    app = gateway_app(*agents, settings=chosen, is_local=True)
    async with hosting(app) as url, client(url) as http:
        await app.listening([url])
        yield GatewaySite(url, http, app)


async def known(site: GatewaySite, id: str) -> Registered:
    """Return an agent once a replica knows it."""
    return await eventually(lambda: site.gateway.registry.get(id))


async def test_agents_and_their_circuits_are_shared(database: str) -> None:
    async with serving(workshop()) as upstream, replica(database) as one, replica(database) as two:
        agent = await one.register(upstream.url)
        there = await known(two, agent.id)
        breaker = one.gateway.upstreams.of(agent).circuits.address(agent.url)
        for _ in range(CONNECTIONS):
            breaker.failed(is_connection=True)
        assert breaker.state == "open"
        found = two.gateway.upstreams.of(there)
        await eventually(lambda: found.is_open(LOCAL))
        assert 0 < found.retry_in(LOCAL) <= 5
        closed = CircuitRow(agent.id, agent.url, None, 0, 0)
        one.gateway.registry.share_circuit(closed)
        await eventually(lambda: not found.is_open(LOCAL))
        # A replica that comes later knows what is open.
        for _ in range(CONNECTIONS):
            found.circuits.address(agent.url).failed(is_connection=True)
        await eventually(lambda: breaker.state == "open")
        async with replica(database) as three:
            later = three.gateway.upstreams.find(agent.id)
            assert later is not None and later.is_open(LOCAL)


async def test_an_agent_that_one_replica_lost_is_offline_for_the_other(database: str) -> None:
    async with replica(database) as one, replica(database) as two:
        async with serving(workshop()) as upstream:
            agent = await one.register(upstream.url)
            assert (await known(two, agent.id)).status == "online"
        for _ in range(3):
            one.gateway.registry.health.missed(agent.id)
        assert (await known(one, agent.id)).status == "offline"
        await eventually(lambda: two.gateway.registry.visible(agent.id, None).status == "offline")


async def test_a_task_is_paid_once_whichever_replica_is_asked(database: str) -> None:
    async with serving(workshop()) as upstream, replica(database) as one, replica(database) as two:
        agent = await one.register(upstream.url, "ann", price=10 * MICRO)
        there = await known(two, agent.id)
        before = await one.gateway.ledger.balance(LOCAL)
        for site, at in ((one, agent), (two, there)):
            async with site.client(at) as caller:
                answer = await within(caller.send("hello", message_id="the-same"))
                assert answer.text == "echo: hello"
        after = await two.gateway.ledger.balance(LOCAL)
        assert before.total - after.total == 10 * MICRO and after.held == 0
        assert (await one.gateway.ledger.balance(Principal.read("ann"))).total > before.total
        assert (await two.gateway.ledger.store.verify()).is_whole


async def test_a_key_of_an_agent_is_good_and_ends_on_both(database: str, tmp_path: Path) -> None:
    async with (
        serving(workshop()) as upstream,
        guarded(tmp_path, store=database) as one,
        guarded(tmp_path, store=database) as two,
    ):
        id = await registered(one, ALICE, upstream.url)
        agent = await known(two, id)
        made = await mint(one, id, ALICE, "tasks:read")
        path = "/api/v1/tasks"
        # At once, by a look of its own.
        assert await status(two, "GET", path, made["key"]) == 200
        ended = await ask(one, "DELETE", f"/api/v1/agents/{agent.id}/api-keys/{made['id']}", ALICE)
        assert ended.status_code in (200, 204), ended.text
        assert await status(one, "GET", path, made["key"]) == 401

        async def is_refused() -> bool:
            return await status(two, "GET", path, made["key"]) == 401

        await eventually(is_refused, 10)


async def test_each_replica_calls_its_own_agents_itself(database: str) -> None:
    """The one that registered them last may be gone."""

    async def answer(site: GatewaySite) -> str:
        agent = await known(site, "workshop")
        async with site.client(agent) as caller:
            return (await within(caller.send("hello"))).text

    async with replica(database, workshop()) as one:
        await known(one, "workshop")
        async with replica(database, workshop()) as two:
            agent = await known(two, "workshop")
            assert agent.url.startswith(two.url), "it came last"
            await eventually(lambda: one.gateway.registry.visible(agent.id, None).url == agent.url)
            assert [await answer(site) for site in (one, two)] == ["echo: hello"] * 2
            assert one.gateway.upstreams.of(agent).urls == [f"{one.url}/agents/workshop"]
        assert await answer(one) == "echo: hello"
        await one.gateway.registry.probe(agent.id, operator=True)
        assert one.gateway.registry.visible(agent.id, None).status == "online"
        # A task that was sent to the other one goes on here.
        upstream = one.gateway.upstreams.of(agent)
        assert upstream.reached_at(agent.url) == f"{one.url}/agents/workshop"
