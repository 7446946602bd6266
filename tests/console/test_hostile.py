"""A hostile agent and a hostile caller: what they say is shown, and none of it does anything."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.serving import Site
from harness.waiting import eventually
from playwright.async_api import Browser, Page

from dragoman import Agent, Part, TaskFailed, Turn
from tests.console.payloads import PAYLOADS
from tests.console.sites import console, looking

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
