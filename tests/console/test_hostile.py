"""A hostile agent and a hostile caller: what they say is shown, and none of it does anything."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import Site
from harness.stub_servers import Answer, answering
from harness.waiting import eventually
from playwright.async_api import Browser, Page, expect

from dragoman import Agent, Part, TaskFailed, Turn
from tests.console.payloads import PAYLOADS
from tests.console.sites import console, looking
from tests.console.test_operating import gateway

# Names what is wider than the page.
_WIDE = """[...document.querySelectorAll("main *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .slice(0, 5).map((one) => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 40)}`)"""
_FIELD = {"type": "string", "title": "", "description": ""}


def hostile() -> Agent:
    """Return an agent that says every payload in every field that an agent has."""
    agent = Agent(PAYLOADS[12], PAYLOADS[10])

    @agent.skill(default=True)
    async def everything(text: str, turn: Turn) -> None:
        for payload in PAYLOADS:
            await turn.say(payload)
        for payload in PAYLOADS:
            async with turn.artifact(name=payload[:200]) as artifact:
                await artifact.write(
                    [
                        Part(text=payload),
                        Part(data={payload[:500]: [payload]}),
                        Part(url=payload[:2000], filename=payload[:200]),
                        Part(raw=payload.encode(), filename=payload, media_type="text/html"),
                    ]
                )

    @agent.skill
    async def fail(text: str) -> None:
        raise TaskFailed(text)

    @agent.skill
    async def ask(text: str, turn: Turn) -> None:
        members = {
            payload[:300]: {**_FIELD, "title": payload[:300], "description": payload}
            for payload in PAYLOADS
        }
        await turn.fill(text, {"type": "object", "title": text, "properties": members})

    for number, payload in enumerate(PAYLOADS):
        words = payload[:2000]
        agent.skill(
            id=f"skill{number}", name=words, description=words, tags=[words], examples=[words]
        )(_nothing)
    return agent


async def _nothing(text: str) -> None:
    return None


@asynccontextmanager
async def attacked() -> AsyncGenerator[Site]:
    async with console(hostile()) as site:
        yield site


async def check(page: Page) -> None:
    """Look for what should not be in a page, besides what the browser itself reports."""
    await page.evaluate("document.body.offsetWidth")
    links = await page.eval_on_selector_all("a[href]", "all => all.map((one) => one.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
    for banned in ("iframe", "object", "embed", "base", "link[href^='https:']", "meta[http-equiv]"):
        assert await page.locator(f"body {banned}").count() == 0, banned
    assert await page.locator("main script, main style, main svg script").count() == 0
    pictures = await page.eval_on_selector_all("img", "all => all.map((one) => one.src)")
    assert all("/console/" in one for one in pictures)
    outside = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert outside <= 0, await page.evaluate(_WIDE)
    assert await page.locator("nav[aria-label=Console]").is_visible()


@pytest.mark.parametrize("width", [320, 1280])
async def test_no_payload_does_anything_anywhere(browser: Browser, width: int) -> None:
    async with attacked() as site, looking(browser, site.url, width=width) as page:
        task = await site.send("everything")
        for number, payload in enumerate(PAYLOADS):
            skill = ("fail", "ask")[number % 2]
            await site.send(payload, metadata={"skillId": skill})
        longest = await site.send("W" * 1_000_000, metadata={"skillId": "skill0"})
        views = ["", "/timeline", "/raw", "/raw?as=0.3", "/tree", "/scrubber", "/raw?after=100"]
        inbox = (await site.http.get("/api/v1/console/inbox")).json()["items"]
        assert inbox, "nothing asks"
        # Every view of the largest, and a few of the others.
        paths = [f"/console/tasks/{task['id']}{view}" for view in views]
        paths += [f"/console/tasks/{longest['id']}{view}" for view in ("", "/raw", "/scrubber")]
        failed = (await site.http.get("/api/v1/console/tasks?state=TASK_STATE_FAILED")).json()
        paths += [f"/console/tasks/{failed['items'][place]['id']}" for place in (0, 10, 20)]
        paths += ["/console/tasks", "/console/tasks?text=" + "%3Cscript%3Epwned(1)%3C/script%3E"]
        paths += [
            "/console/inbox",
            "/console/agents",
            f"/console/agents/{next(iter(site.app.site.mounts))}",
            "/console",
        ]
        paths += [f"/console/inbox/{inbox[0]['id']}", f"/console/inbox/{inbox[-1]['id']}"]
        paths += ["/console/tasks?notice=%3Cimg%20src%3Dx%20onerror%3Dpwned(1)%3E"]
        for path in paths:
            answer = await page.goto(path)
            assert answer is not None and answer.status == 200, path
            await check(page)
        # A part of a page that comes later is no other than the page.
        await page.goto("/console/tasks")
        before = await page.locator("[data-row]").first.get_attribute("data-row")
        await site.send(PAYLOADS[10], metadata={"skillId": "fail"})
        first = page.locator("[data-row]").first
        await eventually(lambda: _differs(first, before))
        await check(page)


class Cards:
    """An agent of another server: its card and all its answers are payloads."""

    def __init__(self) -> None:
        self.url = ""
        # What its card says besides.
        self.more = ""

    def handle(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        json_type = {"content-type": "application/json"}
        if verb == "GET":
            return 200, json_type, msgspec.json.encode(self._card())
        said = {"code": -32603, "message": PAYLOADS[10], "data": list(PAYLOADS[:50])}
        wrong = {"jsonrpc": "2.0", "id": msgspec.json.decode(body).get("id"), "error": said}
        return 200, json_type, msgspec.json.encode(wrong)

    def _card(self) -> dict[str, Any]:
        spoken = {"url": f"{self.url}/a{self.more}", "protocolVersion": "1.0"}
        return {
            "name": PAYLOADS[12],
            "description": PAYLOADS[10] + self.more,
            "version": PAYLOADS[0],
            "provider": {"organization": PAYLOADS[13], "url": "https://evil.example"},
            "supportedInterfaces": [{**spoken, "protocolBinding": "JSONRPC"}],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [
                {"id": f"s{number}", "name": words, "description": words, "tags": [words]}
                | {"examples": [words]}
                for number, words in enumerate(payload[:200] for payload in PAYLOADS)
            ],
        }


@pytest.mark.parametrize("width", [320, 1280])
async def test_no_payload_does_anything_on_the_pages_of_a_gateway(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    other = Cards()
    with answering(other.handle) as port:
        other.url = f"http://127.0.0.1:{port}"
        async with (
            gateway(tmp_path, allow_private=True) as site,
            looking(browser, site.url, width=width, allowed=["error: Failed to load"]) as page,
        ):
            await page.goto("/console/agents")
            await page.get_by_label("Address of an agent").fill(other.url)
            await page.get_by_role("button", name="Preview").click()
            await expect(page.locator(".question")).to_be_visible()
            await check(page)
            endpoint = {"endpoint": other.url, "name": "evil"}
            made = await site.http.post("/api/v1/agents", json=endpoint)
            assert made.status_code == 201, made.text
            # What it says is refused and shown, and so are its calls.
            await page.goto("/console/agents/evil")
            await page.get_by_label("Message").fill(PAYLOADS[10])
            await page.get_by_role("button", name="Send").click()
            await expect(page.locator("#try_hops details")).not_to_have_count(0)
            for hop in await page.locator("#try_hops summary").all():
                await hop.click()
            await check(page)
            for payload in PAYLOADS[:20]:
                body = {"agentId": "evil", "name": payload[:100], "text": payload}
                by_clock = {**body, "schedule": {"cron": "0 7 * * *"}}
                made = await site.http.post("/api/v1/triggers", json=by_clock)
                assert made.status_code in (201, 400), made.text
            other.more = PAYLOADS[1]
            await site.http.post("/api/v1/agents/evil/probe")
            task = (await site.http.get("/api/v1/console/tasks")).json()["items"][0]["id"]
            paths = ["", "/tasks", "/agents", "/agents/evil", "/triggers", "/money", "/system"]
            paths += [f"/tasks/{task}{view}" for view in ("", "/timeline", "/raw", "/tree")]
            for path in paths:
                answer = await page.goto(f"/console{path}")
                assert answer is not None and answer.status == 200, path
                await check(page)
            await page.goto("/console/agents/evil")
            await expect(page.locator(".diff")).to_contain_text("</title>")


async def _differs(row: object, before: str | None) -> bool:
    return await row.get_attribute("data-row") != before  # type: ignore[attr-defined]


async def test_a_file_that_was_kept_runs_nothing_either(browser: Browser, tmp_path: Path) -> None:
    # All of the address: what it would ask of another host is foreign.
    async with attacked() as site, looking(browser, "file:///") as page:
        task = await site.send("everything")
        answer = await site.http.get(f"/console/tasks/{task['id']}/export.html")
        assert answer.headers["content-disposition"].startswith("attachment")
        kept = tmp_path / "task.html"
        kept.write_bytes(answer.content)
        await page.goto(kept.as_uri())
        assert await page.locator("h1").inner_text() == "everything"


async def test_files_of_an_agent_are_kept_and_never_opened() -> None:
    async with attacked() as site:
        task = await site.send("everything")
        answer = await site.http.get(f"/console/tasks/{task['id']}/files/a0.3?show=1")
        assert answer.status_code == 200
        assert answer.content == PAYLOADS[0].encode()
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        for wrong in ("a0.0", "a999.0", "m0.0", "x", "a-1.3", "s.0", "a0.3.4"):
            gone = await site.http.get(f"/console/tasks/{task['id']}/files/{wrong}")
            assert gone.status_code == 404, wrong
