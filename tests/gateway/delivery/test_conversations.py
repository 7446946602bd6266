"""A caller's conversation is one conversation for the agent behind the gateway, and for no other
caller and no other agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.databases import new_database
from harness.serving import client, hosting, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, Turn
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app
from dragoman.gateway.delivery import delivery
from dragoman.gateway.delivery.forwarding import Forwarding
from dragoman.gateway.delivery.remote_ids import earlier_context
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.model.identity import ContextId, MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.openai.part import OpenAIPart
from tests.gateway.gateway_site import GatewaySite, Restartable, gateway, log
from tests.gateway.guarded_site import ALICE, BOB, ask, guarded, settled
from tests.gateway.malformed.script import dumped
from tests.gateway.raw_peer import Answer, Asked, Peer, card, http, raw_peer

V1, V03 = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}


def diary(name: str = "Diary") -> Agent:
    """Return an agent that counts what it was told in each context."""
    agent = Agent(name, "Counts.")
    told: dict[str, list[str]] = {}

    @agent.skill(default=True)
    async def note(text: str, turn: Turn) -> dict[str, Any]:
        """Counts."""
        told.setdefault(turn.context, []).append(text)
        return {"context": turn.context, "told": list(told[turn.context])}

    return agent


async def tell(
    site: GatewaySite, agent: Any, text: str, context: str = "", version: str = "1.0"
) -> tuple[str, list[str]]:
    """Tell an agent something over JSON-RPC; return the gateway's context and what the agent was
    told in its own."""
    more = {"contextId": context} if context else {}
    is_old = version == "0.3"
    params: dict[str, Any] = {"message": message(text, **more)}
    if is_old:
        params = {"message": old_message(text, **more), "configuration": {"blocking": True}}
    method = "message/send" if is_old else "SendMessage"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = V03 if is_old else V1
    answer = (await within(site.http.post(site.at(agent), json=body, headers=headers))).json()
    task = answer["result"] if is_old else answer["result"]["task"]
    (artifact,) = task["artifacts"]
    return task["contextId"], artifact["parts"][0]["data"]["told"]


async def old_card(url: str) -> dict[str, Any]:
    """Return the card that an agent shows to callers of 0.3, with that alone."""
    async with client(url) as http:
        shown = (await http.get("/.well-known/agent-card.json", headers=V03)).json()
    shown.pop("supportedInterfaces", None)
    shown.pop("additionalInterfaces", None)
    return shown | {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}


@pytest.mark.parametrize("theirs", ["1.0", "0.3"])
@pytest.mark.parametrize("ours", ["1.0", "0.3"])
async def test_tasks_of_one_context_are_one_conversation(
    tmp_path: Path, ours: str, theirs: str
) -> None:
    async with serving(diary()) as upstream, gateway(tmp_path) as site:
        shown = await old_card(upstream.url) if theirs == "0.3" else None
        agent = await site.register(upstream.url, card=shown)
        first, told = await tell(site, agent, "one", version=ours)
        assert told == ["one"]
        assert await tell(site, agent, "two", first, ours) == (first, ["one", "two"])
        assert await tell(site, agent, "three", first, ours) == (first, ["one", "two", "three"])
        # Without a context, and in one that is new, nothing of it is known.
        other, told = await tell(site, agent, "four", version=ours)
        assert other != first and told == ["four"]
        assert await tell(site, agent, "five", "new", ours) == ("new", ["five"])
        assert await tell(site, agent, "six", "new", ours) == ("new", ["five", "six"])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_it_goes_on_after_a_restart_and_at_another_process(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    store = await new_database(request) if kind == "postgres" else str(tmp_path / "g.db")
    async with serving(diary()) as upstream:
        async with gateway(tmp_path, store=store) as site:
            agent = await site.register(upstream.url)
            first, _ = await tell(site, agent, "one")
        async with gateway(tmp_path, store=store) as site, gateway(tmp_path, store=store) as other:
            assert await tell(site, agent, "two", first) == (first, ["one", "two"])
            assert (await tell(other, agent, "three", first))[1] == ["one", "two", "three"]


async def test_no_caller_joins_the_conversation_of_another(tmp_path: Path) -> None:
    async with serving(diary()) as upstream, guarded(tmp_path) as gate:
        agent = await gate.register(upstream.url)

        async def told(token: str, text: str) -> list[str]:
            body = {"message": message(text, contextId="ours")}
            answer = await ask(gate, "POST", f"/a2a/{agent.name}/message:send", token, body)
            task = answer.json()["task"]
            assert await settled(gate, token, task["id"]) == "TASK_STATE_COMPLETED"
            return task["artifacts"][0]["parts"][0]["data"]["told"]

        assert await told(ALICE, "one") == ["one"]
        assert await told(BOB, "mine") == ["mine"]
        assert await told(ALICE, "two") == ["one", "two"]
        assert await told(BOB, "more") == ["mine", "more"]


async def test_each_agent_has_a_conversation_of_its_own(tmp_path: Path) -> None:
    async with (
        serving(diary()) as upstream,
        serving(diary("Other")) as elsewhere,
        gateway(tmp_path) as site,
    ):
        agent, other = await site.register(upstream.url), await site.register(elsewhere.url)
        for number in (1, 2, 3):
            assert (await tell(site, agent, "to the first", "c"))[1] == ["to the first"] * number
            assert (await tell(site, other, "to the other", "c"))[1] == ["to the other"] * number


async def test_a_conversation_stays_at_its_replica_and_begins_anew_at_another(
    tmp_path: Path,
) -> None:
    """The contexts of a replica may be unknown to the others, or of other callers there."""
    # Both would go on with a context of the other.
    shared = diary()
    first, second = Restartable(shared), Restartable(shared)
    async with first, second, gateway(tmp_path) as site:
        agent = await site.register(first.url, replicas=[second.url])
        for number in range(5):
            _, told = await tell(site, agent, str(number), "c")
            assert told == [str(one) for one in range(number + 1)]
        (at,) = {one["url"] for one in await forwarded(site)}
        await (first if at == f"{first.url}/" else second).stop()
        assert (await tell(site, agent, "anew", "c"))[1] == ["anew"]
        assert (await tell(site, agent, "on", "c"))[1] == ["anew", "on"]


async def test_a_replica_with_an_open_circuit_is_not_waited_for(tmp_path: Path) -> None:
    shared = diary()
    async with serving(shared) as one, serving(shared) as two, gateway(tmp_path) as site:
        agent = await site.register(one.url, replicas=[two.url])
        await tell(site, agent, "one", "c")
        (at,) = {one["url"] for one in await forwarded(site)}
        site.gateway.delivery.upstreams.of(agent).circuits.adopt(at, None, 600.0, 1)
        assert (await tell(site, agent, "two", "c"))[1] == ["two"]
        went = await forwarded(site)
        assert len({one["url"] for one in went}) == 2
        assert not any("moves" in one for one in went)


async def test_only_a_context_that_the_caller_names_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    async def noting(store: Any, log: Any, agent: str) -> Any:
        looked.append(log.context_id)
        return await earlier_context(store, log, agent)

    monkeypatch.setattr(delivery, "earlier_context", noting)
    async with serving(diary()) as upstream, gateway(tmp_path) as site:
        agent = await site.register(upstream.url)
        await tell(site, agent, "one")
        await tell(site, agent, "two", "c")
    assert looked == ["c"]


async def test_a_message_of_a_conversation_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    """Sent again after a crash it could find another context: the agent would work twice."""
    async with serving(diary()) as upstream, gateway(tmp_path) as site:
        agent = await site.register(upstream.url)
        await tell(site, agent, "warm up")
        forwarding = Forwarding(site.gateway.delivery)
        for context, is_early in (("", True), ("c", False)):
            said = Message(
                MessageId("m"), Role.USER, [Part(text="x")], context_id=ContextId(context)
            )
            operation = SendMessage(message=said, metadata={"agentId": agent.id}, wait=True)
            assert forwarding.plan(operation).may_begin_early is is_early


async def forwarded(site: GatewaySite) -> list[dict[str, Any]]:
    """Return where the tasks of the gateway went."""
    answer = await site.http.get("/tasks", headers=V1)
    logs = [await log(site, task["id"]) for task in answer.json()["tasks"]]
    events = [json.loads(line) for lines in logs for line in lines]
    return [event["forwarded"] for event in events if "forwarded" in event]


# Agents that say what they think of a context


class Forgetful:
    """An agent of bytes. It answers messages that name a context with what it is told to."""

    def __init__(self) -> None:
        self.refusal: Any = None
        self.refuses_all = False
        self.made = 0

    def answers(self, name: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return [http(b"{}", "404 Not Found")]
        said = asked.json["params"]["message"]
        if self.refusal is not None and (self.refuses_all or "contextId" in said):
            return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "error": self.refusal}))]
        self.made += 1
        if name == "talker":
            spoken = {"messageId": f"a{self.made}", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}
            result = {"message": spoken | {"contextId": said.get("contextId", f"c{self.made}")}}
        else:
            status = {"state": "TASK_STATE_COMPLETED"}
            context = said.get("contextId", f"c{self.made}")
            result = {"task": {"id": f"t{self.made}", "contextId": context, "status": status}}
        return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "result": result}))]


@pytest.fixture
def forgetful() -> Forgetful:
    return Forgetful()


@pytest.fixture
async def peer(forgetful: Forgetful) -> AsyncIterator[Peer]:
    async with raw_peer(forgetful.answers) as found:
        yield found


def sent(peer: Peer) -> list[dict[str, Any]]:
    """Return the messages that the agents got, in order."""
    bodies = [asked.json for _, asked in peer.requests if asked.operation == "send"]
    return [one["params"]["message"] for one in bodies]


def contexts(peer: Peer) -> list[str | None]:
    """Return the contexts that they named."""
    return [one.get("contextId") for one in sent(peer)]


async def send(site: GatewaySite, agent: Any, context: str = "c") -> str:
    """Send a message; return how its task ended."""
    body = {"message": message("hello", contextId=context)}
    path = f"{site.at(agent)}/message:send"
    answer = await within(site.http.post(path, json=body, headers=V1))
    return answer.json()["task"]["status"]["state"].removeprefix("TASK_STATE_")


@pytest.mark.parametrize("code", [-32602, -32600, -32001, -32004])
async def test_an_agent_that_refuses_the_context_gets_the_message_without_it(
    tmp_path: Path, peer: Peer, forgetful: Forgetful, code: int
) -> None:
    async with gateway(tmp_path) as site:
        url = f"{peer.url}/plain"
        agent = await site.register(url, card=card(url))
        assert await send(site, agent) == "COMPLETED"
        forgetful.refusal = {"code": code, "message": "no such context"}
        assert await send(site, agent) == "COMPLETED"
        assert contexts(peer) == [None, "c1", None]
        refused, taken = sent(peer)[1:]
        assert refused["messageId"] == taken["messageId"]
        # The conversation goes on where it began anew.
        forgetful.refusal = None
        assert await send(site, agent) == "COMPLETED"
        assert contexts(peer)[3:] == ["c2"]


async def test_a_message_is_sent_without_its_context_only_once(
    tmp_path: Path, peer: Peer, forgetful: Forgetful
) -> None:
    async with gateway(tmp_path) as site:
        url = f"{peer.url}/plain"
        agent = await site.register(url, card=card(url))
        assert await send(site, agent) == "COMPLETED"
        # Whatever it does not like about the message, it does not like it without a context.
        forgetful.refuses_all, forgetful.refusal = True, {"code": -32602, "message": "no"}
        assert await send(site, agent) == "FAILED"
        assert contexts(peer) == [None, "c1", None]
        # A task that the agent did not begin has no context there; the one before it has.
        forgetful.refusal = None
        assert await send(site, agent) == "COMPLETED"
        assert contexts(peer)[3:] == ["c1"]


@pytest.mark.parametrize("code", [-32603, -32000])
async def test_after_an_error_of_the_agents_own_the_message_is_not_sent_again(
    tmp_path: Path, peer: Peer, forgetful: Forgetful, code: int
) -> None:
    """It may have begun the work."""
    async with gateway(tmp_path) as site:
        url = f"{peer.url}/plain"
        agent = await site.register(url, card=card(url))
        assert await send(site, agent) == "COMPLETED"
        forgetful.refusal = {"code": code, "message": "context"}
        assert await send(site, agent) == "FAILED"
        assert contexts(peer) == [None, "c1"]


async def test_an_agent_that_answers_with_messages_has_conversations_too(
    tmp_path: Path, peer: Peer
) -> None:
    async with gateway(tmp_path) as site:
        url = f"{peer.url}/talker"
        agent = await site.register(url, card=card(url))
        for _ in range(3):
            assert await send(site, agent) == "COMPLETED"
        assert contexts(peer) == [None, "c1", "c1"]


async def test_an_agent_at_another_address_begins_anew(tmp_path: Path) -> None:
    shared = diary()
    async with serving(shared) as here, serving(shared) as there, gateway(tmp_path) as site:
        agent = await site.register(here.url)
        assert (await tell(site, agent, "one", "c"))[1] == ["one"]
        await site.gateway.registry.update(agent.id, AgentChanges(url=there.url), operator=True)
        assert (await tell(site, agent, "two", "c"))[1] == ["two"]


async def test_messages_at_the_same_time_each_arrive_once(tmp_path: Path) -> None:
    async with serving(diary()) as upstream, gateway(tmp_path) as site:
        agent = await site.register(upstream.url)
        await tell(site, agent, "first", "c")
        texts = [f"{number}" for number in range(8)]
        await asyncio.gather(*(tell(site, agent, text, "c") for text in texts))
        _, told = await tell(site, agent, "last", "c")
        assert told[0] == "first" and told[-1] == "last" and sorted(told[1:-1]) == texts


# Chat programs


@pytest.mark.parametrize("named", [{"user": "ann"}, {"conversation": "ours"}])
async def test_a_chat_through_the_gateway_is_one_conversation(
    tmp_path: Path, named: dict[str, str]
) -> None:
    settings = load_settings({}, store=str(tmp_path / "g.db"), openai=True, allow_private=True)
    app = gateway_app(settings=settings, is_local=True, parts=[OpenAIPart()])
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serving(diary()))
        url = await stack.enter_async_context(hosting(app))
        http = await stack.enter_async_context(client(url))
        agent = await GatewaySite(url, http, app).register(upstream.url)

        async def told(text: str, **more: str) -> str:
            body = {"model": agent.name, "messages": [{"role": "user", "content": text}], **more}
            answer = await within(http.post("/v1/chat/completions", json=body))
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["message"]["content"]

        assert '["one"]' in (await told("one", **named)).replace(" ", "")
        assert '["one","two"]' in (await told("two", **named)).replace(" ", "")
        assert '["three"]' in (await told("three")).replace(" ", "")
