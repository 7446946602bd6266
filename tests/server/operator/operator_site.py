"""A server whose agent does what operators look at, on a store of any kind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from harness.serving import client, hosting
from harness.waiting import within

from dragoman import Agent, App, Turn
from dragoman.config import load_settings
from dragoman.errors import TaskFailed
from dragoman.security.bearer_tokens import BearerTokens
from tests.http.test_access_control import ALICE, BOSS, TOKENS, bearer, send

API = "/api/v1/console"
FORM = {
    "type": "object",
    "required": ["size"],
    "properties": {"size": {"enum": ["S", "M"]}, "count": {"type": "integer", "minimum": 1}},
}


def clerk() -> Agent:
    """Return an agent that finishes, fails, asks, and writes long results."""
    agent = Agent("Clerk", "does paperwork")

    @agent.skill
    async def hello(text: str, turn: Turn) -> str:
        return f"hello {text}"

    @agent.skill
    async def fail(text: str, turn: Turn) -> str:
        raise TaskFailed(f"cannot read {text}")

    @agent.skill
    async def order(text: str, turn: Turn) -> str:
        return str(await turn.fill("What shall it be?", FORM))

    @agent.skill
    async def count(text: str, turn: Turn) -> None:
        for n in range(int(text)):
            await turn.say(f"line {n}")

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        await turn.say("waiting")
        await asyncio.Event().wait()
        return ""

    return agent


class OperatorSite:
    """Asks the operator API of a server."""

    def __init__(self, http: httpx.AsyncClient, app: App) -> None:
        self.http = http
        self.app = app

    async def ask(self, path: str, token: str = BOSS, **query: Any) -> httpx.Response:
        """Return the answer to a read."""
        return await self.http.get(API + path, headers=bearer(token), params=query)

    async def read(self, path: str, token: str = BOSS, **query: Any) -> Any:
        """Return what a read that succeeds gives."""
        answer = await self.ask(path, token, **query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "private, no-store"
        return answer.json()

    async def post(self, path: str, body: Any = None, token: str = BOSS) -> httpx.Response:
        """Return the answer to an act."""
        return await self.http.post(API + path, json=body, headers=bearer(token))

    async def made(
        self, text: str = "x", token: str = ALICE, skill: str = "hello", **more: Any
    ) -> str:
        """Return the id of a new task that rests, unless it is one that works on."""
        wait = {"params": {"configuration": {"returnImmediately": skill == "wait"}}}
        parts = [{"text": text}]
        sent = await within(
            send(self.http, token, metadata={"skillId": skill}, parts=parts, **wait, **more)
        )
        return sent.json()["result"]["task"]["id"]

    async def walk(self, path: str, token: str = BOSS, **query: Any) -> list[Any]:
        """Return the items of all pages of a list."""
        found: list[Any] = []
        page = await self.read(path, token, **query)
        found += page["items"]
        while page["nextPageToken"]:
            page = await self.read(path, token, pageToken=page["nextPageToken"], **query)
            found += page["items"]
        return found


@asynccontextmanager
async def operator_site(
    *agents: Agent, location: str = "memory:", **settings: Any
) -> AsyncGenerator[OperatorSite]:
    """Serve agents to callers with tokens."""
    chosen = load_settings({}, store=location, **settings)
    tokens = BearerTokens(tokens=TOKENS)
    app = App(*(agents or (clerk(),)), settings=chosen, authenticators=[tokens])
    async with hosting(app) as url, client(url) as http:
        yield OperatorSite(http, app)
