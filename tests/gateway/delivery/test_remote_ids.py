"""What messages are called at the agents they are sent to: by our own ids, with the caller's in the
metadata, or by the caller's where an owner says that only one tenant uses the agent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import message, serving

from dragoman import Agent, Turn
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.gateway.routing.hop_limit import HOPS
from dragoman.model.request_metadata import CALLERS_ID
from tests.gateway.gateway_site import GatewaySite
from tests.gateway.guarded_site import ALICE, BOB, ask, guarded, reply, settled
from tests.gateway.malformed.script import dumped
from tests.gateway.raw_peer import Answer, Asked, Peer, card, http, raw_peer

SPOKEN = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3", "JSONRPC"), ("0.2", "JSONRPC")]
OLD_TASK = {"kind": "task", "id": "t-a", "contextId": "c-1", "status": {"state": "completed"}}


def answers(name: str, asked: Asked) -> Answer:
    """Complete what is asked, in the words of the version that the agent's name says."""
    if asked.operation == "send" and name.startswith("0."):
        return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "result": OLD_TASK}))]
    answer = reply(asked, name)
    if "http" in name and asked.operation == "send":
        value = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}
        return [http(dumped(value))]
    return answer


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with raw_peer(answers) as found:
        yield found


def sent(peer: Peer) -> list[dict[str, Any]]:
    """Return the messages that the agents got."""
    bodies = [asked.json for _, asked in peer.requests if asked.operation == "send"]
    return [one.get("params", one)["message"] for one in bodies]


async def registered(gate: GatewaySite, peer: Peer, name: str, **more: Any) -> Any:
    version = more.pop("version", "1.0")
    binding = more.pop("binding", "JSONRPC")
    url = f"{peer.url}/{name}"
    shown = card(url, version=version, binding=binding)
    return await gate.register(url, name=name, card=shown, **more)


async def say(gate: GatewaySite, agent: Any, token: str, id: str, **more: Any) -> Any:
    """Send a message to an agent; return the task once it has ended."""
    metadata = more.pop("metadata", {})
    body = {"message": message("hello", messageId=id, **more), "metadata": metadata}
    answer = await ask(gate, "POST", f"/a2a/{agent.name}/message:send", token, body)
    assert answer.status_code == 200, answer.text
    task = answer.json()["task"]
    assert await settled(gate, token, task["id"]) == "TASK_STATE_COMPLETED"
    return task


@pytest.mark.parametrize(("version", "binding"), SPOKEN)
async def test_the_callers_id_goes_along_in_the_metadata(
    tmp_path: Path, peer: Peer, version: str, binding: str
) -> None:
    """G-2: in every version that has metadata."""
    name = "http" if binding != "JSONRPC" else version
    async with guarded(tmp_path) as gate:
        agent = await registered(gate, peer, name, version=version, binding=binding)
        await say(gate, agent, ALICE, "mine", metadata={"a": 1})
    (got,) = sent(peer)
    assert got["messageId"] != "mine"
    assert got["metadata"] == {CALLERS_ID: "mine"}


async def test_what_a_caller_writes_in_its_place_is_not_believed(
    tmp_path: Path, peer: Peer
) -> None:
    async with guarded(tmp_path) as gate:
        agent = await registered(gate, peer, "a")
        await say(gate, agent, ALICE, "mine", metadata={"x": 1})
        body = message("hello", messageId="other", metadata={CALLERS_ID: "forged", "b": 2})
        answer = await ask(
            gate, "POST", f"/a2a/{agent.name}/message:send", ALICE, {"message": body}
        )
        assert answer.status_code == 200
    assert [one["metadata"] for one in sent(peer)] == [
        {CALLERS_ID: "mine"},
        {CALLERS_ID: "other", "b": 2},
    ]


async def test_behind_two_gateways_it_is_still_the_first_callers(
    tmp_path: Path, peer: Peer
) -> None:
    async with guarded(tmp_path) as gate:
        agent = await registered(gate, peer, "a")
        body = {
            "message": message("hello", messageId="ours", metadata={CALLERS_ID: "first"}),
            "metadata": {HOPS: ["another-gateway"]},
        }
        answer = await ask(gate, "POST", f"/a2a/{agent.name}/message:send", ALICE, body)
        assert answer.status_code == 200
    (got,) = sent(peer)
    assert got["metadata"] == {CALLERS_ID: "first"} and got["messageId"] != "ours"


@pytest.mark.parametrize(("version", "binding"), SPOKEN)
async def test_an_agent_of_one_tenant_gets_messages_under_their_own_ids(
    tmp_path: Path, peer: Peer, version: str, binding: str
) -> None:
    name = "http" if binding != "JSONRPC" else version
    async with guarded(tmp_path) as gate:
        agent = await registered(
            gate, peer, name, version=version, binding=binding, keep_message_ids=True
        )
        await say(gate, agent, ALICE, "mine")
        await gate.gateway.registry.update(
            agent.id, AgentChanges(keep_message_ids=False), operator=True
        )
        await say(gate, agent, ALICE, "second")
    kept, own = sent(peer)
    assert kept["messageId"] == "mine" and not kept.get("metadata")
    assert own["messageId"] != "second" and own["metadata"] == {CALLERS_ID: "second"}


async def test_agents_that_race_get_them_too(tmp_path: Path, peer: Peer) -> None:
    async with guarded(tmp_path) as gate:
        for name in ("a", "b"):
            agent = await registered(
                gate, peer, name, keep_message_ids=name == "a", repeatable=True
            )
            await gate.gateway.registry.probe(agent.id, operator=True)
        body = {
            "message": message("hello", messageId="mine"),
            "metadata": {"race": 2, "quorum": 1, "skillId": "s"},
        }
        answer = await ask(gate, "POST", "/message:send", ALICE, body)
        assert answer.status_code == 200, answer.text
    got = {name: asked.json["params"]["message"] for name, asked in peer.requests if asked.body}
    assert got and all((one["messageId"] == "mine") == (name == "a") for name, one in got.items())


async def test_by_default_nobody_gets_the_task_of_another_who_used_the_id(tmp_path: Path) -> None:
    """Why our own ids are the default: an agent that works once sees one caller, which is us."""
    agent = Agent("Counting", "Counts its messages.")
    seen: list[str] = []

    @agent.skill(default=True)
    async def count(text: str, turn: Turn) -> str:
        seen.append(turn.message.message_id)
        return str(len(seen))

    async with serving(agent) as site, guarded(tmp_path) as gate:
        behind = await gate.register(site.url)
        texts = [await say(gate, behind, token, "same") for token in (ALICE, BOB)]
        assert len(set(seen)) == 2
        assert [one["artifacts"][0]["parts"][0]["text"] for one in texts] == ["1", "2"]


async def test_agents_of_the_gateways_own_process_always_get_ours(tmp_path: Path) -> None:
    """What they begin is counted for whoever asked by that id, which nobody may know."""
    agent = Agent("Inside", "Is in the process.")
    seen: list[str] = []

    @agent.skill(default=True)
    async def note(text: str, turn: Turn) -> str:
        seen.append(turn.message.message_id)
        return text

    async with guarded(tmp_path, agent) as gate:
        await gate.app.listening([gate.url])
        inside = gate.gateway.registry.get("inside")
        assert inside is not None
        await gate.gateway.registry.update(
            inside.id, AgentChanges(keep_message_ids=True), operator=True
        )
        await say(gate, inside, ALICE, "mine")
    assert seen and "mine" not in seen


async def test_over_rest_it_is_said_and_shown_and_taken_back(tmp_path: Path, peer: Peer) -> None:
    async with guarded(tmp_path) as gate:
        said = {"endpoint": f"{peer.url}/a", "name": "One", "keepMessageIds": True}
        made = (await ask(gate, "POST", "/api/v1/agents", ALICE, said)).json()["data"]
        assert made["keep_message_ids"] is True
        path = f"/api/v1/agents/{made['id']}"
        changed = await ask(gate, "PATCH", path, ALICE, {"keepMessageIds": False})
        assert changed.json()["data"]["keep_message_ids"] is False
        off = await ask(gate, "PATCH", path, ALICE, {"keepMessageIds": "yes"})
        assert off.status_code == 400
        plain = await ask(
            gate, "POST", "/api/v1/agents", ALICE, {"endpoint": f"{peer.url}/b", "name": "Two"}
        )
        assert plain.json()["data"]["keep_message_ids"] is False
