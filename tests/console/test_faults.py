"""Faults as an operator meets them: each is on the overview by name, and is mended from there."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import message, serving
from harness.stub_servers import Answer, answering
from playwright.async_api import Browser, Page, expect

from dragoman.console.pages import money, overview
from dragoman.console.pages.attention import Attention
from tests.console.sites import looking
from tests.console.test_operating import gateway, named

TOKENS = """
[olivia]
token = "olivia-0123456789abcdef"
scopes = ["dragoman:operator"]

[alice]
token = "alice-0123456789abcdef"
"""
OLIVIA, ALICE = (
    {"Authorization": f"Bearer {name}-0123456789abcdef"} for name in ("olivia", "alice")
)


class Peers:
    """Two agents and a receiver of events, which do what a test says."""

    def __init__(self) -> None:
        self.url = ""
        # Set: the one that hangs answers.
        self.answers = threading.Event()
        # Where the one that changes its card is.
        self.moved_to = "/changer"
        # Whether the receiver takes what it is sent.
        self.takes = False
        self.posts = 0

    def handle(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        name = path.split("/")[1]
        if verb == "GET":
            place = self.moved_to if name == "changer" else f"/{name}"
            return 200, {"content-type": "application/json"}, json.dumps(self._card(place)).encode()
        if name == "hook":
            self.posts += self.takes
            return (200, {}, b"") if self.takes else None
        self.answers.wait(60)
        return None

    def _card(self, place: str) -> dict[str, Any]:
        title = place.split("/")[1].capitalize()
        spoken = {"url": self.url + place, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        skill = {"id": f"be_{title.lower()}", "name": title, "description": title, "tags": [title]}
        return {
            "name": title,
            "description": f"It is {title}.",
            "version": "1.0.0",
            "supportedInterfaces": [spoken],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [skill],
        }


@contextmanager
def peers() -> Generator[Peers]:
    made = Peers()
    with answering(made.handle) as port:
        made.url = f"http://127.0.0.1:{port}"
        try:
            yield made
        finally:
            made.answers.set()


async def send(http: httpx.AsyncClient, agent: str, **more: Any) -> httpx.Response:
    """Send a message to an agent behind the gateway, as Alice."""
    configuration = {"returnImmediately": True, **more}
    body = {"message": message(f"hello {agent}"), "configuration": configuration}
    return await http.post(f"/a2a/{agent}/message:send", json=body, headers=ALICE)


async def sign_in(page: Page, who: str, path: str) -> None:
    await page.goto(path)
    await page.get_by_label("Token or API key").fill(f"{who}-0123456789abcdef")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()


class Rounds:
    """When the overview was drawn since the faults began, and what each drawing named."""

    # Seconds between two drawings of a server that has nothing else to do.
    every = overview._DRAWN_EVERY  # pyright: ignore[reportPrivateUsage] # what the test is about

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._drawn: list[tuple[float, list[str]]] = []
        drawn_before = overview.attention

        async def drawn(*given: Any) -> list[Attention]:
            found = await drawn_before(*given)
            self._drawn.append((time.monotonic(), [one.text for one in found]))
            return found

        monkeypatch.setattr(overview, "attention", drawn)

    def begin(self) -> None:
        """Note that the faults begin."""
        self._drawn = [(time.monotonic(), [])]

    def seconds_until(self, text: str) -> float:
        """Return after how long a drawing named a fault. A round that took longer than it should
        counts as one that did not: then the machine had other things to do."""
        passed = 0.0
        for (before, _), (at, texts) in pairwise(self._drawn):
            passed += min(at - before, self.every)
            if any(text in one for one in texts):
                return passed
        raise AssertionError(f"no drawing named {text}")


async def test_each_of_four_faults_is_named_on_the_overview_and_mended_from_there(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(monkeypatch)
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    settings: dict[str, Any] = {
        "auth_tokens": str(tmp_path / "tokens.toml"),
        "allow_private": True,
        "rate_limit": "60/60s",
    }
    refused = ["error: Failed to load resource: the server responded with a status of 401"]
    with peers() as others:
        async with (
            serving(named("Steady")) as steady,
            gateway(tmp_path, **settings) as site,
            looking(browser, site.url, allowed=refused) as page,
        ):
            for url in (steady.url, f"{others.url}/slow", f"{others.url}/changer"):
                answer = await site.http.post(
                    "/api/v1/agents", json={"endpoint": url}, headers=OLIVIA
                )
                assert answer.status_code == 201, answer.text
            await sign_in(page, "olivia", "/console")
            await expect(page.get_by_text("Nothing. All processes live")).to_be_visible()

            # One hangs, one has another card, a receiver is dead, a caller asks too much.
            rounds.begin()
            stuck = await send(site.http, "slow")
            others.moved_to = "/changer/elsewhere"
            hook = {"url": f"{others.url}/hook/secret", "id": "h"}
            pushed = await send(site.http, "steady", taskPushNotificationConfig=hook)
            answers = await asyncio.gather(*(send(site.http, "steady") for _ in range(100)))
            assert [one for one in answers if one.status_code == 429]

            faults = {
                "slow hangs: it has not answered a task": "Probe or pause it",
                "Changer has a changed card: its addresses change": "Accept or refuse",
                f"{others.url} does not take what is sent to it": "Try it again",
                "token:alice is over its limit: refused": "See what it asks for",
            }
            row = page.locator(".attention li")
            for text, act in faults.items():
                one = row.filter(has_text=text)
                await expect(one).to_have_count(1)
                await expect(one.get_by_role("link")).to_contain_text(act)
                assert rounds.seconds_until(text) <= 10
            assert "secret" not in await page.content()
            if wanted := os.environ.get("DRAGOMAN_PICTURES"):
                # As the pictures of `test_pictures.py`.
                await page.set_viewport_size({"width": 1200, "height": 720})
                await page.screenshot(path=Path(wanted) / "overview.png", animations="disabled")

            await _mend_the_limit(page)
            await _mend_the_card(page)
            hooked = pushed.json()["task"]["id"]
            await page.goto(f"/console/tasks/{hooked}/timeline")
            sent = page.locator("table", has_text=others.url)
            await expect(sent).to_contain_text("failing")
            await expect(page.locator("svg .lane", has_text="pushes")).to_have_count(1)
            await page.goto("/console")
            others.takes = True
            await _mend_the_receiver(page)
            assert others.posts
            await page.goto(f"/console/tasks/{hooked}/timeline")
            await expect(sent).to_contain_text("delivered")
            await expect(sent).not_to_contain_text("failing")
            await page.goto("/console")
            await _mend_the_agent(page)
            body = {"message": message("again"), "configuration": {"returnImmediately": True}}
            paused = await site.http.post("/a2a/slow/message:send", json=body, headers=OLIVIA)
            assert paused.status_code == 503 and "paused" in paused.text
            await page.goto(f"/console/tasks/{stuck.json()['task']['id']}")
            page.on("dialog", lambda dialog: dialog.accept())
            await page.get_by_role("button", name="Cancel").click()
            await page.goto("/console")
            await expect(row.filter(has_text="Slow is paused")).to_have_count(1)
            for text in list(faults)[:3]:
                await expect(row.filter(has_text=text)).to_have_count(0)


async def _mend_the_limit(page: Page) -> None:
    await page.locator(".attention li", has_text="over its limit").get_by_role("link").click()
    await expect(page.locator("#limits")).to_contain_text("60/60s")
    await expect(page.locator("table", has_text="rate.limited").first).to_contain_text("alice")
    await page.goto("/console")


async def _mend_the_card(page: Page) -> None:
    await page.locator(".attention li", has_text="changed card").get_by_role("link").click()
    await expect(page.locator(".diff")).to_contain_text("/changer/elsewhere")
    await page.get_by_role("button", name="Accept").click()
    await expect(page.get_by_text("Accepted.")).to_be_visible()
    await expect(page.locator(".diff")).to_have_count(0)
    await page.goto("/console")


async def _mend_the_receiver(page: Page) -> None:
    await page.locator(".attention li", has_text="does not take").get_by_role("link").click()
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".state", has_text="done")).to_have_count(1)
    await page.goto("/console")


async def _mend_the_agent(page: Page) -> None:
    await page.locator(".attention li", has_text="slow hangs").get_by_role("link").click()
    await expect(page.locator("h1")).to_contain_text("Slow")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("Paused: it gets no further tasks.")).to_be_visible()


async def test_what_is_in_escrow_is_accepted_or_disputed_and_decided(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    settings: dict[str, Any] = {
        "auth_tokens": str(tmp_path / "tokens.toml"),
        "allow_private": True,
        "escrow": 3600.0,
    }
    async with serving(named("Steady")) as steady, gateway(tmp_path, **settings) as site:
        priced = {"endpoint": steady.url, "pricePerTask": 10}
        await site.http.post("/api/v1/agents", json=priced, headers=OLIVIA)
        for _ in range(2):
            body = {"message": message("hello"), "configuration": {}}
            sent = await site.http.post("/a2a/steady/message:send", json=body, headers=ALICE)
            assert "completed" in sent.text.lower(), sent.text
        async with looking(browser, site.url) as page:
            await sign_in(page, "alice", "/console/money")
            await expect(page.get_by_role("button", name="Accept and pay")).to_have_count(2)
            await page.get_by_role("button", name="Accept and pay").first.click()
            await expect(page.get_by_text("Accepted and paid.")).to_be_visible()
            await page.get_by_label("What was not done").fill("it said nothing")
            await page.get_by_role("button", name="Dispute").click()
            await expect(page.get_by_text("Disputed: an operator decides.")).to_be_visible()
            await expect(page.get_by_role("button", name="Accept and pay")).to_have_count(0)
            await page.get_by_role("link", name="receipt").first.click()
            await expect(page.locator(".facts")).to_contain_text("Fee of the gateway0.50 credits")
            await expect(page.get_by_text("Signed by this gateway")).to_be_visible()
            # The statement goes on where its page ended, whatever comes meanwhile.
            monkeypatch.setattr(money, "_PAGE", 1)
            lines = page.locator("section", has_text="Statement").locator("tbody tr")
            seen: list[str] = []
            await page.goto("/console/money")
            while await (more := page.get_by_role("link", name="More")).count():
                await expect(lines).to_have_count(1)
                seen.append(await lines.inner_text())
                page_before = page.url
                await more.click()
                await expect(page).not_to_have_url(page_before)
            seen.append(await lines.inner_text())
            assert len(seen) == len(set(seen)) >= 2
            await page.goto("/console/tasks")
            await expect(page.locator("[data-row]").first).to_contain_text("10.00")
        async with looking(browser, site.url) as page:
            await sign_in(page, "olivia", "/console/money")
            await expect(page.get_by_text("it said nothing")).to_be_visible()
            await page.get_by_role("button", name="Not done: give back").click()
            await expect(page.get_by_text("Decided.")).to_be_visible()
            await expect(page.get_by_text("it said nothing")).to_have_count(0)
