"""A new user's way: start it, open the printed address, and do what one comes for.

With the real command, and with nothing that a person does not see on the pages."""

import asyncio
import re
import time
from pathlib import Path

from harness.processes import running
from playwright.async_api import Browser, Page, expect

from tests.console.sites import looking

# Seconds that each part of the way may take.
_MINUTE = 60.0


class Stopwatch:
    """Holds each part of the way to a minute."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def lap(self, what: str) -> None:
        now = time.monotonic()
        assert now - self._began < _MINUTE, what
        self._began = now


async def tried(page: Page, skill: str, text: str) -> None:
    """Find the demo agent, and send it something."""
    await page.get_by_role("link", name="Agents", exact=True).click()
    await page.get_by_role("link", name="Dragoman demo").click()
    options = page.get_by_label("Skill").locator("option")
    await page.get_by_label("Skill").select_option(
        await options.filter(has_text=skill).get_attribute("value")
    )
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


async def test_a_new_user_finds_everything_without_a_document(
    browser: Browser, tmp_path: Path
) -> None:
    start = ("up", "--data-dir", str(tmp_path), "--listen")
    lost = ["error: Failed to load resource", "error: net::ERR"]
    watch = Stopwatch()
    with running(*start, "127.0.0.1:0", cwd=tmp_path) as server:
        url = await asyncio.to_thread(server.ready)
        async with looking(browser, url, width=1440, allowed=lost) as page:
            await page.goto("/")
            # The page of a server without tasks says what to do.
            await expect(page.get_by_role("link", name="Try Dragoman demo")).to_be_visible()
            watch.lap("it is started and opened")

            await tried(page, "Delegate", "cup of tea")
            # It arrives without a reload.
            await expect(page.locator("[data-live] .state", has_text="asks").first).to_be_visible()
            watch.lap("the demo agent is found, sent something, and watched")

            await page.get_by_role("link", name="Tasks", exact=True).click()
            # Its own task and the one that it ordered: what the gateway delivers is there once.
            await expect(page.locator("tr[data-row]")).to_have_count(2)
            await expect(page.locator("tr[data-row]", has_text="order")).to_have_count(1)
            await page.get_by_role("link", name="Overview", exact=True).click()
            await expect(page.locator("tr[data-row]")).to_have_count(2)
            await page.get_by_role("link", name="Tasks", exact=True).click()
            delegated = page.locator("tr[data-row]", has_text="delegate")
            await delegated.get_by_role("link").first.click()
            await page.get_by_role("link", name="Tree", exact=True).click()
            await expect(page.locator(".tree .node")).to_have_count(4)
            # The same tree from its end.
            await page.locator(".tree .node").last.get_by_role("link").click()
            await page.get_by_role("link", name="Tree", exact=True).click()
            await expect(page.locator(".tree .node")).to_have_count(4)
            await expect(page.locator(".tree .node").last).to_have_attribute("aria-current", "true")
            watch.lap("the tree of the delegated task is seen")

            await page.locator(".tree .node").first.get_by_role("link").click()
            await page.get_by_role("link", name="Timeline", exact=True).click()
            await expect(page.locator("svg.timeline")).to_be_visible()
            server.kill()
            await expect(page.locator("body.is-stale")).to_have_count(1)
            with running(*start, url.removeprefix("http://"), cwd=tmp_path) as again:
                await asyncio.to_thread(again.ready)
                # The open page shows it.
                await expect(page.locator("svg .bar-gap")).to_have_count(1)
                watch.lap("the timeline shows that the server was killed")

                await page.get_by_role("link", name="Inbox", exact=True).click()
                await page.get_by_role("link", name="Where shall it go?").click()
                await page.get_by_label("Answer").first.fill("the garden")
                await page.get_by_role("button", name="Answer").click()
                await page.get_by_role("link", name="Tasks", exact=True).click()
                done = page.locator("tr[data-row] .state", has_text="completed")
                await expect(done).to_have_count(2)
                await page.get_by_role("link", name=re.compile("^cup of tea")).last.click()
                await expect(page.get_by_text("the garden").first).to_be_visible()
                watch.lap("its question is answered")
