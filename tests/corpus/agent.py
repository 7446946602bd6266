"""The agent under the corpus: it counts its runs, so that a request that got through is seen even
when it leaves no task behind. It is a module of its own because the socket slice serves this file.
"""

from __future__ import annotations

import asyncio

from dragoman import Agent, Message, Turn

agent = Agent("Corpus", "Echoes what it is given.")
runs = 0


@agent.skill(tags=["test"], default=True)
async def echo(text: str) -> str:
    global runs
    runs += 1
    return text


@agent.skill(tags=["test"])
async def hold(text: str, turn: Turn) -> str:
    """Stay active until canceled, with a few events in the log."""
    for number in range(4):
        await turn.say(f"step {number}")
    await asyncio.Event().wait()
    return text


@agent.skill(tags=["test"])
async def wait_for_input(text: str, turn: Turn) -> str:
    answer: Message = await turn.ask("And then?")
    return f"{text} {answer.message_id}"
