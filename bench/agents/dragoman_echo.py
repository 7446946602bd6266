"""The agent under measurement, for `dragoman serve`: the same skills, chosen by the same
`skillId`, as the peers' servers in `bench/peers`. It does no work of its own, so what is
measured is the runtime around it.
"""

import asyncio
from collections.abc import AsyncIterator

from dragoman import Agent, Message, Turn

agent = Agent("Echo", "Echoes; answers directly; streams; waits.")


@agent.skill(tags=["bench"], default=True)
async def echo(text: str) -> str:
    """Answer with a completed task that holds the text as one artifact."""
    return text


@agent.skill(tags=["bench"])
async def reply(text: str, turn: Turn) -> Message:
    """Answer with a message and no task."""
    return turn.reply(text)


@agent.skill(tags=["bench"])
async def chunks(text: str) -> AsyncIterator[str]:
    """Stream chunks of one artifact; the text is `COUNT SIZE`."""
    count, size = (int(word) for word in text.split()[:2])
    chunk = "x" * size
    for _ in range(count):
        yield chunk


@agent.skill(tags=["bench"])
async def flood(text: str) -> AsyncIterator[str]:
    """Stream chunks at a steady pace; the text is `COUNT SIZE PER_SECOND`."""
    count, size, per_second = (int(word) for word in text.split()[:3])
    chunk = "x" * size
    for _ in range(count):
        yield chunk
        await asyncio.sleep(1 / per_second)


@agent.skill(tags=["bench"])
async def hold(text: str) -> str:
    """Work until canceled, so that a subscriber has something to wait for."""
    await asyncio.Event().wait()
    return text
