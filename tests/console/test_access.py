"""Who may see which page: every page has a row here. What a visitor may not see does not exist for
it: the page says the same as one of a thing that never was."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from harness.serving import Site, message

from dragoman import Agent, Turn
from dragoman.console import pages
from tests.console.sites import console

TOKENS = """
[boss]
token = "boss-0123456789abcdef0"
scopes = ["dragoman:operator"]

[ada]
token = "ada-0123456789abcdef01"

[bob]
token = "bob-0123456789abcdef01"
"""
NEVER = "01a1e487-0000-7000-8000-000000000000"
# By page: the owner of the task, another caller, an operator. What a stranger gets is a 404, and
# the page of a thing that never existed.
OWN = (200, 404, 200)
ALL = (200, 200, 200)
OPERATORS = (403, 403, 200)
ROWS = {
    "/": (303, 303, 200),
    "/tasks": ALL,
    "/tasks/{id}": OWN,
    "/tasks/{id}/timeline": OWN,
    "/tasks/{id}/raw": OWN,
    "/tasks/{id}/tree": OWN,
    "/tasks/{id}/scrubber": OWN,
    "/tasks/{id}/files/{key}": (404, 404, 404),
    "/tasks/{id}/export.html": OWN,
    "/tasks/{id}/export.json": OWN,
    "/tasks/{id}/cassette": OWN,
    "/inbox": ALL,
    "/inbox/{id}": OWN,
    "/agents": ALL,
    "/agents/{name}": ALL,
    "/delivery": OPERATORS,
    # A server without a gateway has none.
    "/triggers": (404, 404, 404),
    "/money": (404, 404, 404),
    "/money/receipts/{task}": (404, 404, 404),
    "/system": OPERATORS,
    "/docs": ALL,
}


def asking() -> Agent:
    agent = Agent("Clerk", "Asks.")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask("Which one?")).text

    return agent


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Site, str]]:
    """A server, and the id of a task of Ada's that waits."""
    folder: Path = tmp_path_factory.mktemp("access")
    (folder / "tokens.toml").write_text(TOKENS)
    (folder / "tokens.toml").chmod(0o600)
    async with console(asking(), auth_tokens=str(folder / "tokens.toml")) as site:
        body = {"message": message("the secret plan")}
        sent = await site.http.post("/message:send", json=body, headers=bearer("ada"))
        yield site, sent.json()["task"]["id"]


def bearer(name: str) -> dict[str, str]:
    token = f"{name}-0123456789abcdef01"[:22]
    return {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}


async def get(site: Site, path: str, name: str) -> httpx.Response:
    headers = bearer(name) if name else {}
    # Each asks with a browser of its own.
    site.http.cookies.clear()
    return await site.http.get(f"/console{path}", headers=headers)


def words(answer: httpx.Response, id: str) -> str:
    """Return what a page says, without what is new each time and the id that was asked for."""
    text = re.sub(r'(name="token" value=")[0-9a-f]+', r"\1", answer.text)
    return text.replace(id, "ID").replace(id[-8:], "ID")


def test_every_page_has_a_row() -> None:
    assert set(pages.paths()) == ROWS.keys()


@pytest.mark.parametrize("row", ROWS)
async def test_a_page_is_for_who_may_see_it(place: tuple[Site, str], row: str) -> None:
    site, task = place
    path = row.format(id=task, key="0", name="clerk", task=task)
    answers = {name: await get(site, path, name) for name in ("ada", "bob", "boss")}
    assert tuple(answer.status_code for answer in answers.values()) == ROWS[row]
    anonymous = await get(site, path, "")
    assert anonymous.status_code == 303 and "/login" in anonymous.headers["location"]
    assert "secret plan" not in answers["bob"].text + anonymous.text
    if task in path:
        never = await get(site, path.replace(task, NEVER), "bob")
        assert words(answers["bob"], task) == words(never, NEVER)
