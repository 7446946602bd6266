"""Who may ask what: marked routes, known callers, skills with scopes, tenants with walls."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, app_of, client, frames, hosting, message, old_message
from harness.waiting import within

from dragoman import Agent, App, Settings, Turn
from dragoman.config import HttpSettings, StoreSettings, TelemetrySettings, load_settings
from dragoman.errors import ConfigError
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access, Routes
from dragoman.model.identity import ADMIN, OPERATOR, Caller
from dragoman.security.authentication import CredentialRefused, Evidence, Gatekeeper, Pass
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.transports import rest

TOKENS = {
    "alice-token-0123456789": Caller("alice", True),
    "golden-token-0123456789": Caller("goldie", True, frozenset({"gold"})),
    "acme-token-0123456789": Caller("anna", True, tenant="acme"),
    "boss-token-0123456789": Caller("boss", True, frozenset({OPERATOR})),
    "chief-token-0123456789": Caller("chief", True, frozenset({ADMIN}), "acme"),
    "free-token-0123456789": Caller("anna", True),
}
ALICE, GOLDIE, ANNA, BOSS, CHIEF, FREE_ANNA = TOKENS
WAIT = {"skillId": "wait"}


def house() -> Agent:
    agent = Agent("House", "has doors", extended_skills=[])

    @agent.skill
    async def hello(text: str, turn: Turn) -> str:
        """Greet."""
        return f"{text} {turn.caller.owner}"

    @agent.skill(scopes=["gold"])
    def vault(text: str) -> str:
        """Open the vault."""
        return "opened"

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        """Wait for a word."""
        return (await turn.ask("well?")).text

    return agent


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncGenerator[tuple[httpx.AsyncClient, App]]:
    chosen = load_settings({}, store="memory:", keepalive=0.2, **settings)
    app = App(house(), settings=chosen, authenticators=[BearerTokens(tokens=TOKENS)])
    async with hosting(app) as url, client(url) as http:
        yield http, app


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **V1}


async def send(http: httpx.AsyncClient, token: str, path: str = "/", **more: Any) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message("x")}}
    body["params"].update(more.pop("params", {}))
    body["params"]["message"].update(more)
    return await http.post(path, json=body, headers=bearer(token))


def test_a_route_that_nobody_marked_ends_the_start() -> None:
    async def answer(request: HttpRequest) -> None: ...

    routes = Routes()
    routes.add("/open", answer, Access.PUBLIC)
    routes.add("/forgotten", answer, None)
    routes.add_others(answer, Access.CALLER)
    with pytest.raises(ConfigError, match="/forgotten"):
        routes.check()


def test_what_no_route_is_must_be_marked_as_well() -> None:
    async def answer(request: HttpRequest) -> None: ...

    routes = Routes()
    routes.add_others(answer, None)
    with pytest.raises(ConfigError, match="others"):
        routes.check()


@pytest.mark.requirement("T-48")
async def test_every_path_asks_who_calls_unless_it_is_public() -> None:
    async with guarded() as (http, _):
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/healthz"):
            assert (await http.get(path)).status_code == 200, path
        refusals = [
            await http.post("/", json={}),
            await http.post("/rpc", content=b"not json"),
            await http.post("/a2a", json={}),
            await http.post("/api/a2a", json={}),
            await http.post("/message:send", json={}),
            await http.post("/v1/message:send", json={}),
            await http.get("/tasks"),
            await http.get("/tasks/none"),
            await http.get("/nothing/is/here"),
            await http.get("/extendedAgentCard"),
            await http.get("/agent/authenticatedExtendedCard"),
            await http.get("/agents/house/tasks"),
            await http.post("/agents/house/a2a", json={}),
            await http.get("/metrics"),
        ]
        assert {answer.status_code for answer in refusals} == {401}
        assert len({answer.content for answer in refusals}) == 1
        assert len({answer.headers["www-authenticate"] for answer in refusals}) == 1


@pytest.mark.requirement("T-50")
async def test_a_skill_with_scopes_is_for_those_who_have_them() -> None:
    asked = {"metadata": {"skillId": "vault"}}
    async with guarded() as (http, _):
        opened = await send(http, GOLDIE, **asked)
        assert opened.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        refused = await send(http, ALICE, **asked)
        assert refused.status_code == 403
        assert "jsonrpc" not in refused.json()
        assert 'scope="gold"' in refused.headers["www-authenticate"]
        over_rest = await http.post(
            "/message:send", json={"message": message("x", **asked)}, headers=bearer(ALICE)
        )
        assert over_rest.status_code == 403
        listed = await http.get("/tasks", headers=bearer(ALICE))
        assert listed.json()["totalSize"] == 0


async def test_the_r_dialect_says_forbidden_within_json_rpc() -> None:
    asked = {"metadata": {"skillId": "vault"}}
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "message/send",
        "params": {"message": old_message("x", **asked)},
    }
    async with guarded() as (http, _):
        headers = {"authorization": f"Bearer {ALICE}"}
        answer = await http.post("/api/a2a", json=body, headers=headers)
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert error["code"] == -32603
        assert error["message"] == "Forbidden: Insufficient permissions for skill 'vault'"
        assert error["data"]["reason"] == "FORBIDDEN"


async def test_statuses_of_the_r_dialect_say_which_trace_they_belong_to() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {
        "authorization": f"Bearer {ALICE}",
        "traceparent": f"00-{trace}-00f067aa0ba902b7-01",
    }
    async with guarded() as (http, _):
        for path in ("/api/a2a", "/a2a"):
            params = {"message": old_message("x")}
            body = {"jsonrpc": "2.0", "id": 7, "method": "message/stream", "params": params}
            async with http.stream("POST", path, json=body, headers=headers) as response:
                events = [frame.result async for frame in frames(response)]
            statuses = [event for event in events if event["kind"] == "status-update"]
            assert statuses
            for status in statuses:
                metadata = status.get("metadata", {})
                if path == "/a2a":
                    assert "traceId" not in metadata
                else:
                    assert metadata["traceId"] == trace
                    assert len(metadata["spanId"]) == 16
                    assert metadata["spanId"] != "00f067aa0ba902b7"


async def test_a_further_message_may_not_slip_into_a_guarded_skill() -> None:
    async with guarded() as (http, _):
        asked = await send(http, ALICE, metadata={"skillId": "wait"})
        task = asked.json()["result"]["task"]
        more = {"taskId": task["id"], "metadata": {"skillId": "vault"}}
        assert (await send(http, ALICE, **more)).status_code == 403
        done = await send(http, ALICE, taskId=task["id"])
        assert done.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_answer_is_taken_from_those_who_may_use_the_skill_that_asked() -> None:
    """Two credentials of one owner: what one may not begin, it may not go on with either, whatever
    its message says it is for."""
    agent = Agent("Bank", "pays")

    @agent.skill(scopes=["pay"])
    async def approve(text: str, turn: Turn) -> str:
        """Pay, if that is wanted."""
        return f"paid: {(await turn.ask('sure?')).text} {sorted(turn.caller.scopes)}"

    @agent.skill
    async def greet(text: str, turn: Turn) -> str:
        """Greet."""
        await turn.ask("who?")
        return f"hello {sorted(turn.caller.scopes)}"

    payer, reader = "payer-token-0123456789", "reader-token-0123456789"
    tokens = {payer: Caller("ada", True, frozenset({"pay"})), reader: Caller("ada", True)}
    settings = Settings(stores=StoreSettings(location="memory:"))
    app = App(agent, settings=settings, authenticators=[BearerTokens(tokens=tokens)])
    async with hosting(app) as url, client(url) as http:
        begun = await send(http, payer, metadata={"skillId": "approve"})
        task = begun.json()["result"]["task"]["id"]
        for said in ({}, {"metadata": {"skillId": "greet"}}):
            assert (await send(http, reader, taskId=task, **said)).status_code == 403
        named = {"params": {"metadata": {"skillId": "greet"}}}
        assert (await send(http, reader, taskId=task, **named)).status_code == 403
        done = await send(http, payer, taskId=task)
        assert "paid: x ['pay']" in done.text
        # And what a credential grants is known by the message it brought.
        begun = await send(http, payer, metadata={"skillId": "greet"})
        task = begun.json()["result"]["task"]["id"]
        assert "hello []" in (await send(http, reader, taskId=task)).text


async def test_a_scoped_skill_is_closed_where_nobody_is_asked_who_they_are() -> None:
    app = app_of(house())
    async with hosting(app) as url, client(url) as http:
        asked = {"message": message("x", metadata={"skillId": "vault"})}
        answer = await http.post("/message:send", json=asked, headers=V1)
        assert answer.status_code == 403


async def test_a_credential_for_one_tenant_opens_no_other() -> None:
    async with guarded() as (http, _):
        own = await send(http, ANNA)
        task = own.json()["result"]["task"]["id"]
        for tenant in ("", "acme/"):
            found = await http.get(f"/{tenant}tasks/{task}", headers=bearer(ANNA))
            assert found.status_code == 200
        for path in (f"/other/tasks/{task}", f"/nowhere/tasks/{task}"):
            found = await http.get(path, headers=bearer(ANNA))
            assert found.status_code == 404
        never = await http.get("/tasks/never", headers=bearer(ANNA))
        foreign = await http.get("/other/tasks/never", headers=bearer(ANNA))
        assert (never.status_code, never.content) == (foreign.status_code, foreign.content)
        refused = await send(http, ANNA, params={"tenant": "other"})
        assert refused.json()["error"]["code"] == -32001


async def test_a_credential_for_no_tenant_is_nobody_there_but_itself() -> None:
    """It may name any tenant, and finds none of what the same name's credential for it has."""
    async with guarded() as (http, _):
        theirs = (await send(http, ANNA)).json()["result"]["task"]["id"]
        for verb, path in (
            ("GET", "/acme/tasks/{}"),
            ("POST", "/acme/tasks/{}:cancel"),
            ("GET", "/acme/tasks/{}/pushNotificationConfigs"),
        ):
            found = [
                await http.request(verb, path.format(id), headers=bearer(FREE_ANNA))
                for id in (theirs, "never")
            ]
            assert {one.status_code for one in found} == {404}, path
            assert found[0].text.replace(theirs, "never") == found[1].text
        listed = (await http.get("/acme/tasks", headers=bearer(FREE_ANNA))).json()
        assert not listed["tasks"]
        # Its own are there, in the tenant that it named and in no other, and not the other's.
        asked = await send(http, FREE_ANNA, params={"tenant": "acme"}, metadata=WAIT)
        own = asked.json()["result"]["task"]["id"]
        places = ("/acme", 200, FREE_ANNA), ("", 404, FREE_ANNA), ("/acme", 404, ANNA)
        for place, status, token in places:
            found = await http.get(f"{place}/tasks/{own}", headers=bearer(token))
            assert found.status_code == status, (place, token)
        # An admin of the tenant, in the name of whose task it is, ends it.
        ended = await http.post(f"/api/v1/console/tasks/{own}/cancel", headers=bearer(CHIEF))
        assert ended.status_code == 200, ended.text


async def test_what_belongs_to_the_server_is_for_its_operators() -> None:
    async with guarded() as (http, _):
        for token, status in ((ALICE, 403), (CHIEF, 403), (BOSS, 200)):
            assert (await http.get("/metrics", headers=bearer(token))).status_code == status


@pytest.mark.parametrize(("is_local", "status"), [(True, 200), (False, 404)])
async def test_where_nobody_is_asked_nobody_is_an_operator(is_local: bool, status: int) -> None:
    app = App(
        house(), settings=Settings(stores=StoreSettings(location="memory:")), is_local=is_local
    )
    async with hosting(app) as url, client(url) as http:
        assert (await http.get("/metrics")).status_code == status
        assert (await http.get("/admin/status")).status_code == 404


async def test_a_revoked_caller_loses_its_open_streams() -> None:
    class Revocable(Clumsy):
        is_revoked = False

        async def authenticate(self, evidence: Evidence) -> Pass | None:
            return Pass(Caller("alice", True), self)

        def still_holds(self, found: Pass) -> bool:
            return not self.is_revoked

    way = Revocable()
    settings = Settings(stores=StoreSettings(location="memory:"), http=HttpSettings(keepalive=0.2))
    app = App(house(), settings=settings, authenticators=[way])
    async with hosting(app) as url, client(url) as http:
        body = {"message": message("x", metadata={"skillId": "wait"})}
        created = await http.post("/message:send", json=body, headers=bearer(ALICE))
        task = created.json()["task"]["id"]
        stream = http.stream("GET", f"/tasks/{task}:subscribe", headers=bearer(ALICE))
        async with stream as response:
            lines = response.aiter_lines()
            assert (await within(anext(lines))).startswith("id:")
            way.is_revoked = True
            async with asyncio.timeout(60):
                async for _ in lines:
                    pass
        assert (await http.get("/tasks", headers=bearer(ALICE))).status_code == 401


class Clumsy:
    """An authenticator that breaks."""

    name = "clumsy"
    challenge = ""
    reads = frozenset({b"authorization"})

    def __init__(self) -> None:
        self.schemes: dict[str, Any] = {}
        self.breaks_later = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        if not self.breaks_later:
            raise RuntimeError("boom")
        return Pass(Caller("alice", True), self)

    def still_holds(self, found: Pass) -> bool:
        raise RuntimeError("boom")


@pytest.mark.parametrize("breaks_later", [False, True])
async def test_whatever_goes_wrong_inside_keeps_the_caller_out(breaks_later: bool) -> None:
    clumsy = Clumsy()
    clumsy.breaks_later = breaks_later
    app = App(
        house(),
        settings=Settings(stores=StoreSettings(location="memory:")),
        authenticators=[clumsy],
    )
    async with hosting(app) as url, client(url) as http:
        answer = await send(http, ALICE)
        assert answer.status_code == 401


async def test_verdicts_are_remembered_by_every_header_that_counts() -> None:
    asked = 0

    class Counting(BearerTokens):
        async def authenticate(self, evidence: Evidence) -> Pass | None:
            nonlocal asked
            asked += 1
            return await super().authenticate(evidence)

    keeper = Gatekeeper([Counting(tokens=TOKENS)])
    first = Evidence([(b"authorization", b"Bearer " + ALICE.encode()), (b"accept", b"a")])
    again = Evidence([(b"authorization", b"Bearer " + ALICE.encode()), (b"accept", b"b")])
    other = Evidence([(b"authorization", b"Bearer " + GOLDIE.encode())])
    assert (await keeper.admit(first)).caller == (await keeper.admit(again)).caller
    assert asked == 1
    assert (await keeper.admit(other)).caller.owner.endswith("goldie")
    assert asked == 2


def test_no_tenant_has_a_name_that_is_a_path_of_ours() -> None:
    """Its paths would be answered by something else, or be open to somebody else."""
    app = App(
        house(),
        settings=Settings(
            stores=StoreSettings(location="memory:"), telemetry=TelemetrySettings(metrics=True)
        ),
    )
    paths = [*app.site.routes._exact, *app.site.routes._below]
    first = {path.strip("/").split("/")[0] for path in paths} - {""}
    assert {"admin", "metrics", "healthz", "readyz", ".well-known"} <= first
    assert first <= rest.RESERVED
    for name in first | {"agents"}:
        assert not isinstance(rest.find("GET", f"/{name}/tasks/x:subscribe"), rest.RestRoute)


@pytest.mark.parametrize(
    ("scopes", "is_remembered"),
    [
        ([f"s{number}" for number in range(64)], True),
        ([f"s{number}" for number in range(65)], False),
        (["s" * 2048], True),
        (["s" * 2049], False),
    ],
)
async def test_verdicts_that_take_much_memory_are_not_remembered(
    scopes: list[str], is_remembered: bool
) -> None:
    """Whoever has endless tokens with endless scopes would take it."""
    keeper = Gatekeeper([BearerTokens(tokens={ALICE: Caller("a", True, frozenset(scopes))})])
    evidence = Evidence([(b"authorization", b"Bearer " + ALICE.encode())])
    for _ in range(2):
        assert (await keeper.admit(evidence)).caller.scopes == frozenset(scopes)
    assert bool(keeper._remembered) is is_remembered


async def test_one_way_that_refuses_leaves_the_others_a_chance() -> None:
    class Refusing(Clumsy):
        async def authenticate(self, evidence: Evidence) -> Pass | None:
            raise CredentialRefused("never")

    keeper = Gatekeeper([Refusing(), BearerTokens(tokens=TOKENS)])
    evidence = Evidence([(b"authorization", b"Bearer " + ALICE.encode())])
    assert (await keeper.admit(evidence)).caller.authenticated


async def test_the_card_says_how_to_prove_who_one_is() -> None:
    async with guarded() as (http, _):
        new = (await http.get("/.well-known/agent-card.json", headers=V1)).json()
        assert new["securitySchemes"] == {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
        }
        assert new["securityRequirements"] == [{"schemes": {"bearer": {"list": []}}}]
        skills = {skill["id"]: skill for skill in new["skills"]}
        assert skills["vault"]["securityRequirements"] == [
            {"schemes": {"bearer": {"list": ["gold"]}}}
        ]
        assert "securityRequirements" not in skills["hello"]
        old = (await http.get("/.well-known/agent.json")).json()
        assert old["securitySchemes"]["bearer"] == {"type": "http", "scheme": "Bearer"}
        assert old["security"] == [{"bearer": []}]


async def test_a_card_may_be_for_known_callers_only() -> None:
    async with guarded(card_public=False) as (http, _):
        assert (await http.get("/.well-known/agent-card.json")).status_code == 401
        known = await http.get("/.well-known/agent-card.json", headers=bearer(ALICE))
        assert known.status_code == 200


async def test_owners_see_their_own_tasks_only() -> None:
    async with guarded() as (http, _):
        task = (await send(http, ALICE)).json()["result"]["task"]["id"]
        assert (await http.get(f"/tasks/{task}", headers=bearer(ALICE))).status_code == 200
        for token in (GOLDIE, ANNA, BOSS, CHIEF):
            foreign = await http.get(f"/tasks/{task}", headers=bearer(token))
            never = await http.get("/tasks/" + "0" * len(task), headers=bearer(token))
            assert foreign.content.replace(task.encode(), b"0" * len(task)) == never.content
        listed = await http.get("/tasks", headers=bearer(BOSS))
        assert json.loads(listed.content)["totalSize"] == 0


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    class Unready(Clumsy):
        is_ready = False

        async def start(self) -> None:
            if not self.is_ready:
                raise OSError("the disk is away")

    way = Unready()
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db")))
    app = App(house(), settings=settings, authenticators=[BearerTokens(tokens=TOKENS), way])
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    with pytest.raises(OSError, match="away"):
        await app.start()
    assert asyncio.all_tasks() == tasks
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    assert not [name for name in left if name.startswith(("dragoman", "agent"))]
    way.is_ready = True
    async with app.running():
        pass


@pytest.mark.parametrize("scope", ["", "two words", 'quo"te', "line\nend", "ümlaut"])
def test_what_is_no_scope_is_refused_where_it_is_written(scope: str) -> None:
    agent = Agent("House", "has doors")
    with pytest.raises(ConfigError, match="scope"):
        agent.skill(scopes=[scope])
