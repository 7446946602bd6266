"""A gateway runs the same on every store: in memory, on a file and on PostgreSQL."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import client, hosting, serving
from harness.waiting import eventually, within

from dragoman.config import load_settings
from dragoman.errors import InsufficientCredits, StoreUnavailable
from dragoman.gateway.app import gateway_app, order_rules_of
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust.trust import Trust
from dragoman.model.identity import LOCAL, Principal, Scope
from dragoman.model.money import MICRO
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.stores.memory.gateway import MemoryGatewayStore
from tests.gateway.gateway_site import GatewaySite, workshop

ANN = Principal.read("ann")


def app_on(location: str, **settings: Any) -> App:
    chosen = load_settings({}, store=location, forward_patience=10.0, **settings)
    # The settings do not give a gateway a store that is lost with the process.
    store = MemoryGatewayStore(order_rules_of(chosen)) if location == "memory:" else None
    return gateway_app(settings=chosen, is_local=True, store=store)


@asynccontextmanager
async def gateway_on(location: str, **settings: Any) -> AsyncGenerator[GatewaySite]:
    app = app_on(location, **settings)
    async with hosting(app) as url, client(url) as http:
        yield GatewaySite(url, http, app)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run where nothing is, so that a file would be seen."""
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)
    return folder


async def test_a_gateway_registers_forwards_charges_and_rates(
    location: str, empty_folder: Path
) -> None:
    async with serving(workshop()) as upstream, gateway_on(location) as site:
        agent = await site.register(upstream.url, "ann", price=10 * MICRO)
        gateway = site.gateway
        before = await gateway.ledger.balance(LOCAL)
        async with site.client(agent) as caller:
            answer = await within(caller.send("hello"))
        assert answer.text == "echo: hello" and answer.task is not None
        order = await gateway.ledger.store.order_in(Scope("gateway"), answer.task.id)
        assert order is not None and (order.agent, order.charged) == (agent.id, 10 * MICRO)
        after = await gateway.ledger.balance(LOCAL)
        assert before.total - after.total == 10 * MICRO and after.held == 0
        assert (await gateway.ledger.balance(ANN)).total > before.total
        assert (await gateway.ledger.store.verify()).is_whole
        # Trust follows what ended, and what the requester says of it.
        await gateway.trust.rate(agent.id, TaskReference(answer.task.id), LOCAL, 5)
        await within(gateway.trust.digest())
        events, total = await gateway.trust.history(agent.id)
        assert total == 2 and {event["eventType"] for event in events} >= {"task_completed"}
    assert not list(empty_folder.iterdir())


async def test_a_task_that_cannot_be_paid_is_refused(location: str) -> None:
    async with serving(workshop()) as upstream, gateway_on(location, initial_credits="1") as site:
        agent = await site.register(upstream.url, "ann", price=10 * MICRO)
        async with site.client(agent) as caller:
            with pytest.raises(InsufficientCredits):
                await within(caller.send("hello"))
        assert (await site.gateway.ledger.balance(LOCAL)).held == 0


async def test_a_workflow_runs(location: str) -> None:
    async with serving(workshop()) as upstream, gateway_on(location) as site:
        agent = await site.register(upstream.url)
        workflows = site.gateway.workflows
        steps = [
            {"name": "a", "agentId": agent.id, "skillId": "echo"},
            {"name": "b", "agentId": agent.id, "skillId": "echo", "dependsOn": [0]},
        ]
        made = await within(workflows.create(LOCAL, {"name": "Trip", "steps": steps}))
        begun = await within(workflows.execute(LOCAL, made.id))
        assert begun is not None

        async def is_over() -> bool:
            run = await workflows.run(LOCAL, begun.id)
            return run is not None and run.status == "completed"

        await eventually(is_over)
        found = await workflows.get(LOCAL, made.id)
        assert found is not None and [run.id for run in found.runs] == [begun.id]


async def test_what_was_observed_of_an_agent_stays_when_it_comes_back(
    location: str,
) -> None:
    async with serving(workshop()) as upstream, gateway_on(location) as site:
        registry = site.gateway.registry
        unused = await site.register(upstream.url, "ann")
        await registry.remove(unused.id, ANN)
        agent = await site.register(upstream.url, "ann")
        assert agent.id != unused.id
        async with site.client(agent) as caller:
            answer = await within(caller.send("hello"))
        assert answer.task is not None
        assert answer.task.status.state is TaskState.COMPLETED
        await registry.remove(agent.id, ANN)
        assert (await site.register(upstream.url, "ann")).id == agent.id


async def test_a_gateway_that_cannot_open_says_why(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that the parts are missing which were not made."""

    async def fails(_: Trust, **_more: object) -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(Trust, "open", fails)
    with pytest.raises(StoreUnavailable, match="the database is away"):
        await app_on(location).start()
