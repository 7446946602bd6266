"""The demo agent of `dragoman up`: one skill for each thing an agent can do."""

import asyncio
from collections.abc import AsyncIterator

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn

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
