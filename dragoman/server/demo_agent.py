"""The demo agent of `dragoman up`: one skill for each thing an agent can do."""

import asyncio
from collections.abc import AsyncIterator

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn


class DemoAddress:
    """Where the demo agent is; known once it is served."""

    def __init__(self) -> None:
        self._is_known = asyncio.Event()
        self._url = ""

    def tell(self, url: str) -> None:
        """Say where it is."""
        self._url = url
        self._is_known.set()

    async def known(self) -> str:
        """Return the address. A task of an earlier run may be under way before it is known."""
        await self._is_known.wait()
        return self._url


def demo_agent(place: DemoAddress | None = None) -> Agent:
    """Return the demo agent. One that can know where it is also has a skill that calls an agent:
    itself, since no other one is there."""
    agent = Agent("Dragoman demo", "Echoes, counts and asks: a first agent to talk to.")

    @agent.skill(tags=["demo"], examples=["hello"], default=True)
    async def echo(text: str) -> str:
        """Says what you said."""
        return text

    @agent.skill(tags=["demo", "streaming"], examples=["5"])
    async def count(to: int) -> AsyncIterator[str]:
        """Counts to a number of yours, one chunk per number."""
        for number in range(1, min(to, 1000) + 1):
            yield f"{number} "
            await asyncio.sleep(0.2)

    @agent.skill(tags=["demo", "multi-turn"], examples=["cup of tea"])
    async def order(what: str, turn: Turn) -> str:
        """Takes an order and asks for the address before it is done."""
        await turn.say(f"One {what}.")
        address = await turn.ask("Where shall it go?")
        return f"One {what} is on its way to {address.text}."

    if place is not None:

        @agent.skill(tags=["demo", "delegation"], examples=["cup of tea"])
        async def delegate(what: str, turn: Turn) -> str:
            """Has another task take the order, and passes its question on to you."""
            answer = await turn.call(await place.known(), what, metadata={"skillId": "order"})
            return f"I was told: {answer.text}"

    return agent


agent = demo_agent()
