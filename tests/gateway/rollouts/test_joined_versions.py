"""Versions of an agent that dial out: they are tried and promoted as those at an address."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import serving
from harness.waiting import eventually, within

from dragoman import Client
from dragoman.config import load_settings
from dragoman.errors import PermissionDenied
from dragoman.gateway import joined_agents
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.gateway.rollouts.definition import NewRollout
from dragoman.gateway.rollouts.rollouts import read
from dragoman.model.identity import LOCAL
from dragoman.server.process.join_app import join_agent
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.guarded_site import ALICE, ask, guarded
from tests.gateway.rollouts.greeters import Greeter
from tests.gateway.test_joined_replicas import at, replicas

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def joined(
    site: GatewaySite, version: Greeter, name: str, store: str = "memory:", **more: Any
) -> AsyncGenerator[str]:
    settings = load_settings({}, store=store)
    async with join_agent(version.agent, site.url, name=name, settings=settings, **more) as url:
        yield url


def known(site: GatewaySite, name: str) -> Registered:
    found = site.gateway.registry.get(name)
    assert found is not None
    return found


async def begin(site: GatewaySite, agent: Registered, candidate: Registered, **more: Any) -> str:
    """Begin a rollout of all tasks; return its id."""
    await site.gateway.registry.update(
        agent.id, AgentChanges(repeatable=True), agent.owner, operator=True
    )
    said = NewRollout(agent_id=agent.id, candidate_id=candidate.id, share=1.0, **more)
    return (await site.gateway.rollouts.create(agent.owner, said)).id


async def is_judged(site: GatewaySite, id: str) -> bool:
    await site.gateway.trust.digest()
    await site.gateway.rollouts.sweep()
    row = await site.gateway.rollouts.one(id, None)
    return row is not None and read(row).figures.agreed == 1


@pytest.mark.parametrize("mode", ["shadow", "canary"])
async def test_a_version_that_dials_out_is_tried_and_takes_the_place_of_another(
    tmp_path: Path, mode: Any
) -> None:
    old, new = Greeter("Greeter"), Greeter("Greeter Two")
    old_store = str(tmp_path / "old.db")
    async with gateway(tmp_path, is_ours=True) as site, joined(site, new, "greeter-2"):
        async with joined(site, old, "greeter", old_store) as url, Client(url) as client:
            agent, candidate = known(site, "greeter"), known(site, "greeter-2")
            id = await begin(site, agent, candidate, mode=mode)
            assert (await within(client.send("Ada"))).text.startswith("Good day to you, Ada")
            await eventually(lambda: is_judged(site, id))
            assert (old.told, new.told) == (["Ada"] if mode == "shadow" else [], ["Ada"])
            row = await site.gateway.rollouts.promote(id, None, "seen enough")
            assert row is not None and read(row).state == "promoted"
            await within(client.send("Bob"))
            assert new.told[-1] == "Bob" and "Bob" not in old.told
        # The old version does not come back by itself, as itself or as yet another agent.
        with pytest.raises(PermissionDenied, match="in its place as greeter; join under another"):
            async with joined(site, old, "greeter", old_store):
                pass
        assert {one.name for one in site.gateway.registry.all()} == {"greeter", "greeter-2"}
        assert known(site, "greeter").status == "online"
        # A second process of the new version shares the load of both.
        async with joined(site, new, "greeter-2") as second:
            assert second == url
            for name in ("greeter", "greeter-2"):
                assert len(known(site, name).replicas) == 1
        async with joined(site, old, "greeter-old", old_store) as back, Client(back) as client:
            await within(client.send("Eve"))
            assert old.told[-1] == "Eve"


async def test_a_promoted_version_is_found_after_its_own_entry_is_gone(tmp_path: Path) -> None:
    old, new = Greeter("Greeter"), Greeter("Greeter Two")
    new_store = str(tmp_path / "new.db")
    async with gateway(tmp_path, is_ours=True) as site, joined(site, old, "greeter") as url:
        async with joined(site, new, "greeter-2", new_store):
            candidate = known(site, "greeter-2")
            id = await begin(site, known(site, "greeter"), candidate)
            await site.gateway.rollouts.promote(id, None, "")
            await site.gateway.registry.remove(candidate.id, candidate.owner)
        async with joined(site, new, "greeter-2", new_store) as again, Client(url) as client:
            assert again == url
            await within(client.send("Ada"))
            assert new.told == ["Ada"] and not old.told


async def test_versions_at_an_address_and_versions_that_dial_out_replace_each_other(
    tmp_path: Path,
) -> None:
    first, second, third = (Greeter(title) for title in ("Greeter", "Second", "Third"))
    async with (
        gateway(tmp_path, is_ours=True) as site,
        serving(first.agent) as one,
        serving(third.agent) as three,
        joined(site, second, "second"),
    ):
        agent = await site.register(one.url, LOCAL.owner)
        for candidate, version in (
            (known(site, "second"), second),
            (await site.register(three.url, LOCAL.owner), third),
        ):
            id = await begin(site, agent, candidate)
            await site.gateway.rollouts.promote(id, None, "")
            async with Client(f"{site.url}/a2a/greeter") as client:
                await within(client.send("Ada"))
            assert version.told == ["Ada"]
            # Judged by its signs of life only if it sends any.
            now = known(site, "greeter")
            assert now.status == "online"
            assert bool(now.beat_at) == (version is second)
        assert not first.told


async def test_a_key_of_the_new_version_is_for_it_after_it_was_promoted(tmp_path: Path) -> None:
    old, new = Greeter("Greeter"), Greeter("Greeter Two")
    stores = [str(tmp_path / f"{name}.db") for name in ("old", "new")]
    async with guarded(tmp_path, is_ours=True) as site:
        async with (
            joined(site, old, "greeter", stores[0], token=ALICE),
            joined(site, new, "greeter-2", stores[1], token=ALICE),
        ):
            agent, candidate = known(site, "greeter"), known(site, "greeter-2")
            keys: list[str] = []
            for one in (agent, candidate):
                body = {"name": "laptop", "scopes": ["agents:heartbeat"]}
                made = await ask(site, "POST", f"/api/v1/agents/{one.id}/api-keys", ALICE, body)
                keys.append(made.json()["data"]["key"])
            id = await begin(site, agent, candidate)
            await site.gateway.rollouts.promote(id, None, "")
        async with joined(site, new, "greeter-2", stores[1], key=keys[1]) as url:
            assert url.endswith("/a2a/greeter-2")
        # That of the agent is for what is in its place now.
        async with joined(site, new, "greeter-2", stores[1], key=keys[0]) as url:
            assert url.endswith("/a2a/greeter")
        with pytest.raises(PermissionDenied, match="in its place as greeter"):
            async with joined(site, old, "greeter", stores[0], key=keys[0]):
                pass


async def test_every_replica_reaches_a_version_that_was_promoted(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_agents, "_DEPARTED_AFTER", 0.1)
    old, new = Greeter("Greeter"), Greeter("Greeter Two")
    store = str(tmp_path / "new.db")
    async with replicas(database, 2) as (one, two):
        async with joined(one, old, "greeter") as url, joined(one, new, "greeter-2", store):
            id = await begin(one, known(one, "greeter"), known(one, "greeter-2"))
            await one.gateway.rollouts.promote(id, None, "")
            async with Client(await at(two, url)) as caller:
                await eventually(lambda: "greeter-2" in known(two, "greeter").url)
                await within(caller.send("Ada"))
                assert new.told == ["Ada"]
        # Both entries are told where it went, and that it left.
        async with joined(two, new, "greeter-2", store):
            ends = [[two.gateway.store.worker]] * 2

            def workers(site: GatewaySite) -> list[list[int]]:
                agents = (known(site, name) for name in ("greeter", "greeter-2"))
                return [[end.worker for end in agent.tunnels] for agent in agents]

            await eventually(lambda: workers(one) == ends)
            async with Client(f"{one.url}/a2a/greeter") as caller:
                await within(caller.send("Bob"))
                assert new.told == ["Ada", "Bob"]
