"""Alive means it answers: whatever it answers, and to whatever. What one caller's messages come to
says nothing of the agent to others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.serving import V1, message
from harness.waiting import eventually, within

from dragoman.gateway.delivery import breaker
from dragoman.gateway.registry import card_source, probes
from dragoman.gateway.registry.registration import AgentChanges, Registration
from dragoman.gateway.registry.registry import Registry
from dragoman.model.identity import LOCAL, Principal
from dragoman.model.task import TaskState
from tests.gateway.gateway_site import gateway
from tests.gateway.guarded_site import ALICE, BOB, OPERATOR, ask, guarded, known, send, settled
from tests.gateway.guarded_site import reply as answered
from tests.gateway.raw_peer import Answer, Asked, card, http, raw_peer
from tests.gateway.registry.plain_agent import CRASH, NONSENSE, POISON, plain_agent
from tests.gateway.registry.registries import Desk, Peer

pytestmark = pytest.mark.anyio
MINUTE = 60_000


def status(registry: Registry, name: str) -> str:
    agent = registry.get(name)
    assert agent is not None
    return agent.status


# Looks


async def test_a_plain_server_without_head_and_card_is_online_and_stays_so(there: Desk) -> None:
    registry = await there.registry(watches=True)
    with plain_agent() as server:
        said = Registration(url=server.url, name="Nexus", dialect="nexus")
        assert (await registry.register(said)).status == "online"
        began, seen = there.clock.now(), set[str]()

        def is_over() -> bool:
            seen.add(status(registry, "nexus"))
            return there.clock.now() - began > 10 * MINUTE

        await there.tick(registry, is_over)
        assert seen == {"online"}
        # It was asked in the way that worked, again and again.
        assert set(server.requests[-5:]) == {"HEAD"}
    await there.tick(registry, lambda: status(registry, "nexus") == "offline")
    assert there.clock.now() - began <= 13 * MINUTE


@pytest.mark.parametrize("code", [200, 301, 401, 404, 405, 429, 500, 501, 502, 503])
async def test_any_answer_is_a_sign_of_life(there: Desk, code: int) -> None:
    def says(name: str, asked: Asked) -> Answer:
        return [http(b"", f"{code} X")]

    registry = await there.registry()
    async with raw_peer(says) as peer:
        url = f"{peer.url}/a"
        agent = await registry.register(Registration(url=url, name="Any", card=card(url)))
        assert (await registry.probe(agent.id)).status == "online"
        assert (await registry.register(Registration(url=url, name="Bare"))).status == "online"


@pytest.mark.parametrize("way", ["HEAD", "GET", "OPTIONS"])
async def test_ways_are_tried_in_turn_and_what_works_is_remembered(there: Desk, way: str) -> None:
    def only(name: str, asked: Asked) -> Answer:
        return [http(b"{}")] if asked.verb == way else ["reset"]

    registry = await there.registry()
    async with raw_peer(only) as peer:
        url = f"{peer.url}/a"
        agent = await registry.register(Registration(url=url, name="Choosy", card=card(url)))
        for _ in range(2):
            await registry.health.check(agent, refresh=False)
            assert status(registry, "choosy") == "online"
        verbs = [asked.verb for _, asked in peer.requests]
        tried = ["HEAD", "GET", "OPTIONS"]
        # A request on a connection of its own is made once.
        assert verbs == [*tried[: tried.index(way) + 1], way]
        if way == "GET":
            assert peer.requests[-1][1].path == "/.well-known/agent-card.json"


async def test_what_worked_once_and_no_longer_does_is_not_clung_to(there: Desk) -> None:
    works = ["HEAD"]

    def some(name: str, asked: Asked) -> Answer:
        return [http(b"{}")] if asked.verb in works else ["reset"]

    registry = await there.registry()
    async with raw_peer(some) as peer:
        url = f"{peer.url}/a"
        agent = await registry.register(Registration(url=url, name="Choosy", card=card(url)))
        await registry.health.check(agent, refresh=False)
        works[:] = ["OPTIONS"]
        await registry.health.check(agent, refresh=False)
        assert status(registry, "choosy") == "online"
        works.clear()
        await registry.health.check(agent, refresh=False)
        assert status(registry, "choosy") == "degraded"


async def test_an_agent_without_a_card_is_there_once_it_accepts_a_connection(there: Desk) -> None:
    def hangs_up(name: str, asked: Asked) -> Answer:
        return ["reset"]

    registry = await there.registry()
    async with raw_peer(hangs_up) as peer:
        bare = await registry.register(Registration(url=f"{peer.url}/a", name="Bare"))
        assert bare.status == "online"
        assert (await registry.probe(bare.id)).status == "online"
        url = f"{peer.url}/b"
        shown = await registry.register(Registration(url=url, name="Shown", card=card(url)))
        await registry.health.check(shown, refresh=False)
        # One that has a card is able to answer.
        assert status(registry, "shown") != "online"


async def test_a_server_that_never_answers_is_not_there_unless_it_has_no_card(
    there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single-threaded server at work on a task answers nobody, and takes connections."""
    monkeypatch.setattr(probes, "PROBE_WITHIN", 1.2)
    monkeypatch.setattr(card_source, "FETCH_WITHIN", 1.0)

    def silent(name: str, asked: Asked) -> Answer:
        return ["hang"]

    registry = await there.registry()
    async with raw_peer(silent) as peer:
        url = f"{peer.url}/a"
        shown = await registry.register(Registration(url=url, name="Shown", card=card(url)))
        await registry.health.check(shown, refresh=False)
        assert status(registry, "shown") == "offline"
        assert "1.2 s" in registry.health.absence(shown.id)
        bare = await registry.register(Registration(url=f"{peer.url}/b", name="Bare", card=None))
        assert bare.status == "online" and registry.health.absence(bare.id) == ""


async def test_why_nobody_was_found_is_remembered_until_somebody_is(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry()
    peer.is_up = False
    agent = await registry.register(Registration(url=peer.url, name="Maps"))
    assert agent.status == "offline" and "refused" in registry.health.absence(agent.id)
    peer.is_up = True
    assert (await registry.probe(agent.id)).status == "online"
    assert registry.health.absence(agent.id) == ""


async def test_an_agent_that_moves_is_met_where_it_is(there: Desk) -> None:
    one, two = await there.peer(name="One"), await there.peer()
    registry = await there.registry()
    agent = await registry.register(Registration(url=one.url))
    two.is_up = False
    away = await registry.update(agent.id, AgentChanges(url=two.url))
    assert away.status == "offline" and "refused" in registry.health.absence(agent.id)
    back = await registry.update(agent.id, AgentChanges(url=one.url))
    assert back.status == "online" and registry.health.absence(agent.id) == ""


# What messages come to


async def test_poison_of_one_caller_ejects_nobody_for_everybody(tmp_path: Path) -> None:
    settings = {"forward_attempts": 3, "forward_patience": 1.0, "forward_timeout": 30.0}
    with plain_agent() as server:
        async with guarded(tmp_path, **settings) as gate:
            agent = await gate.register(server.url, name="Nexus", dialect="nexus")
            path = f"/a2a/{agent.name}"
            for text in (POISON, NONSENSE, CRASH):
                made = await send(gate, ALICE, path, message=message(text))
                assert await settled(gate, ALICE, made["id"]) == "TASK_STATE_FAILED"
            registry, upstream = gate.gateway.registry, gate.gateway.upstreams.of(agent)
            bob, alice = Principal.read("token:bob"), Principal.read("token:alice")
            # As many as open a circuit: alice's alone.
            many = [send(gate, ALICE, path, message=message(POISON)) for _ in range(breaker.LEAST)]
            await asyncio.gather(*many)
            await eventually(lambda: upstream.is_open(alice))
            assert not upstream.is_open(bob)
            refused = await ask(
                gate, "POST", f"{path}/message:send", ALICE, {"message": message("x")}
            )
            assert refused.status_code == 503
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            good = await send(gate, BOB, path, message=message("hello"))
            assert await settled(gate, BOB, good["id"]) == "TASK_STATE_COMPLETED"
            assert status(registry, agent.id) == "online"


async def test_connections_that_nobody_accepts_count_for_everybody(tmp_path: Path) -> None:
    settings = {"forward_attempts": 1, "forward_patience": 1.0}
    async with Peer() as peer, guarded(tmp_path, **settings) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(url, name="Gone", card=card(url))
        peer.is_up = False
        for _ in range(breaker.CONNECTIONS):
            made = await send(gate, ALICE, f"/a2a/{agent.name}")
            assert await settled(gate, ALICE, made["id"]) == "TASK_STATE_FAILED"
        upstream = gate.gateway.upstreams.of(agent)
        assert upstream.is_open(Principal.read("token:bob"))
        await eventually(lambda: status(gate.gateway.registry, agent.id) == "offline")


async def test_one_address_of_several_that_is_dead_does_not_eject_the_agent(
    tmp_path: Path,
) -> None:
    async with Peer() as gone, raw_peer(answered_well) as peer, gateway(tmp_path) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(
            url, name="Two", card=card(url), replicas=[f"{gone.url}/a"], repeatable=True
        )
        await gate.gateway.registry.probe(agent.id)
        gone.is_up = False
        async with gate.client(agent) as client:
            for _ in range(8):
                assert (await within(client.send("x"))).state is TaskState.COMPLETED
        assert status(gate.gateway.registry, agent.id) == "online"


def answered_well(name: str, asked: Asked) -> Answer:
    return [http(b"")] if asked.verb == "HEAD" else answered(asked, name)


async def test_a_message_that_breaks_a_connection_has_the_agent_looked_at(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry(watches=True)
    agent = await registry.register(Registration(url=peer.url))
    peer.asked.clear()
    registry.health.doubted(agent.id)
    began = there.clock.now()
    await there.tick(registry, lambda: bool(peer.asked))
    # Soon, and not when it is its turn, after a minute.
    assert there.clock.now() - began <= 10_000 and status(registry, "maps") == "online"
    peer.is_up = False
    registry.health.doubted(agent.id)
    await there.tick(registry, lambda: status(registry, "maps") == "offline")
    assert there.clock.now() - began <= 30_000


# The true time


async def test_an_agent_that_names_a_time_is_believed(tmp_path: Path) -> None:
    def busy(name: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return [http(b"{}", "404 Not Found")]
        return [http(b"", "503 Busy", "application/json", "retry-after: 240")]

    async with raw_peer(busy) as peer, gateway(tmp_path, forward_attempts=1) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(url, name="Busy", card=card(url))
        body = {"message": message("x"), "configuration": {"returnImmediately": True}}
        upstream = gate.gateway.upstreams.of(agent)
        for _ in range(breaker.LEAST):
            sent = await gate.http.post(f"{gate.at(agent)}/message:send", json=body, headers=V1)
            body["message"] = message("x")
            assert sent.status_code == 200
        await eventually(lambda: upstream.is_open(LOCAL))
        refused = await gate.http.post(f"{gate.at(agent)}/message:send", json=body, headers=V1)
        assert refused.status_code == 503 and 200 <= int(refused.headers["retry-after"]) <= 240
        said = await gate.refusal(
            "SendMessage", {"message": message("x")}, path=f"/a2a/{agent.name}"
        )
        assert said["code"] == -32057
        facts = said["data"][0]["metadata"]
        assert 200 <= int(facts["retryAfter"]) <= 240


async def test_who_is_ejected_is_said_to_be_back_no_earlier_than_probes_say(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry(watches=True)
    agent = await registry.register(Registration(url=peer.url))
    for _ in range(3):
        registry.health.missed(agent.id)
    ejected = registry.get(agent.id)
    assert ejected is not None and ejected.status == "offline"
    told, began = registry.health.retry_in(ejected), there.clock.now()
    await there.tick(registry, lambda: status(registry, "maps") == "online")
    took = (there.clock.now() - began) / 1000
    assert 0 < told <= took <= told + 5


async def test_a_task_for_an_agent_that_is_offline_is_refused_with_that_time(
    tmp_path: Path,
) -> None:
    async with Peer() as peer, guarded(tmp_path) as gate:
        peer.shows(peer.card())
        agent = await gate.register(peer.url, "token:bob")
        for _ in range(3):
            gate.gateway.registry.health.missed(agent.id)
        said = {"title": "T", "description": "", "input": {}}
        tasks: list[tuple[str, dict[str, Any]]] = [
            ("/api/v1/tasks", {"assignedAgentId": agent.id, **said}),
            ("/message:send", {"message": message("x"), "metadata": {"skillId": "route"}}),
        ]
        for path, body in tasks:
            refused = await ask(gate, "POST", path, ALICE, body)
            assert refused.status_code == 503, refused.text
            # Three looks in a row, five seconds apart.
            assert 9 <= int(refused.headers["retry-after"]) <= 15


# What is offline can be read


async def test_what_is_offline_can_be_read_and_rated(tmp_path: Path) -> None:
    with plain_agent() as server:
        async with guarded(tmp_path) as gate:
            agent = await gate.register(server.url, "token:bob", name="Nexus", dialect="nexus")
            made = await send(gate, ALICE, f"/a2a/{agent.name}")
            assert await settled(gate, ALICE, made["id"]) == "TASK_STATE_COMPLETED"
            for _ in range(3):
                gate.gateway.registry.health.missed(agent.id)
            for token in (ALICE, BOB, OPERATOR):
                record = await ask(gate, "GET", f"/api/v1/agents/{agent.id}", token)
                assert record.json()["data"]["status"] == "offline"
                for path in ("", "/history"):
                    read = await ask(gate, "GET", f"/api/v1/trust/{agent.id}{path}", token)
                    assert read.status_code == 200, read.text
            rating = {"taskId": made["id"], "rating": 5, "comment": "Good."}
            rated = await ask(gate, "POST", f"/api/v1/trust/{agent.id}/rate", ALICE, rating)
            assert rated.status_code == 201, rated.text
            # It is still not offered to others.
            listed = await ask(gate, "GET", "/api/v1/discover", ALICE)
            assert listed.json()["data"]["agents"] == []


async def test_what_is_for_some_callers_stays_hidden_when_it_is_offline(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gate, raw_peer(answered_well) as peer:
        agent = await known(gate, peer, "a", callers=["somebody"])
        for _ in range(3):
            gate.gateway.registry.health.missed(agent.id)
        for path in (f"agents/{agent.id}", f"trust/{agent.id}", f"trust/{agent.id}/history"):
            hidden = await ask(gate, "GET", f"/api/v1/{path}", ALICE)
            assert hidden.status_code == 404
