"""Servers with a console, and what a person does with them by a browser or without."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from harness.serving import Site, client, hosting
from harness.waiting import WAIT
from playwright.async_api import Browser, Page, expect

from dragoman import Agent, App
from dragoman.config import load_settings
from dragoman.console.part import ConsolePart

# The bound of every wait, as elsewhere: only a hang reaches it.
expect.set_options(timeout=WAIT * 1000)
# Runs before everything else in a page: what a policy stopped, and what should never run.
_WATCH = """
window.seen = { violations: [], ran: [] };
document.addEventListener("securitypolicyviolation", (event) => {
  window.seen.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
window.pwned = (what) => window.seen.ran.push(String(what));
window.alert = window.confirm = window.prompt = (what) => { window.pwned(what); return true; };
"""


def echo() -> Agent:
    agent = Agent("Echo", "Says what you said.")

    @agent.skill
    async def say(text: str) -> str:
        return text

    return agent


@asynccontextmanager
async def console(*agents: Agent, is_local: bool = True, **settings: Any) -> AsyncGenerator[Site]:
    """Serve agents with a console; tasks are in memory unless a store is named."""
    given = load_settings({}, **{"store": "memory:"} | settings)
    app = App(*agents, settings=given, is_local=is_local, parts=[ConsolePart()])
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


class Visitor:
    """A browser without scripts: it keeps cookies and sends the forms that it was given."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.origin = str(http.base_url).rstrip("/")

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path, headers={"Accept": "text/html"})

    async def token(self, path: str = "/console/login") -> str:
        """Return the token of a page's forms."""
        found = re.search(r'name="token" value="([0-9a-f]+)"', (await self.get(path)).text)
        assert found is not None, f"{path} has no form"
        return found[1]

    async def submit(
        self, path: str, *, token: str, origin: str | None = "", **fields: str
    ) -> httpx.Response:
        headers = {} if origin is None else {"Origin": origin or self.origin}
        return await self.http.post(path, data={"token": token, **fields}, headers=headers)

    async def sign_in(self, credential: str) -> httpx.Response:
        """Type a credential in."""
        token = await self.token()
        return await self.submit("/console/login", token=token, credential=credential)


@asynccontextmanager
async def looking(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    scheme: Any = "light",
    has_script: bool = True,
    allowed: Sequence[str] = (),
) -> AsyncGenerator[Page]:
    """Open a page that must not break a policy, run foreign code, or ask other hosts for anything.

    `allowed` are beginnings of what the console of the browser may say."""
    context = await browser.new_context(
        base_url=url,
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=has_script,
    )
    said: list[str] = []
    foreign: list[str] = []
    own = urlsplit(url).netloc
    context.set_default_timeout(WAIT * 1000)
    await context.add_init_script(_WATCH)
    page = await context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"thrown: {error}"))
    context.on(
        "request",
        lambda request: (
            foreign.append(request.url) if urlsplit(request.url).netloc != own else None
        ),
    )
    try:
        yield page
        if has_script:
            assert await page.evaluate("window.seen") == {"violations": [], "ran": []}
        assert [one for one in said if not one.startswith(tuple(allowed))] == []
        assert foreign == []
    finally:
        await context.close()
