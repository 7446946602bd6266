"""Who may try new versions: the owner of an agent, and operators; by the API and the console."""

from pathlib import Path
from typing import Any

import pytest
from harness.serving import client, hosting

from dragoman.config import load_settings
from dragoman.console.part import ConsolePart
from dragoman.gateway.app import gateway_app
from tests.console.sites import Visitor
from tests.gateway.gateway_site import GatewaySite
from tests.gateway.guarded_site import ALICE, BOB, OPERATOR, ask, guarded
from tests.gateway.rollouts.greeters import versions

pytestmark = pytest.mark.anyio
ROLLOUTS = "/api/v1/rollouts"


async def made(site: GatewaySite, verb: str, path: str, token: str, body: Any = None) -> Any:
    answer = await ask(site, verb, path, token, body)
    assert answer.is_success, answer.text
    return answer.json()["data"]


async def test_an_owner_and_operators_see_and_end_a_rollout_and_nobody_else(tmp_path: Path) -> None:
    async with versions() as (old, new), guarded(tmp_path) as site:
        agents = "/api/v1/agents"
        first = {"endpoint": old.url, "repeatable": True}
        agent = await made(site, "POST", agents, ALICE, first)
        second = {"endpoint": new.url, "isPaused": True}
        candidate = await made(site, "POST", agents, ALICE, second)
        assert candidate["is_paused"]
        body = {"agentId": agent["slug"], "candidateId": candidate["slug"], "share": 0.5}
        refused = await ask(site, "POST", ROLLOUTS, BOB, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
        begun = await made(site, "POST", ROLLOUTS, ALICE, body)
        assert (begun["state"], begun["agent"], begun["mode"]) == ("running", "greeter", "shadow")
        assert begun["figures"]["judged"] == 0 and begun["figures"]["agreement"] is None
        one = f"{ROLLOUTS}/{begun['id']}"
        for verb, path in (
            ("GET", one),
            ("PATCH", one),
            ("POST", f"{one}/promote"),
            ("POST", f"{one}/rollback"),
        ):
            sent = {"mode": "canary"} if verb == "PATCH" else None
            answer = await ask(site, verb, path, BOB, sent)
            missing = await ask(site, verb, path.replace(begun["id"], "no-such"), BOB, sent)
            assert answer.status_code == missing.status_code == 404
            assert answer.json()["error"] == missing.json()["error"]
        assert (await made(site, "GET", ROLLOUTS, BOB))["total"] == 0
        for token in (ALICE, OPERATOR):
            listed = await made(site, "GET", f"{ROLLOUTS}?agentId=greeter", token)
            assert [item["id"] for item in listed["rollouts"]] == [begun["id"]]
        changed = await made(site, "PATCH", one, ALICE, {"mode": "canary", "share": 0.05})
        assert (changed["mode"], changed["share"]) == ("canary", 0.05)
        changed = await made(site, "PATCH", one, OPERATOR, {"share": 0.1})
        assert (changed["mode"], changed["share"]) == ("canary", 0.1)
        for wrong in ({"share": 0}, {"mode": "other"}):
            assert (await ask(site, "PATCH", one, ALICE, wrong)).status_code == 400
        ended = await made(site, "POST", f"{one}/rollback", OPERATOR)
        assert (ended["state"], ended["reason"]) == ("rolledBack", "by command")
        for verb, path, sent in (("POST", f"{one}/promote", None), ("PATCH", one, {"share": 1})):
            late = await ask(site, verb, path, ALICE, sent)
            assert (late.status_code, late.json()["error"]["code"]) == (409, "CONFLICT")
        for wrong in ({"share": 0}, {"share": 1.1}, {"mode": "other"}, {"maxDistance": 2}):
            answer = await ask(site, "POST", ROLLOUTS, ALICE, body | wrong)
            assert answer.status_code == 400, answer.text


async def test_the_agents_page_shows_the_figures_and_has_the_buttons(tmp_path: Path) -> None:
    settings = load_settings({}, store=str(tmp_path / "gateway.db"))
    app = gateway_app(settings=settings, is_local=True, parts=[ConsolePart()])
    async with versions() as (old, new), hosting(app) as url, client(url) as http:
        site = GatewaySite(url, http, app)
        agent = await site.register(old.url, repeatable=True)
        candidate = await site.register(new.url, is_paused=True)
        visitor = Visitor(http)
        page = "/console/agents/greeter"
        assert "New version" not in (await visitor.get(page)).text
        body = {"agentId": agent.id, "candidateId": candidate.id}
        begun = (await http.post(ROLLOUTS, json=body)).json()["data"]["id"]
        shown = (await visitor.get(page)).text
        assert "greeter-two" in shown and "Promote" in shown and "0 of 0" in shown
        assert "Make it a canary" in shown
        path = f"{page}/rollouts/{begun}/mode/canary"
        assert (await visitor.submit(path, token=await visitor.token(page))).status_code == 303
        assert "Make it a shadow" in (await visitor.get(page)).text
        path = f"{page}/rollouts/{begun}/promote"
        answer = await visitor.submit(path, token=await visitor.token(page))
        assert answer.status_code == 303
        shown = (await visitor.get(page)).text
        assert "promoted" in shown and "Roll back" not in shown
        moved = site.gateway.registry.get(agent.id)
        assert moved is not None and moved.url == candidate.url
