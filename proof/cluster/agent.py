"""The agent of the proof of replicas. It does what that of the crash proof does, and notes each
begin of its code in a file: what it left outside tells what ran, not the store."""

import os
from collections.abc import AsyncIterator

from dragoman import Agent, Turn
from proof.crash import agent as ordinary

NOTES = "PROOF_NOTES"

agent = Agent("Proof", "Is hurt wherever it runs.")


def _note(turn: Turn) -> None:
    notes = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(notes, f"{turn.task_id} {turn.attempt} {os.getpid()}\n".encode())
    finally:
        os.close(notes)


@agent.skill(tags=["proof"], default=True)
async def echo(text: str, turn: Turn) -> str:
    """Answer at once with the text."""
    _note(turn)
    return text


@agent.skill(tags=["proof"])
async def steps(text: str, turn: Turn) -> AsyncIterator[str]:
    """Work in steps, each of which is seen; the text is `COUNT MILLISECONDS`."""
    _note(turn)
    async for step in ordinary.steps(text, turn):
        yield step


@agent.skill(tags=["proof"])
async def ask(text: str, turn: Turn) -> str:
    """Ask once, and end with what was answered."""
    return await ordinary.ask(text, turn)


@agent.skill(tags=["proof"])
async def journey(text: str, turn: Turn) -> str:
    """Take durable steps, each with a result that no second call would have."""
    _note(turn)
    return await ordinary.journey(text, turn)


@agent.skill(tags=["proof"])
async def mixed(text: str, turn: Turn) -> None:
    """Say something and write several artifacts chunk by chunk: `CHUNKS MILLISECONDS`."""
    _note(turn)
    await ordinary.mixed(text, turn)
