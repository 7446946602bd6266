"""What a caller, an agent's owner or an agent tries against a gateway, and does not get."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness.serving import message, serving
from harness.waiting import eventually, within

from dragoman.errors import InvalidParams
from dragoman.gateway.delivery.forwarding import Forwarding
from dragoman.gateway.registry.registration import AgentChanges, Registration, Secret, slug
from dragoman.model.identity import Principal, Scope
from tests.gateway.gateway_site import workshop
from tests.gateway.guarded_site import (
    ALICE,
    BOB,
    BOBS,
    OPERATOR,
    ask,
    asks_back,
    balance,
    busy,
    completes,
    guarded,
    known,
    refuses,
    seen,
    send,
    settled,
    was_sent,
)
from tests.gateway.malformed.script import dumped
from tests.gateway.raw_peer import Answer, Asked, card, http, raw_peer

# Keys


DOORS = [
    ("GET", "/tasks"),
    ("GET", "/tasks/{task}"),
    ("GET", "/a2a/workshop/tasks/{task}"),
    ("GET", "/api/v1/tasks/{task}"),
    ("POST", "/tasks/{task}:cancel"),
    ("POST", "/tasks/{task}:subscribe"),
    ("POST", "/message:send"),
    ("POST", "/a2a/workshop/message:stream"),
]


async def test_an_agents_key_opens_by_no_door_what_it_is_not_for(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path) as site:
        body: Any = {"endpoint": upstream.url}
        agent = (await ask(site, "POST", "/api/v1/agents", ALICE, body)).json()["data"]
        begun = await send(site, ALICE, "/a2a/workshop")
        path = f"/api/v1/agents/{agent['id']}"
        wanted = {"name": "beats", "scopes": ["agents:heartbeat"]}
        made = await ask(site, "POST", f"{path}/api-keys", ALICE, wanted)
        key = made.json()["data"]["key"]

        async def is_known() -> bool:
            return (await ask(site, "POST", f"{path}/heartbeat", key, {})).status_code == 200

        # Keys are looked at once a second.
        await eventually(is_known)
        for verb, door in DOORS:
            body = {"message": message("hi")} if "message" in door else None
            answer = await ask(site, verb, door.format(task=begun["id"]), key, body)
            assert (answer.status_code, "not for this" in answer.text) == (403, True), door
        corvid = await site.http.get(f"/a2a/tasks/{begun['id']}", headers={"x-api-key": key})
        assert corvid.status_code == 403
    trace = (tmp_path / "gateway.db.audit.jsonl").read_text()
    assert "get_task" in trace and "the key of an agent is not for tasks:read" in trace


async def test_the_keys_of_an_agent_end_with_it_and_leave_a_trace(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path) as site:
        body = {"endpoint": upstream.url}
        agent = (await ask(site, "POST", "/api/v1/agents", ALICE, body)).json()["data"]
        path = f"/api/v1/agents/{agent['id']}"
        made = await ask(site, "POST", f"{path}/api-keys", ALICE, {"name": "x"})
        key = made.json()["data"]["key"]
        assert (await ask(site, "GET", "/tasks", key)).status_code == 200
        assert (await ask(site, "DELETE", path, OPERATOR)).status_code == 204
        assert (await ask(site, "GET", "/tasks", key)).status_code == 401
    lines = (tmp_path / "gateway.db.audit.jsonl").read_text().splitlines()
    acts = {(line["act"], line["who"]) for line in map(json.loads, lines)}
    assert {("key.create", "token:alice"), ("key.revoke", "token:op")} <= acts


# Credentials


async def test_an_address_that_was_taken_back_sees_neither_answer_nor_credential(
    tmp_path: Path,
) -> None:
    async with raw_peer(asks_back) as old, raw_peer(asks_back) as new, guarded(tmp_path) as site:
        first = Secret(kind="bearer", value="the-first-one")
        agent = await known(site, old, "a", credential=first)
        begun = await send(site, ALICE, f"/a2a/{agent.name}")

        async def waits() -> bool:
            found = (await ask(site, "GET", f"/tasks/{begun['id']}", ALICE)).json()
            return found["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"

        await eventually(waits)
        assert b"the-first-one" in seen(old)
        second = Secret(kind="bearer", value="the-second-one")
        changes = AgentChanges(url=f"{new.url}/a", credential=second)
        await site.gateway.registry.update(agent.id, changes, Principal.read(BOBS))
        said = message("an answer", taskId=begun["id"])
        await ask(site, "POST", "/message:send", ALICE, {"message": said})
        assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_FAILED"
        assert b"the-second-one" not in seen(old)
        assert b"an answer" not in seen(old)


async def test_what_was_not_sent_goes_to_where_the_agent_moved(tmp_path: Path) -> None:
    async with raw_peer(refuses) as old, raw_peer(completes) as new, guarded(tmp_path) as site:
        agent = await known(site, old, "a")
        begun = await send(site, ALICE, f"/a2a/{agent.name}")
        await was_sent(old, "a")
        await site.gateway.registry.update(
            agent.id, AgentChanges(url=f"{new.url}/a"), Principal.read(BOBS)
        )
        await settled(site, ALICE, begun["id"])
        # Its card was of the place before, so that it is spoken to as one that shows none.
        assert new.count("a", "send")


async def test_a_card_that_is_named_does_not_choose_where_its_credential_goes(
    tmp_path: Path,
) -> None:
    async with raw_peer(completes) as other:

        def shows(name: str, asked: Asked) -> Answer:
            return [http(dumped(card(f"{other.url}/a")))]

        async with raw_peer(shows) as named, guarded(tmp_path) as site:
            said = {
                "url": f"{named.url}/agent.json",
                "credential": Secret(kind="bearer", value="s"),
            }
            with pytest.raises(InvalidParams, match="origin that was not registered"):
                await site.gateway.registry.register(Registration(**said), Principal.read(BOBS))
            allowed = Registration(**said, origins=[other.url])
            agent = await site.gateway.registry.register(allowed, Principal.read(BOBS))
            assert agent.url == f"{other.url}/a"


async def test_who_takes_the_name_of_an_agent_of_the_process_is_not_shown_its_token(
    tmp_path: Path,
) -> None:
    async with raw_peer(completes) as peer:
        async with guarded(tmp_path) as site:
            squatter = await known(site, peer, "workshop")
        for _ in range(2):
            async with guarded(tmp_path, workshop()) as site:
                await site.app.listening([site.url])
                found = {one.name: one for one in site.gateway.registry.all()}
                assert sorted(found) == ["workshop", "workshop-2"]
                assert found["workshop"].id == squatter.id
                assert (found["workshop"].owner.text, found["workshop"].credential) == (BOBS, "")
                assert (found["workshop-2"].owner.text, found["workshop-2"].credential) == (
                    "",
                    "header",
                )


def test_no_agent_is_called_like_the_id_of_another() -> None:
    assert slug("01a1e4b5-9bac-7d22-9da5-a991a1c9f26e").endswith("-agent")
    assert slug("01a1e4b5-9bac-7d22") == "01a1e4b5-9bac-7d22"


# Money


async def test_a_price_that_rises_after_the_choice_is_not_paid(tmp_path: Path) -> None:
    may_fail = asyncio.Event()

    async def fails(name: str, asked: Asked) -> Answer:
        await may_fail.wait()
        return busy(name, asked)

    async with raw_peer(fails) as one, raw_peer(completes) as two:  # noqa: SIM117 - two lines
        async with guarded(tmp_path, forward_attempts=1) as site:
            await known(site, one, "a", price=1_000_000, repeatable=True)
            dear = await known(site, two, "b", price=2_000_000, repeatable=True)
            metadata = {"skillId": "s", "maxPrice": 5, "policy": "cheapest"}
            begun = await send(site, ALICE, metadata=metadata)
            await was_sent(one, "a")
            await site.gateway.registry.update(
                dear.id, AgentChanges(price=900_000_000), Principal.read(BOBS)
            )
            may_fail.set()
            assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_FAILED"
            assert (await balance(site, "token:alice"), two.count("b", "send")) == (1_000, 0)


async def test_nobody_takes_over_before_what_it_costs_is_held(tmp_path: Path) -> None:
    async with raw_peer(busy) as one, raw_peer(completes) as two:  # noqa: SIM117 - two lines
        async with guarded(tmp_path, forward_attempts=1) as site:
            await known(site, one, "a", repeatable=True)
            await known(site, two, "b", price=2_000_000_000, repeatable=True)
            begun = await send(site, ALICE, metadata={"skillId": "s", "policy": "cheapest"})
            assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_FAILED"
            assert two.count("b", "send") == 0
            assert (await site.gateway.ledger.balance(Principal.read("token:alice"))).held == 0


async def test_agents_that_never_answer_do_not_keep_what_is_held_for_a_race(tmp_path: Path) -> None:
    def silent(name: str, asked: Asked) -> Answer:
        return ["hang"] if asked.operation == "send" else [http(b"{}", "404 Not Found")]

    async with raw_peer(silent) as peer, guarded(tmp_path, forward_patience=2.0) as site:
        for name in ("a", "b"):
            await known(site, peer, name, price=1_000_000, repeatable=True)
        begun = await send(site, ALICE, metadata={"skillId": "s", "race": 2})
        assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_FAILED"
        assert (peer.count("a", "send"), peer.count("b", "send")) == (1, 1)
        assert (await site.gateway.ledger.balance(Principal.read("token:alice"))).held == 0


async def test_whoever_does_a_task_after_a_crash_is_the_one_who_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async with raw_peer(completes) as peer:
        with monkeypatch.context() as patch:
            patch.setattr(Forwarding, "_deliver", never)
            async with guarded(tmp_path) as site:
                first = await known(site, peer, "a", price=1_000_000)
                begun = await send(site, ALICE, metadata={"skillId": "s"})
                await known(site, peer, "b", price=1_000_000)
                await known(site, peer, "c", price=500_000_000)
                # Only others are left.
                await site.gateway.registry.remove(first.id, Principal.read(BOBS))
        async with guarded(tmp_path) as site:
            assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_COMPLETED"
            scope = Scope("gateway", "", "token:alice")
            order = await site.gateway.ledger.store.order_in(scope, begun["id"])
            assert order is not None
            second = site.gateway.registry.get("b")
            assert second is not None and order.agent == second.id
            assert [name for name, asked in peer.requests if asked.operation == "send"] == ["b"]


# Others' tasks


@pytest.mark.parametrize("dialect", ["nexus", ""])
async def test_two_callers_who_name_their_tasks_alike_have_two_tasks_at_the_agent(
    tmp_path: Path, dialect: str
) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        agent = await known(
            site, peer, "a", **({"dialect": dialect, "card": None} if dialect else {})
        )
        said = {"role": "user", "parts": [{"type": "text", "data": "hello"}]}
        params = {
            "id": "019f0000-0000-7000-8000-000000000001",
            "message": said,
            "metadata": {"agentId": agent.id},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        for token in (ALICE, BOB):
            headers = {"authorization": f"Bearer {token}"}
            assert (await site.http.post("/api/v1/a2a", json=body, headers=headers)).is_success
        await was_sent(peer, "a", 2)
        sent = [asked.json["params"] for _, asked in peer.requests if asked.operation == "send"]
        names = {one["id"] if dialect else one["message"]["messageId"] for one in sent}
        assert len(names) == 2


# Trust and room


@pytest.mark.parametrize(
    "hurry",
    [{"timeoutMs": 1}, {"dragoman/deadline": "2020-01-01T00:00:00Z"}],
    ids=lambda hurry: next(iter(hurry)),
)
async def test_a_task_that_was_given_no_time_says_nothing_of_its_agent(
    tmp_path: Path, hurry: dict[str, Any]
) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        agent = await known(site, peer, "a", price=1_000_000)
        paid = await send(site, ALICE, "/a2a/a")
        assert await settled(site, ALICE, paid["id"]) == "TASK_STATE_COMPLETED"
        for _ in range(3):
            late = await send(site, ALICE, "/a2a/a", metadata=hurry)
            await settled(site, ALICE, late["id"])
        await site.gateway.trust.digest()
        reputation = await site.gateway.trust.reputation(agent.id)
        assert reputation is not None
        assert reputation.document()["taskStats"] == {"total": 1, "completed": 1, "failed": 0}
        assert not (await within(site.gateway.trust.verify())).problem


async def test_an_agents_history_names_tasks_to_those_alone_who_have_to_do_with_them(
    tmp_path: Path,
) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        agent = await known(site, peer, "a")
        begun = await send(site, ALICE, "/a2a/a")
        await settled(site, ALICE, begun["id"])
        await site.gateway.trust.digest()
        for viewer, shown in (("token:alice", begun["id"]), (None, begun["id"]), ("key:c", None)):
            who = None if viewer is None else Principal.read(viewer)
            events, _ = await site.gateway.trust.history(agent.id, viewer=who)
            assert [event["taskId"] for event in events] == [shown]
        path = f"/api/v1/trust/{agent.id}/history"
        for token in (ALICE, BOB, OPERATOR):
            assert begun["id"] in (await ask(site, "GET", path, token)).text


async def test_a_dispute_is_about_the_agent_that_did_the_task(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        did, other = await known(site, peer, "a"), await known(site, peer, "b")
        begun = await send(site, ALICE, "/a2a/a")
        await settled(site, ALICE, begun["id"])
        body = {"taskId": begun["id"], "reason": "it is not done"}
        for agent, status in ((other, 400), (did, 201)):
            path = f"/api/v1/trust/{agent.id}/dispute"
            assert (await ask(site, "POST", path, ALICE, body)).status_code == status


@pytest.mark.parametrize(("token", "status"), [(BOB, 403), (OPERATOR, 201)])
async def test_only_operators_say_who_gets_what_is_for_nobody(
    tmp_path: Path, token: str, status: int
) -> None:
    async with guarded(tmp_path) as site:
        body: Any = {"endpoint": "http://127.0.0.1:9", "name": "Mine", "isDefault": True}
        assert (await ask(site, "POST", "/api/v1/agents", token, body)).status_code == status
        body = {"endpoint": "http://127.0.0.1:9", "name": "Mine"}
        made = (await ask(site, "POST", "/api/v1/agents", token, body)).json()["data"]
        path = f"/api/v1/agents/{made['id']}"
        changed = await ask(site, "PATCH", path, token, {"isDefault": True})
        assert changed.status_code == (403 if status == 403 else 200)


async def test_an_agent_of_which_too_much_is_said_is_not_registered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as site:
        skill = {"id": "s", "name": "S", "examples": ["x" * 300_000]}
        body = {"endpoint": "http://127.0.0.1:9", "name": "Big", "skills": [skill]}
        answer = await ask(site, "POST", "/api/v1/agents", BOB, body)
        assert (answer.status_code, "larger than" in answer.text) == (400, True)
