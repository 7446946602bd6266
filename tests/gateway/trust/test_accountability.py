"""What leaves a trace, what follows an agent through its removals, and who decides and sees."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman.gateway.delivery.breaker import Breaker
from dragoman.gateway.delivery.race import Race
from dragoman.gateway.money.payments import FakeProvider
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges, Registration
from dragoman.gateway.routing.routing_options import RoutingOptions
from dragoman.model.identity import Caller, Principal
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.schema import run
from tests.gateway.gateway_site import GatewaySite
from tests.gateway.guarded_site import (
    ALICE,
    BOB,
    BOBS,
    OPERATOR,
    ask,
    completes,
    guarded,
    known,
    send,
    settled,
)
from tests.gateway.malformed.script import dumped
from tests.gateway.raw_peer import Answer, Asked, card, http, raw_peer
from tests.gateway.registry.registries import Peer as CardPeer

PAYMENTS = "a payment secret of a test"


def acts(folder: Path) -> list[tuple[str, str, str]]:
    """Return what the audit log of a gateway that has ended says: act, who and outcome."""
    lines = (folder / "gateway.db.audit.jsonl").read_text().splitlines()
    return [(one["act"], one["who"], one["outcome"]) for one in map(json.loads, lines)]


async def made(site: GatewaySite, verb: str, path: str, token: str, body: Any = None) -> Any:
    """Return what comes of a request that goes well."""
    answer = await ask(site, verb, f"/api/v1{path}", token, body)
    assert answer.is_success, answer.text
    return answer.json()["data"]


# Traces


async def test_a_purchase_leaves_a_trace_once_and_so_does_one_that_is_made_up(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, payment_secret=PAYMENTS) as site:
        begun = await made(site, "POST", "/billing/checkout", ALICE, {"package": "starter"})
        accounting = SQLiteAccounting(site.gateway.store)
        checkout = await accounting.ledger.checkout(begun["checkoutId"])
        assert checkout is not None
        body, headers = FakeProvider(PAYMENTS.encode()).webhook(checkout)
        for _ in range(2):
            told = await site.http.post("/api/v1/billing/webhook", content=body, headers=headers)
            assert told.status_code == 200
        forged = await site.http.post("/api/v1/billing/webhook", content=body)
        assert forged.status_code == 403
    purchase = [one for one in acts(tmp_path) if one[0] == "ledger.purchase"]
    assert sorted(outcome for _, _, outcome in purchase) == ["denied", "done"]
    text = (tmp_path / "gateway.db.audit.jsonl").read_text()
    assert f"{checkout.id} token:alice" in text and "starter 1000" in text


async def test_disputes_and_what_operators_rate_leave_a_trace(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        agent = await known(site, peer, "a")
        for token in (ALICE, OPERATOR):
            begun = await send(site, token, "/a2a/a")
            await settled(site, token, begun["id"])
            said = {"taskId": begun["id"], "rating": 5}
            await made(site, "POST", f"/trust/{agent.id}/rate", token, said)
        why = {"taskId": begun["id"], "reason": "a word that is nobody else's"}
        await made(site, "POST", f"/trust/{agent.id}/dispute", OPERATOR, why)
    found = [one for one in acts(tmp_path) if one[0].startswith("trust.")]
    assert found == [("trust.rate", "token:op", "done"), ("trust.dispute", "token:op", "done")]
    assert "nobody else" not in (tmp_path / "gateway.db.audit.jsonl").read_text()


async def test_what_is_done_with_workflows_leaves_a_trace_and_operators_end_runs(
    tmp_path: Path,
) -> None:
    def works(name: str, asked: Asked) -> Answer:
        return ["hang"] if asked.operation == "send" else completes(name, asked)

    async with raw_peer(works) as peer, guarded(tmp_path) as site:
        agent = await known(site, peer, "a")
        steps = [{"name": "one", "agentId": agent.id}]
        flow = await made(site, "POST", "/workflows", ALICE, {"name": "w", "steps": steps})
        path = f"/workflows/{flow['id']}"
        first = await made(site, "POST", f"{path}/execute", ALICE)
        await made(site, "POST", f"{path}/runs/{first['id']}/cancel", ALICE)
        # One that its owner leaves is ended by who runs the gateway, like any task.
        second = await made(site, "POST", f"{path}/execute", ALICE)
        task = f"/api/v1/console/tasks/{second['id']}"
        assert (await ask(site, "GET", task, OPERATOR)).status_code == 200
        ended = await ask(site, "POST", f"{task}/cancel", OPERATOR)
        assert ended.json()["task"]["state"] == "TASK_STATE_CANCELED", ended.text
        run = await made(site, "GET", f"{path}/runs/{second['id']}", ALICE)
        assert [run["status"], run["steps"][0]["status"]] == ["cancelled", "cancelled"]
        assert (await ask(site, "POST", f"{task}/cancel", BOB)).status_code == 404
        # Runs have no address: nobody begins one with steps of their own.
        for below in ("/.well-known/agent-card.json", "/tasks", f"/tasks/{first['id']}"):
            hidden = await ask(site, "GET", f"/agents/gateway.workflows{below}", ALICE)
            assert hidden.status_code == 404, below
    found = [one for one in acts(tmp_path) if one[0].startswith("workflow.")]
    names = ["create", "run", "cancel", "run"]
    assert found == [(f"workflow.{name}", "token:alice", "done") for name in names]


async def test_a_card_is_accepted_by_the_digest_of_the_one_that_was_looked_at(
    tmp_path: Path,
) -> None:
    async with CardPeer() as peer, guarded(tmp_path) as site:
        peer.shows(peer.card())
        agent = await made(site, "POST", "/agents", BOB, {"endpoint": peer.url})
        path = f"/agents/{agent['id']}"
        peer.shows(peer.card(path="/second"))
        looked_at = await made(site, "POST", f"{path}/probe", BOB)
        third = peer.shows(peer.card(path="/third"))
        await made(site, "POST", f"{path}/probe", BOB)
        body = {"digest": looked_at["pending_digest"]}
        refused = await ask(site, "POST", f"/api/v1{path}/accept", BOB, body)
        assert refused.status_code == 409 and "pending_digest" in refused.text
        assert refused.json()["error"]["code"] == "CONFLICT"
        assert (await ask(site, "POST", f"/api/v1{path}/accept", BOB, {})).status_code == 400
        held = await made(site, "GET", path, BOB)
        assert (held["agent_card"], held["pending_card"]) == (agent["agent_card"], third)
        # Nobody else learns what is held.
        seen = await made(site, "GET", path, ALICE)
        assert seen["pending_digest"] is None
        body = {"digest": held["pending_digest"]}
        assert (await made(site, "POST", f"{path}/accept", BOB, body))["agent_card"] == third
    found = [one for one in acts(tmp_path) if one[0] == "agent.card.accept"]
    # Refusals wait for equal ones.
    assert sorted(found) == [("agent.card.accept", BOBS, one) for one in ("denied", "done")]


# Records


async def failed_once(site: GatewaySite, agent: Registered) -> int:
    """Have an agent fail a task; return its score."""
    begun = await send(site, OPERATOR, f"/a2a/{agent.name}")
    await settled(site, OPERATOR, begun["id"])
    await site.gateway.trust.digest()
    return site.gateway.trust.score(agent.id)


async def test_who_is_removed_and_registered_anew_has_its_record(tmp_path: Path) -> None:
    def fails(name: str, asked: Asked) -> Answer:
        return [http(b"", "400 Bad Request" if asked.operation == "send" else "404 Not Found")]

    async with (
        raw_peer(completes) as good,
        raw_peer(fails) as peer,
        raw_peer(fails) as other,
        guarded(tmp_path) as site,
    ):
        registry = site.gateway.registry
        paid = await known(site, good, "paid", price=1_000_000)
        for token in (OPERATOR, ALICE):
            # Who never paid anybody does not count.
            await settled(site, token, (await send(site, token, f"/a2a/{paid.name}"))["id"])
        bad = await known(site, peer, "a")
        score = await failed_once(site, bad)
        assert score < 50
        # As earlier releases left it.
        await site.gateway.store.write_tx(lambda c: run(c, "DELETE FROM agent_places"))
        await registry.remove(bad.id, Principal.read(BOBS))
        again = await known(site, peer, "b")
        assert (again.id, again.name) == (bad.id, "b")
        assert site.gateway.trust.score(again.id) == score
        events, _ = await site.gateway.trust.history(again.id)
        assert [event["eventType"] for event in events] == ["task_failed"]
        # Another owner's agent there is another one, and so is a second beside it.
        said = Registration(url=f"{peer.url}/a", name="c", card=card(f"{peer.url}/a"))
        assert (await registry.register(said, Principal.read("token:alice"))).id != bad.id
        assert (await known(site, peer, "d")).id != bad.id
        # It takes its record along when it moves, and is known by every place it was at.
        for url in (f"{other.url}/e", f"{good.url}/e"):
            await registry.update(again.id, AgentChanges(url=url), Principal.read(BOBS))
            assert site.gateway.trust.score(again.id) == score
        for place, peer_there in (("first", peer), ("second", other)):
            await registry.remove(bad.id, Principal.read(BOBS))
            back = await known(site, peer_there, place)
            assert back.id == bad.id, place
        assert not (await within(site.gateway.trust.verify())).problem


async def test_of_several_that_were_removed_the_one_of_the_same_address_comes_back(
    tmp_path: Path,
) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        ids: dict[str, str] = {}
        for name in ("a", "b", "idle"):
            agent = await known(site, peer, name)
            ids[name] = agent.id
            if name != "idle":
                await failed_once(site, agent)
        for id in ids.values():
            await site.gateway.registry.remove(id, Principal.read(BOBS))
        assert (await known(site, peer, "b")).id == ids["b"]
        # Nothing was observed of the third, so there is nothing to come back to but the first.
        assert (await known(site, peer, "idle")).id == ids["a"]
        assert (await known(site, peer, "other")).id not in ids.values()


async def test_a_card_that_leads_elsewhere_counts_against_its_agent_once(tmp_path: Path) -> None:
    places: dict[str, str] = {}

    def shows(name: str, asked: Asked) -> Answer:
        return [http(dumped(card(places["at"])))]

    async with raw_peer(shows) as peer, guarded(tmp_path, trust_policy="corvid") as site:
        places["at"] = f"{peer.url}/a"
        agent = await site.register(f"{peer.url}/a", BOBS)
        places["at"] = "https://other.example.com/a"
        for _ in range(3):
            await site.gateway.registry.probe(agent.id, Principal.read(BOBS))

        async def events() -> list[dict[str, Any]]:
            found, _ = await site.gateway.trust.history(agent.id)
            return found

        async def is_told() -> bool:
            return bool(await events())

        await eventually(is_told)
        (event,) = await events()
        assert event["eventType"] == "violation"
        assert event["reason"] == "its card leads to https://other.example.com"


# Voices


@pytest.mark.parametrize(("owners", "state"), [(2, "COMPLETED"), (1, "FAILED")])
async def test_each_owner_has_one_voice(tmp_path: Path, owners: int, state: str) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        registry = site.gateway.registry
        for place, name in enumerate(("a", "b", "c")):
            owner = "token:cid" if place == 2 and owners == 2 else BOBS
            url = f"{peer.url}/{name}"
            said = Registration(url=url, name=name, card=card(url), repeatable=True)
            agent = await registry.register(said, Principal.read(owner))
            await registry.heartbeat(agent.id, "online", owner=Principal.read(owner))
        wanted = {"skillId": "s", "race": 2, "quorum": 2}
        begun = await send(site, ALICE, metadata=wanted)
        assert await settled(site, ALICE, begun["id"]) == f"TASK_STATE_{state}"
        asked = sum(peer.count(name, "send") for name in ("a", "b", "c"))
        # Where there are not enough owners nobody is asked; of two that are, one is not bob's.
        assert asked == (2 if owners == 2 else 0)
        assert peer.count("c", "send") == (1 if owners == 2 else 0)
        # To their owner each of them is worth as much as any.
        begun = await send(site, BOB, metadata=wanted)
        assert await settled(site, BOB, begun["id"]) == "TASK_STATE_COMPLETED"


async def test_a_race_tells_the_breakers_who_is_then_left_alone(tmp_path: Path) -> None:
    breakers: dict[str, Breaker] = {}

    async def is_counted() -> bool:
        return breakers["dead"].snapshot().failures == 1

    async def works(name: str, asked: Asked) -> Answer:
        if name == "dead" and asked.operation == "send":
            return [http(b"", "500 Internal Server Error")]
        if asked.operation == "send":
            await eventually(is_counted)
        return completes(name, asked)

    async with raw_peer(works) as peer, guarded(tmp_path) as site:
        upstreams = site.gateway.upstreams
        agents = {name: await known(site, peer, name, repeatable=True) for name in ("a", "dead")}
        alice = Principal.read("token:alice")
        circuits = {name: upstreams.of(one).circuits for name, one in agents.items()}
        breakers["a"] = circuits["a"].address(agents["a"].url)
        # What it answers is counted for the caller alone.
        breakers["dead"] = circuits["dead"].failing(agents["dead"].url, alice)
        begun = await send(site, ALICE, metadata={"skillId": "s", "race": 2})
        assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_COMPLETED"
        snapshot = breakers["a"].snapshot()
        assert (snapshot.outcomes, snapshot.failures) == (1, 0)
        for name in ("cheap", "dear"):
            price = 2 if name == "dear" else 0
            agents[name] = await known(site, peer, name, repeatable=True, price=price)
        for _ in range(20):
            breakers["dead"].failed(is_connection=True)
        assert breakers["dead"].state == "open"
        means: Any = SimpleNamespace(router=site.gateway.router, upstreams=upstreams)
        worker: Any = SimpleNamespace(caller=Caller("token:alice", True))
        order = [agents[name].id for name in ("dead", "a", "dear", "cheap")]
        contest = Race(means, worker, order, RoutingOptions(race=2))
        # Who steps in costs no more than what is held.
        assert [one.agent.name for one in contest._rivals] == ["a", "cheap"]


# Sight


async def test_an_agent_that_is_for_some_is_not_there_for_others(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        agent = await known(site, peer, "a", callers=["token:alice"])
        shown = [
            ("GET", "/a2a/{name}", None),
            ("GET", "/a2a/{name}/", None),
            ("HEAD", "/a2a/{name}", None),
            ("GET", "/a2a/{name}/.well-known/agent-card.json", None),
            ("GET", "/a2a/{name}/.well-known/agent.json", None),
            ("GET", "/a2a/{name}/tasks", None),
            ("POST", "/a2a/{name}/message:send", {"message": {}}),
            ("POST", "/a2a/{name}", {"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}),
            ("GET", "/a2a/{name}/admin/status", None),
            ("GET", "/api/v1/agents/{name}", None),
            ("DELETE", "/api/v1/agents/{name}", None),
            ("GET", "/api/v1/trust/{name}", None),
        ]
        for verb, path, body in shown:
            answers = [
                await ask(site, verb, path.format(name=name), "cid-0123456789abcdef", body)
                for name in (agent.name, "b")
            ]
            assert [one.status_code for one in answers] == [401, 401], path
        await site.gateway.registry.update(
            agent.id, AgentChanges(callers=["token:op2"]), Principal.read(BOBS)
        )
        for verb, path, body in shown:
            hidden, absent = [
                await ask(site, verb, path.format(name=name), ALICE, body)
                for name in (agent.name, "b")
            ]
            assert hidden.status_code == absent.status_code, path
            assert hidden.text.replace(f'"{agent.name}"', '"b"') == absent.text, path
        for token, total in ((ALICE, 0), (BOB, 1), (OPERATOR, 1)):
            found = await made(site, "GET", "/discover", token)
            assert found["total"] == total
            status = (await ask(site, "GET", f"/a2a/{agent.name}", token)).status_code
            assert status == (200 if total else 404)
        steps = {"name": "w", "steps": [{"name": "one", "agentId": agent.name}]}
        refused = await ask(site, "POST", "/api/v1/workflows", ALICE, steps)
        assert refused.status_code == 400 and "no such agent" in refused.text


async def test_whom_an_agent_is_for_sees_it_and_uses_it(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        place = f"/a2a/{(await known(site, peer, 'a', callers=['token:alice'])).name}"
        assert (await made(site, "GET", "/discover", ALICE))["total"] == 1
        shown = await ask(site, "GET", place, ALICE)
        assert shown.json()["name"] == "a" and "private" in shown.headers["cache-control"]
        begun = await send(site, ALICE, place)
        assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_COMPLETED"
        listed = await ask(site, "GET", f"{place}/tasks", ALICE)
        assert [one["id"] for one in listed.json()["tasks"]] == [begun["id"]]
        # The way there is no way around who may do what.
        assert (await ask(site, "GET", f"{place}/admin/status", ALICE)).status_code == 404
        for path in ("/tasks", "/admin/status", "/.limited/tasks", "/.well-known/agent-card.json"):
            typed, other = [
                await ask(site, "GET", begin + path, OPERATOR) for begin in ("/.limited", "/.other")
            ]
            assert (typed.status_code, typed.text) == (other.status_code, other.text), path


async def test_what_stands_behind_a_question_mark_is_its_owners_alone(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        url = f"{peer.url}/a?code=c4nary"
        agent = await made(site, "POST", "/agents", BOB, {"endpoint": url, "name": "a"})
        await site.gateway.registry.heartbeat(agent["id"], "online", owner=Principal.read(BOBS))
        paths = [f"/api/v1/agents/{agent['id']}", "/api/v1/discover", "/a2a/a"]
        for path in (*paths, "/.well-known/ai-catalog.json"):
            for token in (ALICE, OPERATOR):
                shown = await ask(site, "GET", path, token)
                assert shown.status_code == 200 and "c4nary" not in shown.text, path
        assert (await made(site, "GET", f"/agents/{agent['id']}", BOB))["endpoint"] == url
        begun = await send(site, ALICE, "/a2a/a")
        await settled(site, ALICE, begun["id"])
        assert "c4nary" not in (await ask(site, "GET", f"/tasks/{begun['id']}", ALICE)).text


# What the REST API tells of a task and an agent


async def test_a_task_tells_by_whose_key_it_was_made_and_how_often_it_moved(
    tmp_path: Path,
) -> None:
    def works(name: str, asked: Asked) -> Answer:
        if name == "down" and asked.operation == "send":
            return [http(b"", "429 Too Many Requests")]
        return completes(name, asked)

    async with raw_peer(works) as peer, guarded(tmp_path, forward_attempts=1) as site:
        agent = await known(site, peer, "a")
        path = f"/agents/{agent.id}/api-keys"
        key = (await made(site, "POST", path, BOB, {"name": "k"}))["key"]

        async def is_known() -> bool:
            return (await ask(site, "GET", "/api/v1/tasks", key)).status_code == 200

        # Keys are looked at once a second.
        await eventually(is_known)
        moving = await known(site, peer, "down", replicas=[f"{peer.url}/up"], repeatable=True)
        body = {"assignedAgentId": moving.id, "title": "t"}
        for token, requester in ((key, agent.id), (BOB, None)):
            begun = await made(site, "POST", "/tasks", token, body)
            assert begun["requester_agent_id"] == requester
            forged = {"metadata": {"requesterAgentId": "somebody"}}
            other = await send(site, token, "/a2a/a", **forged)
            for task_id in (begun["id"], other["id"]):
                await settled(site, token, task_id)
                told = await made(site, "GET", f"/tasks/{task_id}", BOB)
                assert told["requester_agent_id"] == requester
        listed = await made(site, "GET", "/tasks", BOB)
        counts = {one["assigned_agent_id"]: one["retry_count"] for one in listed["tasks"]}
        assert counts[agent.id] == 0 and counts[moving.id] in (0, 1)
        assert any(one["retry_count"] == 1 for one in listed["tasks"])
        assert b"requesterAgentId" not in b"".join(one.body for _, one in peer.requests)


async def test_what_a_score_is_made_of_is_observed_and_not_said(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        said = {"room": 4, "trust_components": {"reliability": 100}}
        agent = await known(site, peer, "a", metadata=said)
        path = f"/agents/{agent.id}"
        assert (await made(site, "GET", path, ALICE))["metadata"] == {"room": 4}
        await failed_once(site, agent)
        shown = (await made(site, "GET", path, ALICE))["metadata"]
        standing = await made(site, "GET", f"/trust/{agent.id}", ALICE)
        assert shown == {"room": 4, "trust_components": standing["components"]}
