"""The agent under test: what it says tells which attempt of it spoke, so that a reader can see a
task go on after a crash. It has no effect outside its tasks.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator

from dragoman import Agent, Turn

agent = Agent("Proof", "Is killed, cut off and asked twice.")


@agent.skill(tags=["proof"], default=True)
async def echo(text: str) -> str:
    """Answer at once with the text."""
    return text


@agent.skill(tags=["proof"])
async def steps(text: str, turn: Turn) -> AsyncIterator[str]:
    """Work in steps, each of which is seen; the text is `COUNT MILLISECONDS`."""
    count, pause = (int(word) for word in text.split()[:2])
    for n in range(count):
        yield f"{turn.attempt}.{n} "
        await asyncio.sleep(pause / 1000)


@agent.skill(tags=["proof"])
async def ask(text: str, turn: Turn) -> str:
    """Ask once, and end with what was answered."""
    # A task that waited in a process that is gone may be given its answer as a message.
    if text.startswith("answer"):
        return text
    answer = await turn.ask(f"What of {text}?")
    return "".join(part.text for part in answer.parts if isinstance(part.text, str))


@agent.skill(tags=["proof"])
async def journey(text: str, turn: Turn) -> str:
    """Take durable steps. Each has a result that no second call would have, and the end names them
    all: whether a recorded step was taken again can be read from the log."""
    tokens: list[str] = []
    for n in range(3):
        tokens.append(await turn.step(f"step {n}", _token))
        await turn.sleep(0.03)
    return f"journey {' '.join(tokens)}"


def _token() -> str:
    return secrets.token_hex(8)


@agent.skill(tags=["proof"])
async def flood(text: str) -> AsyncIterator[str]:
    """Stream chunks as fast as they are taken, or so many a second: `COUNT SIZE [PER_SECOND]`."""
    count, size, *pace = (int(word) for word in text.split()[:3])
    for n in range(count):
        yield f"{n} ".ljust(size, "x")
        if pace:
            await asyncio.sleep(1 / pace[0])


@agent.skill(tags=["proof"])
async def gate(text: str, turn: Turn) -> AsyncIterator[str]:
    """Wait for a word, then stream chunks as fast as they are taken: `COUNT SIZE [PER_SECOND]`."""
    await turn.ask("Shall I begin?")
    async for chunk in flood(text):
        yield chunk


@agent.skill(tags=["proof"])
async def mixed(text: str, turn: Turn) -> None:
    """Say something, write several artifacts chunk by chunk, replace one: `CHUNKS MILLISECONDS`."""
    count, pause = (int(word) for word in text.split()[:2])
    await turn.say(f"Attempt {turn.attempt} begins.")
    async with turn.artifact(name="log", id=f"log-{turn.attempt}") as log:
        for n in range(count):
            await log.write(f"{turn.attempt}.{n} ")
            if n % 7 == 3:
                await turn.say(f"Chunk {n} of {count}.")
            if n % 5 == 2:
                # The same artifact again and not a chunk of it: a fold has to replace it.
                await turn.artifact(f"{n} so far", name="count", id="count")
            await asyncio.sleep(pause / 1000)
