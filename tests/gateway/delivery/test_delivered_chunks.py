"""Chunks of an agent behind the gateway come out with the marks that the agent gave them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import serving

from dragoman import Agent, Client, Turn
from dragoman.engine.running import chunks
from dragoman.model.events import ArtifactUpdate
from tests.gateway.gateway_site import gateway


def marked() -> Agent:
    agent = Agent("Marked", "Marks its chunks as it likes.")

    @agent.skill
    async def words(text: str) -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0)
        yield "b"

    @agent.skill
    async def unmarked(text: str, turn: Turn) -> None:
        await turn.artifact("a", id="one", last=False)
        await turn.artifact("b", id="one", append=True, last=False)

    @agent.skill
    async def early(text: str, turn: Turn) -> None:
        await turn.artifact("a", id="one", last=True)
        await turn.artifact("b", id="one", append=True, last=False)

    @agent.skill
    async def empty(text: str, turn: Turn) -> None:
        await turn.artifact("a", id="one", last=False)
        await turn.artifact("", id="one", append=True, last=True)

    return agent


async def marks(client: Client, skill: str) -> list[tuple[Any, bool, bool]]:
    async with client:
        return [
            (event.artifact.parts[0].text, event.append, event.last_chunk)
            async for event in client.stream("x", metadata={"skillId": skill})
            if isinstance(event, ArtifactUpdate)
        ]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("skill", ["words", "unmarked", "early", "empty"])
async def test_chunks_keep_their_own_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skill: str, version: str
) -> None:
    monkeypatch.setattr(chunks, "HOLD_FOR", 3600.0)
    async with serving(marked()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        direct = await marks(Client(site.url, version=version), skill)
        carried = await marks(gate.client(agent, version=version), skill)
    assert carried == direct and len(direct) == 2
    assert {"words": [False, True], "unmarked": [False, False], "early": [True, False]}.get(
        skill, [False, True]
    ) == [is_last for _, _, is_last in direct]
