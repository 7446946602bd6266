"""The agent behind a gateway under test: whatever it says follows from the message alone, so that
what an undisturbed run would have said can be computed. Each run of its code leaves a line in the
file that `PROOF_RUNS` names.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator

from dragoman import Agent, Turn

agent = Agent("Teller", "Is killed while it tells.")
# Steps of a walk.
WALKED = 4


def word(text: str, n: int = 0) -> str:
    """Return what is said of a text, piece by piece."""
    return hashlib.sha256(f"{text}/{n}".encode()).hexdigest()[:12]


def tale_of(text: str) -> str:
    """Return the whole of what `tale` says of `COUNT MILLISECONDS NAME`."""
    return "".join(f"{n}:{word(text, n)} " for n in range(int(text.split()[0])))


def order_of(text: str, answer: str) -> str:
    """Return what `order` says in the end."""
    return f"{word(text)} to {answer}"


def _note(skill: str, text: str, turn: Turn) -> None:
    path = os.environ.get("PROOF_RUNS")
    if path:
        with open(path, "a") as runs:
            runs.write(f"{skill}\t{text}\t{turn.attempt}\t{os.getpid()}\n")


@agent.skill(tags=["proof"], default=True)
async def short(text: str, turn: Turn) -> str:
    """Answer at once."""
    _note("short", text, turn)
    return word(text)


@agent.skill(tags=["proof"])
async def tale(text: str, turn: Turn) -> AsyncIterator[str]:
    """Tell piece by piece: `COUNT MILLISECONDS NAME`."""
    _note("tale", text, turn)
    count, pause, _ = text.split()
    for n in range(int(count)):
        yield f"{n}:{word(text, n)} "
        await asyncio.sleep(int(pause) / 1000)


@agent.skill(tags=["proof"])
async def order(text: str, turn: Turn) -> str:
    """Ask once, and end with the answer."""
    _note("order", text, turn)
    answer = await turn.ask(f"Where to with {text}?")
    return order_of(text, answer.text)


@agent.skill(tags=["proof"])
async def walk(text: str, turn: Turn) -> str:
    """Take durable steps. Each has a result that no second call would have, and the end names them
    all: whether a recorded step was taken again can be read from the log."""
    _note("walk", text, turn)
    tokens: list[str] = []
    for n in range(WALKED):
        tokens.append(await turn.step(f"step {n}", _token))
        await asyncio.sleep(0.05)
    return f"walk {' '.join(tokens)}"


def _token() -> str:
    return secrets.token_hex(8)


@agent.skill(tags=["proof"])
async def beat(text: str, turn: Turn) -> AsyncIterator[str]:
    """Say every few milliseconds which attempt this is: `COUNT MILLISECONDS NAME`."""
    _note("beat", text, turn)
    count, pause, _ = text.split()
    for n in range(int(count)):
        yield f"{turn.attempt}.{n} "
        await asyncio.sleep(int(pause) / 1000)
