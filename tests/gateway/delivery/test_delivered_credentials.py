"""What an agent behind a gateway gets to see: its own credential, and no one else's anything."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, message, old_message
from harness.waiting import within

from dragoman import Client
from dragoman.client.credentials.credentials import Bearer
from dragoman.errors import A2AError, InvalidParams
from dragoman.gateway.registry.card_review import digest
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges, Secret
from dragoman.model.identity import Principal
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.malformed.script import dumped, result, task
from tests.gateway.raw_peer import Answer, Asked, Peer, card, http, raw_peer

ALICE, BOB = "canary-alice-0123456789abcdef", "canary-bob-0123456789abcdef"
OWN, OTHER = "credential-of-the-agent-1", "credential-of-the-agent-2"
BEARER = Secret(kind="bearer", value=OWN)


def canary(place: str) -> str:
    return f"canary-{place}-e5d1"


# Wherever a caller may have put something that lets it in.
HEADERS = {
    "Cookie": f"session={canary('cookie')}",
    "X-API-Key": canary("api-key"),
    "Proxy-Authorization": f"Basic {canary('proxy')}",
    "X-Forwarded-For": f"203.0.113.7, {canary('forwarded-for')}",
    "X-Forwarded-User": canary("forwarded-user"),
    "X-Forwarded-Access-Token": canary("forwarded-token"),
    "Forwarded": f"for={canary('forwarded')}",
    "X-Forwarded-Client-Cert": f"Hash={canary('xfcc')}",
    "Client-Cert": f":{canary('client-cert')}:",
    "X-SSL-Client-Cert": canary("ssl-client-cert"),
    "X-Auth-Token": canary("auth-token"),
    "X-Amz-Security-Token": canary("cloud-token"),
    "baggage": f"userId={canary('baggage')}",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": f"vendor={canary('tracestate')}",
    "A2A-Extensions": f"https://example.com/{canary('extension')}",
    "X-A2A-Extensions": f"https://example.com/{canary('old-extension')}",
    "Idempotency-Key": canary("idempotency"),
    "User-Agent": canary("user-agent"),
    "Referer": f"https://example.com/?token={canary('referer')}",
    "X-Source-Agent": canary("source-agent"),
    "X-Request-Id": canary("request-id"),
}
METADATA = {
    "authorization": f"Bearer {canary('metadata')}",
    "kept": {
        "apiKey": canary("nested-key"),
        "list": [{"deep": {"Password": canary("deep-password"), "stays": "yes"}}],
        "client_secret": {"value": canary("secret-object")},
    },
    "sessionId": canary("session"),
    "auth": {"jwt": canary("jwt")},
    "passphrase": canary("passphrase"),
    "x-forwarded-user": canary("metadata-forwarded"),
    "maxTokens": 512,
}
MESSAGE_METADATA = {
    "access_token": canary("message-token"),
    "refreshToken": canary("refresh-token"),
    "Set-Cookie": canary("message-cookie"),
    "a": {"b": {"c": {"d": {"privateKey": canary("private-key")}}}},
    "tokenCount": 7,
}
PUSH = {
    "url": f"http://127.0.0.1:9/{canary('hook')}",
    "token": canary("push-token"),
    "authentication": {"scheme": "Bearer", "credentials": canary("push-credentials")},
}
PLACES = [*HEADERS, *METADATA, *MESSAGE_METADATA, *PUSH, "query", "reference", "part"]


def recorded(name: str, asked: Asked) -> Answer:
    """Ask back once, then complete: an agent that is called in every way there is."""
    if asked.operation in ("card", "list"):
        return [http(b"{}", "404 Not Found")]
    is_answer = asked.operation == "send" and (
        "taskId" in asked.body.decode() or '"task_id"' in asked.body.decode()
    )
    state = "COMPLETED" if is_answer else "INPUT_REQUIRED"
    if asked.operation == "get":
        state = "WORKING"
    if asked.operation == "cancel":
        state = "CANCELED"
    made = task(state, id=f"t-{name}")
    value = made if asked.operation in ("get", "cancel") else {"task": made}
    if asked.id is None:
        return [http(dumped(value))]
    return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "result": value}))]


@asynccontextmanager
async def guarded(folder: Path, **settings: Any) -> AsyncIterator[GatewaySite]:
    """A gateway whose callers have tokens."""
    tokens = folder / "tokens.toml"
    tokens.write_text(f'[alice]\ntoken = "{ALICE}"\n\n[bob]\ntoken = "{BOB}"\n')
    tokens.chmod(0o600)
    given = {"auth": "bearer", "auth_tokens": str(tokens), "allow_private": True} | settings
    async with gateway(folder, **given) as gate:
        yield gate


def seen(peer: Peer) -> bytes:
    """Return every byte that came, also what was packed in base64."""
    whole = b"".join(asked.head + asked.body for _, asked in peer.requests)
    for _, asked in peer.requests:
        for _, value in asked.headers:
            try:
                whole += base64.b64decode(value.rpartition(" ")[2], validate=True)
            except ValueError:
                continue
    return whole


def shown(peer: Peer, name: str = "") -> set[str]:
    """Return the credentials that an agent, or anyone there, was shown."""
    found = (
        value
        for at, asked in peer.requests
        if at == name or not name
        for header, value in asked.headers
        if header in ("authorization", "x-api-key", "x-own")
    )
    return {value.removeprefix("Bearer ") for value in found}


async def asked_everywhere(gate: GatewaySite, agent: Registered, foreign: str) -> None:
    """Send with a canary in every place, over both bindings and in an old version; answer the
    question; look, follow and cancel."""
    headers = HEADERS | {"Authorization": f"Bearer {ALICE}"}
    part = {"text": "hello", "metadata": {"token": canary("part")}}
    extra: dict[str, Any] = {
        "metadata": MESSAGE_METADATA,
        "extensions": [f"https://example.com/{canary('message-extension')}"],
        "referenceTaskIds": [foreign],
    }
    query = f"?access_token={canary('query')}&api_key={canary('query-key')}"
    at = gate.at(agent)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as caller:

        async def post(path: str, body: Any, version: str = "1.0") -> Any:
            sent = headers | {"A2A-Version": version}
            response = await caller.post(f"{at}{path}{query}", json=body, headers=sent)
            assert response.status_code == 200, response.text
            return response.json()

        async def rpc(method: str, params: Any, version: str = "1.0") -> Any:
            body = {"jsonrpc": "2.0", "id": canary("rpc-id"), "method": method, "params": params}
            answer = await post("", body, version)
            assert "result" in answer, answer
            return answer["result"]

        params = {
            "message": message(None, parts=[part], **extra),
            "metadata": METADATA,
            "configuration": {"returnImmediately": False},
        }
        first = (await rpc("SendMessage", params))["task"]
        again = {"message": message("Rome", taskId=first["id"], metadata=MESSAGE_METADATA)}
        done = (await rpc("SendMessage", again))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED", done
        pushed = {
            "message": message("one", **extra),
            "metadata": METADATA,
            "configuration": {"taskPushNotificationConfig": PUSH, "returnImmediately": True},
        }
        second = (await post("/message:send", pushed))["task"]
        await rpc("GetTask", {"id": second["id"]})
        await rpc("CancelTask", {"id": second["id"], "metadata": METADATA})
        old = {
            "message": old_message("two", **extra),
            "metadata": METADATA,
            "configuration": {"blocking": True},
        }
        third = await rpc("message/send", old, "0.3")
        assert third["status"]["state"] == "input-required", third


@pytest.mark.parametrize(
    ("version", "binding"), [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3", "JSONRPC")]
)
async def test_nothing_that_lets_a_caller_in_reaches_an_agent(
    tmp_path: Path, version: str, binding: str
) -> None:
    assert len(PLACES) >= 20
    play = recorded if version == "1.0" else recorded_old
    async with raw_peer(play) as peer, guarded(tmp_path) as gate:
        url = f"{peer.url}/one"
        made = card(url, version=version, binding=binding)
        agent = await gate.register(url, "alice", card=made, credential=BEARER)
        async with gate.client(agent, bearer=BOB) as bob:
            foreign = await within(bob.send("mine"))
        await asked_everywhere(gate, agent, foreign.task_id)
        bytes_seen = seen(peer)
        leaked = [place for place in (b"canary-", foreign.task_id.encode()) if place in bytes_seen]
        assert not leaked, [
            line for line in bytes_seen.split(b"\r\n") if any(place in line for place in leaked)
        ]
        # Its own credential came with every call, and what is no credential came as well.
        calls = [asked for _, asked in peer.requests if asked.operation == "send"]
        assert len(calls) >= 5
        assert shown(peer) == {OWN}
        assert b'"stays"' in bytes_seen and b'"maxTokens"' in bytes_seen
        assert b'"tokenCount"' in bytes_seen


async def test_agents_that_race_are_told_no_more_than_one_alone(tmp_path: Path) -> None:
    racing, all_race = set[str](), asyncio.Event()

    async def finished(name: str, asked: Asked) -> Answer:
        if asked.verb == "HEAD":
            return [http(b"")]
        if asked.operation == "send":
            # Whoever is first ends it for the other, who might not have been asked.
            racing.add(name)
            if len(racing) == 2:
                all_race.set()
            await within(all_race.wait())
        return result({"task": task()})(asked)

    async with raw_peer(finished) as peer, guarded(tmp_path) as gate:
        for name, value in (("one", OWN), ("two", OTHER)):
            agent = await gate.register(
                f"{peer.url}/{name}",
                "alice",
                name=name,
                card=card(f"{peer.url}/{name}"),
                credential=Secret(kind="bearer", value=value),
                repeatable=True,
            )
            await gate.gateway.registry.probe(agent.id, Principal.read("alice"))
        headers = HEADERS | V1 | {"Authorization": f"Bearer {ALICE}"}
        said = message(
            None,
            parts=[{"text": "hello", "metadata": {"token": canary("part")}}],
            metadata=MESSAGE_METADATA,
            extensions=[f"https://example.com/{canary('extension')}"],
            referenceTaskIds=[canary("reference")],
        )
        body = {"message": said, "metadata": METADATA | {"race": 2, "skillId": "s"}}
        response = await gate.http.post("/message:send", json=body, headers=headers)
        assert response.status_code == 200, response.text
        assert response.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert peer.count("one", "send") == peer.count("two", "send") == 1
        assert b"canary-" not in seen(peer)
        assert (shown(peer, "one"), shown(peer, "two")) == ({OWN}, {OTHER})


def recorded_old(name: str, asked: Asked) -> Answer:
    """The same in 0.3."""
    (answer,) = recorded(name, asked)
    assert isinstance(answer, bytes)
    if asked.id is None:
        return [answer]
    value = json.loads(answer.partition(b"\r\n\r\n")[2])
    inner = value["result"].get("task", value["result"])
    state = inner["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
    old = {"kind": "task", "id": inner["id"], "contextId": "c-1", "status": {"state": state}}
    return [http(dumped(value | {"result": old}))]


@pytest.mark.parametrize(
    ("secret", "header"),
    [
        (BEARER, "authorization"),
        (Secret(kind="apiKey", value=OWN), "x-api-key"),
        (Secret(kind="header", value=OWN, header="X-Own"), "x-own"),
    ],
)
async def test_an_agents_own_credential_comes_in_the_header_its_owner_named(
    tmp_path: Path, secret: Secret, header: str
) -> None:
    async with raw_peer(recorded) as peer, guarded(tmp_path) as gate:
        url = f"{peer.url}/one"
        agent = await gate.register(url, "alice", card=card(url), credential=secret)
        async with gate.client(agent, bearer=ALICE) as caller:
            await within(caller.send("x"))
        named = {
            name for _, asked in peer.requests for name, value in asked.headers if OWN in value
        }
        assert named == {header}


async def test_agents_of_two_owners_never_get_each_others_credential(tmp_path: Path) -> None:
    async with raw_peer(recorded) as peer, guarded(tmp_path) as gate:
        agents = []
        for name, owner, value in (("one", "alice", OWN), ("two", "bob", OTHER), ("no", "bob", "")):
            url = f"{peer.url}/{name}"
            secret = Secret(kind="bearer", value=value) if value else None
            agents.append(await gate.register(url, owner, card=card(url), credential=secret))
        # The same address again, by somebody who has no credential for it.
        url = f"{peer.url}/one"
        twin = await gate.register(url, "bob", card=card(url), name="Twin")
        for _ in range(2):
            for agent in agents:
                for token in (ALICE, BOB):
                    async with gate.client(agent, bearer=token) as caller:
                        await within(caller.send("x"))
        assert (shown(peer, "one"), shown(peer, "two"), shown(peer, "no")) == (
            {OWN},
            {OTHER},
            set(),
        )
        before = len(peer.requests)
        async with gate.client(twin, bearer=BOB) as caller:
            await within(caller.send("x"))
        sent = [asked for _, asked in peer.requests[before:] if asked.operation == "send"]
        assert sent and not any(OWN in value for asked in sent for _, value in asked.headers)


async def test_a_card_that_turns_to_another_origin_takes_no_credential_there(
    tmp_path: Path,
) -> None:
    async with raw_peer(recorded) as thief, guarded(tmp_path) as gate:
        places: dict[str, str] = {}

        def honest(name: str, asked: Asked) -> Answer:
            if asked.operation == "card":
                return [http(dumped(card(places["card"])))]
            return recorded(name, asked)

        async with raw_peer(honest) as peer:
            places["card"] = f"{peer.url}/one"
            agent = await gate.register(f"{peer.url}/one", "alice", credential=BEARER)
            places["card"] = f"{thief.url}/one"
            after = await gate.gateway.registry.probe(agent.id, Principal.read("alice"))
            assert after.pending is not None and after.pending_reason
            async with gate.client(agent, bearer=ALICE) as caller:
                await within(caller.send("x"))
            assert peer.count("one", "send") == 1 and shown(peer, "one") == {OWN}
            assert thief.requests == []
            # Its owner accepts the card only together with where it leads.
            with pytest.raises(InvalidParams, match="origin"):
                await gate.gateway.registry.accept(
                    agent.id, digest(after.pending), Principal.read("alice")
                )
            async with gate.client(agent, bearer=ALICE) as caller:
                await within(caller.send("x"))
            assert thief.requests == []


async def settled(caller: Client) -> str:
    """Send; return how it ended, however that was."""
    try:
        return (await within(caller.send("x"))).text
    except A2AError as error:
        return str(error)


async def test_a_card_of_another_origin_is_called_only_where_its_owner_says_so(
    tmp_path: Path,
) -> None:
    async with (
        raw_peer(recorded) as elsewhere,
        raw_peer(recorded) as peer,
        guarded(tmp_path) as gate,
    ):
        url, there = f"{peer.url}/one", f"{elsewhere.url}/one"
        for origins in ([], [elsewhere.url]):
            try:
                agent = await gate.register(
                    url, "alice", card=card(there), credential=BEARER, origins=origins
                )
            except InvalidParams:
                assert not origins
                continue
            async with gate.client(agent, bearer=ALICE) as caller:
                await settled(caller)
            assert (OWN.encode() in seen(elsewhere)) is bool(origins)
        assert OWN.encode() in seen(elsewhere)


async def test_an_agent_that_moves_is_shown_its_credential_where_its_owner_moved_it(
    tmp_path: Path,
) -> None:
    async with raw_peer(recorded) as later, raw_peer(recorded) as peer, guarded(tmp_path) as gate:
        url, moved = f"{peer.url}/one", f"{later.url}/one"
        agent = await gate.register(url, "alice", card=card(url), credential=BEARER)
        registry = gate.gateway.registry
        with pytest.raises(A2AError):
            await registry.update(agent.id, AgentChanges(url=moved), Principal.read("bob"))
        changes = AgentChanges(url=moved, credential=Secret(kind="bearer", value=OTHER))
        await registry.update(agent.id, changes, Principal.read("alice"))
        async with gate.client(agent, bearer=ALICE) as caller:
            await settled(caller)
        assert OWN.encode() not in seen(later)
        assert OTHER.encode() not in seen(peer)


def test_a_registered_credential_is_not_in_what_is_shown_of_it() -> None:
    assert OWN not in repr(BEARER) and OWN not in repr(Bearer(OWN))
    assert OWN not in str(Registered(id="x", name="x", title="x", url="http://a.test"))
