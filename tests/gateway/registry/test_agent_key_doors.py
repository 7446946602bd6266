"""Where keys of agents lead, and where they do not: other servers, every route of a gateway, what
is an operator's, and what belongs to nobody."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, client, frames, hosting, message, old_message, serving
from harness.waiting import eventually, within

from dragoman import Agent, App, Settings
from dragoman.config import CardSettings, SecuritySettings, StoreSettings
from dragoman.gateway.api.api import TABLE
from dragoman.gateway.app import gateway_app
from dragoman.http.routes import BY_REQUEST, CLOSED, Access
from dragoman.model import operations as ops
from dragoman.model.identity import LOCAL, Caller
from dragoman.security.keys import key_file
from dragoman.server.scoped_service import ScopedService
from dragoman.service import Call
from tests.cli.command import call, document
from tests.gateway.gateway_site import GatewaySite, gateway, workshop
from tests.gateway.guarded_site import ALICE, BOB, OPERATOR, ask, guarded, send

TENANTS = """
[alice]
token = "alice-0123456789abcdef"
[acme]
token = "acme-0123456789abcdef"
tenant = "acme"
"""
ACME = "acme-0123456789abcdef"
SCOPES = ["agents:heartbeat"]
VERBS = ("GET", "POST", "PATCH", "DELETE")
# Where nothing answers.
AWAY = "http://127.0.0.1:9/"


@asynccontextmanager
async def known(folder: Path, **settings: Any) -> AsyncGenerator[tuple[GatewaySite, str]]:
    """A gateway with an agent of alice's; its id."""
    async with serving(workshop()) as upstream, guarded(folder, **settings) as site:
        yield site, await registered(site, ALICE, upstream.url)


async def registered(site: GatewaySite, token: str, url: str) -> str:
    body = {"endpoint": url} if url != AWAY else {"endpoint": url, "name": "own"}
    made = await ask(site, "POST", "/api/v1/agents", token, body)
    assert made.status_code == 201, made.text
    return made.json()["data"]["id"]


async def mint(site: GatewaySite, agent: str, by: str, *scopes: str, **more: Any) -> dict[str, Any]:
    body = {"name": "a key", "scopes": list(scopes), **more}
    made = await ask(site, "POST", f"/api/v1/agents/{agent}/api-keys", by, body)
    assert made.status_code == 201, made.text
    return made.json()["data"]


async def status(site: GatewaySite | httpx.AsyncClient, verb: str, path: str, key: str) -> int:
    http = site.http if isinstance(site, GatewaySite) else site
    answer = await http.request(verb, path, headers={"x-api-key": key, **V1})
    return answer.status_code


# Other servers


async def test_a_gateway_that_asks_nobody_makes_no_keys(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, gateway(tmp_path, keys=str(tmp_path / "k")) as site:
        agent = await site.register(upstream.url)
        path = f"/api/v1/agents/{agent.id}/api-keys"
        refused = await site.http.post(path, json={"name": "x"})
        assert refused.status_code == 403 and "--auth" in refused.json()["error"]["message"]
        assert (await site.http.get(path)).json() == {"data": {"keys": []}}
    assert not (tmp_path / "k").exists()


async def test_the_key_of_an_agent_opens_no_other_server(tmp_path: Path) -> None:
    async with known(tmp_path) as (site, agent):
        key = (await mint(site, agent, ALICE))["key"]
        assert await status(site, "GET", "/tasks", key) == 200
        keys, store = str(tmp_path / "keys.toml"), str(tmp_path / "gateway.db")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        others = [
            # Of the same user and with the same file of keys; on the gateway's own store.
            App(
                workshop(),
                settings=Settings(
                    stores=StoreSettings(location="memory:"),
                    security=SecuritySettings(auth=["api-key"], api_keys=keys),
                ),
            ),
            App(
                workshop(),
                settings=Settings(
                    stores=StoreSettings(location=store),
                    security=SecuritySettings(auth=["api-key"], api_keys=keys),
                ),
            ),
            gateway_app(
                settings=Settings(
                    stores=StoreSettings(location=str(elsewhere / "g.db")),
                    security=SecuritySettings(auth=["api-key"], api_keys=keys),
                ),
                is_local=True,
            ),
        ]
        for app in others:
            async with hosting(app) as url, client(url) as http:
                assert await status(http, "GET", "/tasks", key) == 401
        # Another process of the same gateway knows it.
        tokens = str(tmp_path / "tokens.toml")
        twin = Settings(
            stores=StoreSettings(location=store),
            security=SecuritySettings(
                auth=["bearer", "api-key"], auth_tokens=tokens, api_keys=keys
            ),
        )
        async with hosting(gateway_app(settings=twin, is_local=True)) as url, client(url) as http:
            assert await status(http, "GET", "/tasks", key) == 200
    assert all(not one.agent for one in key_file.read_keys(tmp_path / "keys.toml"))


def of_0_5(path: Path, owner: str) -> str:
    """Write the key of an agent into a key file as 0.5.0 did; return its text."""
    from dragoman.security.keys.api_keys import AGENT_PREFIX, hash_of, new_id, new_text

    if not path.exists():
        key_file.create(path, "somebody", scopes=[], tenant=None, lifetime=None)
    said = json.loads(path.read_text())
    text = new_text(id := new_id(), AGENT_PREFIX)
    said["keys"].append(
        {
            "id": id,
            "owner": "workshop",
            "hash": hash_of(text).hex(),
            "scopes": ["*", "dragoman:agent:0190-a"],
            "createdAt": "2026-01-01T00:00:00Z",
            "agent": "0190-a",
            "label": "old",
            "actsFor": owner,
        }
    )
    path.write_text(json.dumps(said))
    return text


async def test_keys_that_an_earlier_release_wrote_into_the_file_let_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    texts = [of_0_5(file, "token:alice"), of_0_5(file, "")]
    settings = Settings(
        stores=StoreSettings(location="memory:"),
        security=SecuritySettings(auth=["api-key"], api_keys=str(file)),
    )
    with caplog.at_level(logging.WARNING, "dragoman"):
        async with hosting(App(workshop(), settings=settings)) as url, client(url) as http:
            for text in texts:
                assert await status(http, "GET", "/tasks", text) == 401
    (said,) = [one.message for one in caplog.records if "earlier release" in one.message]
    assert "2 keys of agents" in said and "dragoman keys revoke" in said
    async with guarded(tmp_path) as site:
        for text in texts:
            assert await status(site, "GET", "/tasks", text) == 401
    env = {"DRAGOMAN_KEYS": str(file), "DRAGOMAN_STORE": str(tmp_path / "none.db")}
    items = document(await call("keys", "list", "-o", "json", cwd=tmp_path, env=env))["items"]
    assert [(one["state"], one["agent"]) for one in items[1:]] == [("refused", "0190-a")] * 2
    id = items[1]["id"]
    rotated = await call("keys", "rotate", id, cwd=tmp_path, env=env)
    assert rotated.returncode == 2 and "api-keys" in rotated.stderr
    words = ("keys", "revoke", id, "--yes", "-o", "json")
    assert document(await call(*words, cwd=tmp_path, env=env))["state"] == "revoked"


# Every route


def paths_of(app: App) -> list[tuple[str, str]]:
    """Return a verb and a path for every route of a server, and every row of the API, that is not
    open to everybody."""
    public = (Access.PUBLIC, Access.PROBE)
    routes = [one for one in app.site.routes if one.name and one.access not in public]
    verbs = [(verb, one.name.replace("*", "x")) for one in routes for verb in VERBS]
    rows = [one for one in TABLE.endpoints if one.access not in public]
    return [*verbs, *((one.verb, one.path.replace("{", "").replace("}", "")) for one in rows)]


def test_a_route_is_closed_to_keys_of_agents_unless_it_says_otherwise(tmp_path: Path) -> None:
    app = gateway_app(
        workshop(),
        settings=Settings(
            stores=StoreSettings(location=str(tmp_path / "g.db")),
            security=SecuritySettings(auth_token=ALICE, auth=["bearer"]),
            cards=CardSettings(public=False),
        ),
    )
    for route in app.site.routes:
        if route.access is Access.OPERATOR:
            assert route.scopes == CLOSED, route.name
    heartbeat = Caller("key:a", True, agent="a", key_scopes=frozenset(SCOPES))
    is_open = {
        route.name
        for route in app.site.routes
        if route.access is Access.CALLER and route.opens_to(heartbeat)
    }
    # What these answer is held to the scope of what is asked.
    held = {route.name for route in app.site.routes if route.scopes is BY_REQUEST}
    assert is_open <= held


async def test_no_route_shows_anything_to_a_key_that_is_for_heartbeats(tmp_path: Path) -> None:
    async with known(tmp_path, card_public=False) as (site, agent):
        begun = await send(site, ALICE, "/a2a/workshop")
        key = (await mint(site, agent, ALICE, "agents:heartbeat"))["key"]
        app = site._app
        for verb, path in paths_of(app):
            path = path.replace("/agents/id", f"/agents/{agent}").replace("/id", f"/{begun['id']}")
            if path.endswith("/heartbeat"):
                continue
            answer = await ask(site, verb, path, key, None if verb == "GET" else {})
            told = (verb, path, answer.status_code, answer.text)
            # JSON-RPC tells of an error in the body.
            assert answer.status_code >= 400 or "error" in answer.json(), told
            assert begun["id"] not in answer.text and "Workshop" not in answer.text, told
        assert (await ask(site, "POST", f"/api/v1/agents/{agent}/heartbeat", key, {})).is_success


async def test_every_row_of_the_api_is_refused_to_a_key_that_is_for_heartbeats(
    tmp_path: Path,
) -> None:
    async with known(tmp_path) as (site, agent):
        key = (await mint(site, agent, ALICE, "agents:heartbeat"))["key"]
        for row in TABLE.endpoints:
            if row.access is not Access.CALLER or row.path.endswith("/heartbeat"):
                continue
            path = row.path.replace("{id}", agent).replace("{", "").replace("}", "")
            answer = await ask(site, row.verb, path, key, {} if row.body else None)
            assert answer.status_code == 403, (row.verb, path, answer.text)


async def test_the_card_of_an_agent_for_some_callers_needs_a_scope_as_well(tmp_path: Path) -> None:
    async with known(tmp_path) as (site, agent):
        body = {"callers": ["token:bob"]}
        changed = await ask(site, "PATCH", f"/api/v1/agents/{agent}", ALICE, body)
        assert changed.status_code == 200, changed.text
        # Its name changed with it: the plain one is left to others.
        name = changed.json()["data"]["slug"]
        path = f"/a2a/{name}/.well-known/agent-card.json"
        for scope, found in (("agents:heartbeat", 403), ("agents:read", 200), ("tasks:write", 200)):
            key = (await mint(site, agent, ALICE, scope))["key"]
            assert await status(site, "GET", path, key) == found, scope


CALLS = {
    "1.0": ("/", "SendMessage", V1, {"message": message("hi")}),
    "1.0 stream": ("/", "SendStreamingMessage", V1, {"message": message("hi")}),
    "1.0 list": ("/", "ListTasks", V1, {}),
    "1.0 card": ("/agents/workshop/", "GetExtendedAgentCard", V1, {}),
    "0.3": ("/", "message/send", {}, {"message": old_message("hi")}),
    "nexus": ("/a2a", "tasks/send", {}, {"id": "t-1", "message": old_message("hi")}),
    "selectools": ("/", "tasks/get", {}, {"id": "t-1"}),
    "r": ("/api/a2a", "message/send", {}, {"message": old_message("hi")}),
    "process": ("/agents/workshop/", "SendMessage", V1, {"message": message("hi")}),
    "registered": ("/a2a/workshop/", "SendMessage", V1, {"message": message("hi")}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_no_dialect_takes_a_task_from_a_key_that_is_for_heartbeats(
    tmp_path: Path, name: str
) -> None:
    path, method, headers, params = CALLS[name]
    agent = Agent("Workshop", "Does one of each.", extended_skills=[])

    @agent.skill
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    async with guarded(tmp_path, agent) as site:
        await site._app.listening([site.url])
        own = await registered(site, ALICE, AWAY)
        key = (await mint(site, own, ALICE, "agents:heartbeat"))["key"]
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await site.http.post(path, json=body, headers={"x-api-key": key, **headers})
        told = json.loads(answer.text.removeprefix("data: "))
        assert "error" in told and "result" not in told, answer.text
        assert "not for this" in answer.text, answer.text
        operation = ops.ListTasks(page_size=10)
        for engine in site.app.site.engines.values():
            reply: Any = await engine.answer(
                Call(operation=operation, caller=Caller("token:alice"))
            )
            assert not reply.tasks


async def test_an_operation_that_no_scope_names_needs_all_of_them() -> None:
    class Unnamed(ops.Operation, frozen=True, kw_only=True):
        """Made up."""

    class Service:
        async def answer(self, call: Call) -> Any:
            return "answered"

    service = ScopedService(Service())  # type: ignore[arg-type]  # as much of one as is asked
    for scopes, is_open in ((["tasks:write", "tasks:read"], False), (["*"], True)):
        caller = Caller("key:a", True, agent="a", key_scopes=frozenset(scopes))
        call_ = Call(operation=Unnamed(), caller=caller)
        if is_open:
            assert await service.answer(call_) == "answered"
        else:
            with pytest.raises(Exception, match="not for this"):
                await service.answer(call_)


async def test_a_key_that_is_for_everything_opens_nothing_of_an_operators(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path) as site:
        agent = await registered(site, OPERATOR, upstream.url)
        key = (await mint(site, agent, OPERATOR, "*"))["key"]
        for path in ("/metrics", "/admin/status"):
            assert await status(site, "GET", path, OPERATOR) == 401
            assert (await ask(site, "GET", path, OPERATOR)).status_code == 200, path
            assert await status(site, "GET", path, key) == 403, path
        # Nor the agents of others, which its maker may change as an operator.
        other = await registered(site, BOB, upstream.url)
        refused = await ask(site, "PATCH", f"/api/v1/agents/{other}", key, {"description": "x"})
        assert refused.status_code == 403
        default = await ask(site, "PATCH", f"/api/v1/agents/{agent}", key, {"isDefault": True})
        assert default.status_code == 403


async def test_a_key_opens_no_skill_that_its_maker_could_not_use(tmp_path: Path) -> None:
    agent = Agent("Bank", "Pays.")

    @agent.skill(scopes=["tasks:write"])
    async def pay(text: str) -> str:
        """Pay."""
        return "paid"

    async with guarded(tmp_path, agent) as site:
        own = await registered(site, ALICE, AWAY)
        keys = [ALICE]
        keys += [(await mint(site, own, ALICE, scope))["key"] for scope in ("tasks:write", "*")]
        for key in keys:
            path = "/agents/bank/message:send"
            answer = await ask(site, "POST", path, key, {"message": message("7")})
            assert answer.status_code == 403 and "paid" not in answer.text


async def test_no_key_is_made_for_agents_of_the_process_nor_for_those_of_others(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, workshop()) as site:
        await site._app.listening([site.url])
        default = next(one for one in site.gateway.registry.all() if one.is_default)
        assert default.owner == LOCAL
        for by in (ALICE, OPERATOR):
            path = f"/api/v1/agents/{default.id}/api-keys"
            refused = await ask(site, "POST", path, by, {"name": "x"})
            assert refused.status_code == 403, refused.text
        own = await registered(site, ALICE, AWAY)
        path = f"/api/v1/agents/{own}/api-keys"
        assert (await ask(site, "POST", path, OPERATOR, {"name": "x"})).status_code == 403
        key = (await mint(site, own, ALICE))["key"]
        for verb, below in (("PATCH", ""), ("DELETE", ""), ("POST", "/heartbeat")):
            refused = await ask(site, verb, f"/api/v1/agents/{default.id}{below}", key, {})
            assert refused.status_code == 403, refused.text


# Ways in


async def test_a_gateway_of_bearers_alone_knows_the_keys_it_made_and_says_so(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TENANTS)
    tokens.chmod(0o600)
    given = {"auth": "bearer", "auth_tokens": str(tokens), "allow_private": True}
    async with serving(workshop()) as upstream, gateway(tmp_path, **given) as site:
        agent = await registered(site, ALICE, upstream.url)
        key = await mint(site, agent, ALICE, "tasks:read", "tasks:write")
        assert key["made_by"] == ["token:alice"] and key["tenant"] is None
        assert await status(site, "GET", "/tasks", key["key"]) == 200
        card = (await site.http.get("/.well-known/agent-card.json", headers=V1)).json()
        assert "agentKey" in card["securitySchemes"]
        # Clients that read the first alone have a bearer token more often than a key.
        names = [name for one in card["securityRequirements"] for name in one["schemes"]]
        assert names == ["bearer", "agentKey"]
        # A key of a tenant is of no other.
        agent = await registered(site, ACME, upstream.url)
        key = await mint(site, agent, ACME)
        assert key["tenant"] == "acme" and key["made_by"] == ["token:acme"]
        assert await status(site, "GET", "/acme/tasks", key["key"]) == 200
        assert await status(site, "GET", "/globex/tasks", key["key"]) == 404
        tokens.write_text(TENANTS.replace(ACME, "other-0123456789abcdef"))

        async def has_ended() -> bool:
            return await status(site, "GET", "/acme/tasks", key["key"]) == 401

        await eventually(has_ended)
        listed = await ask(
            site, "GET", f"/api/v1/agents/{agent}/api-keys", "other-0123456789abcdef"
        )
        assert listed.json()["data"]["keys"][0]["state"] == "ended_with_parent"


async def test_a_stream_ends_with_what_made_the_key_of_its_reader(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    parent, text = key_file.create(file, "ada", scopes=[], tenant=None, lifetime=None)
    async with known(tmp_path) as (site, _):
        made = await site.http.post(
            "/api/v1/agents",
            json={"endpoint": AWAY, "name": "ada's"},
            headers={"x-api-key": text},
        )
        own = made.json()["data"]["id"]
        body = {"name": "k", "scopes": ["*"]}
        made = await site.http.post(
            f"/api/v1/agents/{own}/api-keys", json=body, headers={"x-api-key": text}
        )
        key = made.json()["data"]["key"]
        sent = {"message": message("here", metadata={"skillId": "wait"})}
        path, headers = "/a2a/workshop/message:stream", {"x-api-key": key, **V1}
        async with site.http.stream("POST", path, json=sent, headers=headers) as response:
            assert response.status_code == 200

            async def read() -> None:
                async for frame in frames(response):
                    if "waiting" in str(frame.data):
                        key_file.revoke(file, parent.id)

            await within(read())
        assert await status(site, "GET", "/tasks", key) == 401


# What is shown


async def test_the_chain_is_in_the_list_in_the_audit_log_and_in_the_command(tmp_path: Path) -> None:
    async with known(tmp_path) as (site, agent):
        first = await mint(site, agent, ALICE)
        second = await mint(site, agent, first["key"], "tasks:read")
        assert second["made_by"] == [f"nxk:{first['id']}", "token:alice"]
        listed = await ask(site, "GET", f"/api/v1/agents/{agent}/api-keys", ALICE)
        assert [one["made_by"] for one in listed.json()["data"]["keys"]] == [
            ["token:alice"],
            second["made_by"],
        ]
        assert first["key"] not in listed.text
        env = {
            "DRAGOMAN_STORE": str(tmp_path / "gateway.db"),
            "DRAGOMAN_KEYS": str(tmp_path / "keys.toml"),
            "DRAGOMAN_AUTH_TOKENS": str(tmp_path / "tokens.toml"),
        }

        async def items() -> dict[str, Any]:
            ended = await call("keys", "list", "-o", "json", cwd=tmp_path, env=env)
            return {one["id"]: one for one in document(ended)["items"]}

        shown = (await items())[second["id"]]
        assert shown["state"] == "active" and shown["agent"] == agent
        assert shown["madeBy"] == second["made_by"] and shown["parent"] == second["made_by"][0]
        text = (await call("keys", "show", second["id"], cwd=tmp_path, env=env)).stdout
        assert f"Made-By: nxk:{first['id']} < token:alice" in text
        rotated = await call("keys", "rotate", first["id"], cwd=tmp_path, env=env)
        assert rotated.returncode == 2 and "have it make another" in rotated.stderr
        # The command ends a key while the gateway runs, and with it what it made.
        words = ("keys", "revoke", first["id"], "--yes", "-o", "json")
        assert document(await call(*words, cwd=tmp_path, env=env))["state"] == "revoked"

        async def has_ended() -> bool:
            return await status(site, "GET", "/tasks", second["key"]) == 401

        await eventually(has_ended)
        assert (await items())[second["id"]]["state"] == "ended with its parent"
    lines = [
        json.loads(line) for line in (tmp_path / "gateway.db.audit.jsonl").read_text().splitlines()
    ]
    made = [line for line in lines if line["act"].startswith("key.")]
    assert [(line["act"], line["object"].split()[0]) for line in made] == [
        ("key.create", first["id"]),
        ("key.create", second["id"]),
        ("key.revoke", first["id"]),
    ]
    assert made[1]["reason"] == f"tasks:read made by nxk:{first['id']} < token:alice"
    assert all("made by" in line["reason"] for line in made)
