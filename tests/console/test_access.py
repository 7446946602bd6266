"""Who may see which page: every page has a row here. What a visitor may not see does not exist for
it: the page says the same as one of a thing that never was."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from harness.serving import Site, message, serving

from dragoman import Agent, Turn
from dragoman.console import pages
from tests.console.sites import Visitor, console
from tests.console.test_operating import gateway

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


def clerk() -> Agent:
    agent = Agent("Clerk", "Files things.")

    @agent.skill
    async def file(text: str) -> str:
        return "filed"

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


# Where there is a gateway, with a task of Ada's that has ended.
GATEWAY_ROWS = {"/money": ALL, "/triggers": ALL, "/money/receipts/{task}": OWN, "/agents": ALL}
# What Bob gets for a form about what is Ada's, or nobody's.
FORMS = {
    # It says that none of them was canceled.
    "/tasks": 303,
    "/tasks/{id}/cancel": 404,
    "/tasks/{id}/answer": 404,
    "/tasks/{id}/again": 404,
    "/inbox/{id}": 404,
    # What is typed there is no address.
    "/agents": 422,
    # Any caller may try it.
    "/agents/{name}": 200,
    "/agents/{name}/probe": 403,
    "/agents/{name}/accept": 403,
    "/agents/{name}/refuse": 403,
    "/agents/{name}/pause": 403,
    "/agents/{name}/resume": 403,
    "/agents/{name}/remove": 403,
    # One without a name, and those that are not his.
    "/triggers": 422,
    "/triggers/{id}/change": 404,
    "/triggers/{id}/pause": 404,
    "/triggers/{id}/resume": 404,
    "/triggers/{id}/run": 404,
    "/triggers/{id}/secret": 404,
    "/triggers/{id}/remove": 404,
    "/agents/{name}/rollouts/{rollout}/mode/{mode}": 404,
    "/agents/{name}/rollouts/{rollout}/promote": 404,
    "/agents/{name}/rollouts/{rollout}/rollback": 404,
    "/delivery/replay": 403,
    "/delivery/drop": 403,
    "/delivery/{number}/retry": 403,
    "/money/accept": 404,
    # As the API has it: the task is a field there, and he has none of that id.
    "/money/dispute": 400,
    "/money/refund": 404,
    "/money/resolve": 403,
    "/system/processes/{number}/drain": 403,
    "/system/keys/{id}/revoke": 403,
    # It names no route.
    "/docs": 404,
}


@pytest.fixture(scope="module")
async def behind(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Site, str]]:
    """A gateway with an agent and a trigger of Ada's, and the id of a task of hers that ended."""
    folder: Path = tmp_path_factory.mktemp("behind")
    (folder / "tokens.toml").write_text(TOKENS)
    (folder / "tokens.toml").chmod(0o600)
    tokens = str(folder / "tokens.toml")
    # Pages of the other site may call agents: what refuses their forms is the console alone.
    async with (
        serving(clerk()) as agent,
        gateway(
            folder, auth_tokens=tokens, allow_private=True, cors="https://evil.example"
        ) as site,
    ):
        made = await site.http.post(
            "/api/v1/agents",
            json={"endpoint": agent.url, "name": "clerk", "pricePerTask": 1},
            headers=bearer("ada"),
        )
        assert made.status_code == 201, made.text
        body = {"message": message("the secret plan")}
        sent = await site.http.post("/a2a/clerk/message:send", json=body, headers=bearer("ada"))
        yield site, sent.json()["task"]["id"]


@pytest.mark.parametrize("row", GATEWAY_ROWS)
async def test_a_page_of_a_gateway_is_for_who_may_see_it(
    behind: tuple[Site, str], row: str
) -> None:
    site, task = behind
    path = row.format(task=task)
    answers = {name: await get(site, path, name) for name in ("ada", "bob", "boss")}
    assert tuple(answer.status_code for answer in answers.values()) == GATEWAY_ROWS[row]
    assert "secret plan" not in answers["bob"].text
    if task in path:
        never = await get(site, path.replace(task, NEVER), "bob")
        assert words(answers["bob"], task) == words(never, NEVER)


def test_every_form_has_a_row() -> None:
    assert set(pages.paths(is_form=True)) == FORMS.keys()


@pytest.mark.parametrize("row", FORMS)
async def test_a_form_about_what_is_anothers_does_nothing(
    behind: tuple[Site, str], row: str
) -> None:
    site, task = behind
    names = {"id": task, "name": "clerk", "number": "1", "rollout": NEVER, "mode": "canary"}
    path = f"/console{row.format(**names)}"
    site.http.cookies.clear()
    visitor = Visitor(site.http)
    await visitor.sign_in("bob-0123456789abcdef01")
    token = await visitor.token("/console/money")
    # A page that does not know the token, and one of another site that does.
    for wrong in ({"token": ""}, {"token": token, "origin": "https://evil.example"}):
        assert (await visitor.submit(path, **wrong)).status_code == 403, wrong
    fields = {"id": task, "task": task, "agent": "clerk", "reason": "x", "words": "x"}
    fields |= {"endpoint": "x", "digest": "0" * 64, "letter": "1 1", "outcome": "upheld"}
    answer = await visitor.submit(path, token=token, **fields)
    assert answer.status_code == FORMS[row], answer.text
    assert answer.status_code != 303 or "notice=0+canceled" in answer.headers["location"]
    assert "secret plan" not in answer.text
