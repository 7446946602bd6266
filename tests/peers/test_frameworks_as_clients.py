"""The clients of frameworks and smaller libraries, unmodified, against our server and our gateway.

What each can be asked for, and what we owe it, stands in `frameworks_as_clients.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from harness.serving import serving

from dragoman import Agent
from tests.gateway.gateway_site import gateway
from tests.gateway.translator.matrix_agents import player
from tests.peers.frameworks_as_clients import FRAMEWORKS, PLACES, Framework, marks, report
from tests.peers.libraries import Report

TOKEN = "a-token-for-the-drivers"
# Long enough that each word goes out before the next is there.
BETWEEN_WORDS = 0.1


def speaker() -> Agent:
    """Return an agent whose skill is a generator."""
    agent = Agent("Speaker", "Says words.")

    @agent.skill(default=True)
    async def words(text: str) -> AsyncIterator[str]:
        """Says the words of a text, one by one."""
        for word in text.split():
            await asyncio.sleep(BETWEEN_WORDS)
            yield f"{word} "

    return agent


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[dict[str, Any]]:
    """Serve the agents, and a gateway before them; the values are what a driver is told."""
    folder = tmp_path_factory.mktemp
    async with (
        serving(player()) as agent,
        serving(speaker()) as words,
        serving(player(), auth_token=TOKEN) as guarded,
        gateway(folder("open")) as gate,
        gateway(folder("guarded"), auth_token=TOKEN, allow_private=True) as guard,
    ):
        direct = {"address": agent.url, "words": words.url, "guarded": guarded.url}
        behind = {
            "address": gate.at(await gate.register(agent.url, name="player")),
            "words": gate.at(await gate.register(words.url, name="speaker")),
            "guarded": guard.at(await guard.register(agent.url, name="player")),
        }
        yield {"server": direct | {"token": TOKEN}, "gateway": behind | {"token": TOKEN}}


@pytest.fixture(scope="module")
async def reports(places: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Report]:
    """Run the driver of every selected framework once, two side by side."""
    wanted: dict[str, dict[str, None]] = {}
    for item in request.session.items:
        arguments = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(one := arguments.get("framework"), Framework):
            wanted.setdefault(one.name, {})[arguments["operation"]] = None
    turns = asyncio.Semaphore(2)

    async def run(framework: Framework) -> Report:
        async with turns:
            operations = list(wanted[framework.name])
            return await asyncio.to_thread(report, framework, places, operations)

    chosen = [one for one in FRAMEWORKS if one.name in wanted]
    found = await asyncio.gather(*(run(one) for one in chosen))
    return {one.name: said for one, said in zip(chosen, found, strict=True)}


CASES = [
    pytest.param(
        one, place, operation, id=f"{one.id}-{place}-{operation}", marks=marks(one, operation)
    )
    for one in FRAMEWORKS
    for place in PLACES
    for operation in one.operations
]


@pytest.mark.peer
@pytest.mark.parametrize(("framework", "place", "operation"), CASES)
async def test_a_framework_as_a_client(
    framework: Framework, place: str, operation: str, reports: dict[str, Report]
) -> None:
    found, key = reports[framework.name], f"{place}/{operation}"
    assert key in found.details, f"nothing was said of it; {found.ending}"
    assert not found.details[key], found.details[key]
