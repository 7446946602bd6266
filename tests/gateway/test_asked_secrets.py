"""Secrets that an agent asks for through others: on no disk on the way."""

from pathlib import Path

import pytest
from harness.serving import serving
from harness.waiting import within

from dragoman import Agent, Client, TaskState, Turn
from dragoman.client.requests import requests_of
from tests.gateway.gateway_site import gateway

HUSH = "hush-55120"


def bank(given: list[str]) -> Agent:
    agent = Agent("Bank", "Pays.")

    @agent.skill
    async def pay(text: str, turn: Turn) -> str:
        code = await turn.ask("Your code?", sensitive=True)
        given.append(code.text)
        return f"{await turn.choose('Which account?', ['a', 'b'])} pays"

    return agent


def clear(folder: Path) -> None:
    for file in folder.rglob("*"):
        assert not file.is_file() or HUSH.encode() not in file.read_bytes(), file.name


async def paid(client: Client) -> str:
    asked = await within(client.send("bill"))
    assert asked.state is TaskState.INPUT_REQUIRED and asked.text == "Your code?"
    (request,) = requests_of(asked)
    asked = await within(client.answer_request(asked.task_id, request, HUSH))
    (request,) = requests_of(asked)
    assert request.choices == ["a", "b"]
    return (await within(client.answer_request(asked.task_id, request, "b"))).text


async def test_a_gateway_keeps_nothing_of_a_secret_that_it_carries(tmp_path: Path) -> None:
    given: list[str] = []
    async with serving(bank(given)) as upstream, gateway(tmp_path) as site:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            assert await paid(client) == "b pays"
            clear(tmp_path)
    assert given == [HUSH]
    clear(tmp_path)


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_agent_keeps_nothing_of_a_secret_that_it_hands_on(
    tmp_path: Path, depth: int
) -> None:
    given: list[str] = []

    def chief(url: str) -> Agent:
        agent = Agent("Chief", "Has others pay.")

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            return (await turn.call(url, text)).text

        return agent

    async with (
        serving(bank(given)) as last,
        serving(chief(last.url), store=str(tmp_path / "a.db")) as one,
        serving(chief(one.url), store=str(tmp_path / "b.db")) as two,
        Client(one.url if depth == 1 else two.url) as client,
    ):
        assert await paid(client) == "b pays"
    assert given == [HUSH]
    clear(tmp_path)
