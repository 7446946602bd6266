"""The page of triggers: what a person does there by a browser, and what others may not do."""

import html
import re
from pathlib import Path

import pytest
from harness.serving import client, serving
from playwright.async_api import Browser, expect

from dragoman.console.pages import agents, triggers
from tests.console.sites import Visitor, looking
from tests.console.test_operating import gateway, named

TOKENS = """
[ada]
token = "ada-0123456789abcdef01"

[bob]
token = "bob-0123456789abcdef01"

[boss]
token = "boss-0123456789abcdef0"
scopes = ["dragoman:operator"]
"""


async def test_lists_of_a_gateway_go_on_behind_what_was_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is registered or added meanwhile neither repeats nor hides another."""
    monkeypatch.setattr(agents, "_PAGE", 2)
    monkeypatch.setattr(triggers, "_PAGE", 2)
    async with serving(named("Clock")) as upstream, gateway(tmp_path) as site:

        async def register(name: str) -> str:
            made = {"endpoint": upstream.url, "name": name}
            answer = await site.http.post("/api/v1/agents", json=made)
            return answer.json()["data"]["slug"]

        async def add(name: str) -> str:
            made = {"name": name, "agentId": "ann", "text": "x", "webhook": True}
            answer = await site.http.post("/api/v1/triggers", json=made)
            return answer.json()["data"]["name"]

        async def shown(path: str) -> tuple[list[str], str]:
            page = (await site.http.get(path)).text
            following = re.search(r'<a class="button" href="([^"]+)">More<', page)
            names = [name for name in everything if f">{name}<" in page]
            return names, html.unescape(following[1]) if following else ""

        everything = ["ann", "ben", "cat", "abe"]
        for name in everything[:3]:
            await register(name)
        names, following = await shown("/console/agents")
        assert names == ["ann", "ben"] and "after=" in following
        await register("abe")
        assert await shown(following) == (["cat"], "")
        everything = ["first", "second", "third", "fourth"]
        for name in everything[:3]:
            await add(name)
        names, following = await shown("/console/triggers")
        assert names == ["second", "third"] and "after=" in following
        await add("fourth")
        assert await shown(following) == (["first"], "")


async def test_triggers_are_added_run_paused_and_removed(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(named("Clock")) as upstream,
        gateway(tmp_path) as site,
        looking(browser, site.url, allowed=["error: Failed to load"]) as page,
    ):
        await site.http.post("/api/v1/agents", json={"endpoint": upstream.url, "name": "clock"})
        page.on("dialog", lambda dialog: dialog.accept())
        await page.goto("/console")
        await page.get_by_role("link", name="Triggers").click()
        await expect(page.get_by_text("No triggers")).to_be_visible()
        await page.get_by_text("Add a trigger").click()
        await page.get_by_label("Name").fill("Every <b>morning</b>")
        await page.get_by_label("Agent").fill("clock")
        await page.get_by_label("What it is told").fill("what is the time at {due}?")
        await page.get_by_label("Schedule").fill("whenever")
        await page.get_by_role("button", name="by the clock").click()
        await expect(page.get_by_role("alert")).to_contain_text("no cron expression")
        # What was typed is still there.
        await page.get_by_label("Schedule").fill("0 7 * * *")
        await page.get_by_label("Time zone").fill("Europe/Paris")
        await page.get_by_role("button", name="by the clock").click()
        row = page.locator("tr[data-row]")
        await expect(row).to_contain_text("Every <b>morning</b>")
        await expect(row).to_contain_text("0 7 * * * (Europe/Paris)")
        await row.get_by_role("link", name="Change").click()
        await page.get_by_label("Schedule").fill("never")
        await page.get_by_role("button", name="Change it").click()
        await expect(page.get_by_role("alert")).to_contain_text("no cron expression")
        await page.get_by_label("Schedule").fill("30 8 * * *")
        await page.get_by_label("What it is told").fill("what is the time now?")
        await page.get_by_role("button", name="Change it").click()
        await expect(row).to_contain_text("30 8 * * * (Europe/Paris)")
        await expect(row).to_contain_text("Every <b>morning</b>")
        await page.get_by_role("button", name="Run now").click()
        await expect(page.locator(".say.artifact")).to_contain_text("Clock heard: what is the time")
        await page.goto("/console/triggers")
        await row.get_by_role("link").first.click()
        await expect(page.locator(".say.artifact")).to_contain_text("Clock heard: what is the time")
        await page.goto("/console/triggers")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator(".state", has_text="paused")).to_be_visible()
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".state", has_text="on")).to_be_visible()
        # On a telephone every act can be reached.
        await page.set_viewport_size({"width": 320, "height": 800})
        place = await page.get_by_role("button", name="Remove").bounding_box()
        assert place is not None and place["x"] + place["width"] <= 320
        await page.get_by_role("button", name="Remove").click()
        await expect(page.get_by_text("No triggers")).to_be_visible()


async def test_a_webhook_shows_its_secret_once_and_takes_posts(tmp_path: Path) -> None:
    async with serving(named("Clock")) as upstream, gateway(tmp_path) as site:
        await site.http.post("/api/v1/agents", json={"endpoint": upstream.url, "name": "clock"})
        visitor = Visitor(site.http)
        token = await visitor.token("/console/triggers")
        made = await visitor.submit(
            "/console/triggers", token=token, name="hook", agent="clock", text="{/n}", by="post"
        )
        assert made.status_code == 200
        (trigger,) = (await site.http.get("/api/v1/triggers")).json()["data"]["triggers"]
        (secret,) = re.findall("<code>(whsec_[^<]+)</code>", made.text)
        assert f"{site.url}{trigger['webhook']}" in made.text
        headers = {"Authorization": f"Bearer {html.unescape(secret)}"}
        posted = await site.http.post(trigger["webhook"], json={"n": 1}, headers=headers)
        assert posted.status_code == 202, posted.text
        assert "whsec_" not in (await visitor.get("/console/triggers")).text
        again = f"/console/triggers/{trigger['id']}/secret"
        assert "whsec_" in (await visitor.submit(again, token=token)).text
        old = await site.http.post(trigger["webhook"], json={"n": 2}, headers=headers)
        assert old.status_code == 401


async def test_triggers_of_others_do_not_exist_and_operators_may_pause_them(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    async with (
        serving(named("Clock")) as upstream,
        gateway(tmp_path, auth_tokens=str(tmp_path / "tokens.toml"), allow_private=True) as site,
        client(site.url) as bobs,
        client(site.url) as boss,
    ):
        ada = {"Authorization": "Bearer ada-0123456789abcdef01"}
        agent = {"endpoint": upstream.url, "name": "clock"}
        made = await site.http.post("/api/v1/agents", json=agent, headers=ada)
        assert made.status_code == 201, made.text
        body = {"name": "hers", "agentId": "clock", "text": "x", "schedule": {"cron": "0 7 * * *"}}
        made = await site.http.post("/api/v1/triggers", json=body, headers=ada)
        id = made.json()["data"]["id"]
        others = {name: Visitor(http) for name, http in (("bob", bobs), ("boss", boss))}
        for name, visitor in others.items():
            await visitor.sign_in(f"{name}-0123456789abcdef01"[:22])
        page = await others["bob"].get("/console/triggers")
        assert page.status_code == 200 and "hers" not in page.text
        token = await others["bob"].token("/console/triggers")
        for act in ("pause", "resume", "run", "secret", "remove"):
            answer = await others["bob"].submit(f"/console/triggers/{id}/{act}", token=token)
            assert answer.status_code == 404, act
        token = await others["boss"].token("/console/triggers")
        for act, status in (("run", 404), ("pause", 303)):
            answer = await others["boss"].submit(f"/console/triggers/{id}/{act}", token=token)
            assert answer.status_code == status, act
        (row,) = (await site.http.get("/api/v1/triggers", headers=ada)).json()["data"]["triggers"]
        assert (row["enabled"], row["runs"]) == (False, 0)
