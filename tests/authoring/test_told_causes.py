"""Code that could not reach something: whoever runs the server is told what, others are not."""

import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, client, hosting, message

from dragoman import Agent, App, Client, Turn
from dragoman.config import load_settings

TOKENS = """
[ann]
token = "ann-0123456789abcdef"
[op]
token = "op-0123456789abcdef"
scopes = ["dragoman:operator"]
"""


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is nobody's: bound, and not listened at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def caller(address: str) -> Agent:
    """Return an agent that wants something of an address where nobody is."""
    agent = Agent("Caller", "Calls others.")

    @agent.skill(default=True)
    async def delegate(text: str, turn: Turn) -> str:
        async with Client(address) as other:
            return (await turn.call(other, text)).text

    @agent.skill
    async def fetch(text: str) -> str:
        async with httpx.AsyncClient(trust_env=False) as web:
            return (await web.get(address)).text

    return agent


@asynccontextmanager
async def served(agent: Agent, *, is_local: bool, **settings: Any) -> AsyncIterator[Site]:
    app = App(agent, settings=load_settings({}, store="memory:", **settings), is_local=is_local)
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


async def told(site: Site, skill: str, token: str = "") -> str:
    """Return what is said of a task that failed, without the id of the incident."""
    headers = V1 | ({"authorization": f"Bearer {token}"} if token else {})
    body = {"message": message("x"), "metadata": {"skillId": skill}}
    answer = await site.http.post("/message:send", json=body, headers=headers)
    text = answer.json()["task"]["status"]["message"]["parts"][0]["text"]
    found = re.fullmatch(r"(.+) Incident [0-9a-f-]{36}\.", text)
    assert found, text
    return found[1]


async def test_the_local_user_is_told_what_was_not_reached(nobody: str) -> None:
    async with served(caller(nobody), is_local=True) as site:
        said = await told(site, "delegate")
        assert said.startswith("The agent failed: ") and nobody.removeprefix("http://") in said
        assert "refused" in said
        said = await told(site, "fetch")
        assert said.startswith("The agent failed: an address could not be reached (")


async def test_callers_of_a_server_that_others_reach_are_not(nobody: str) -> None:
    async with served(caller(nobody), is_local=False) as site:
        for skill in ("delegate", "fetch"):
            assert await told(site, skill) == "The agent failed."


async def test_of_known_callers_operators_are(nobody: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    settings = {"auth": "bearer", "auth_tokens": str(tokens)}
    async with served(caller(nobody), is_local=True, **settings) as site:
        assert await told(site, "delegate", "ann-0123456789abcdef") == "The agent failed."
        assert "refused" in await told(site, "delegate", "op-0123456789abcdef")
