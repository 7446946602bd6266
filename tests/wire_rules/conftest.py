"""The agent that the rules are read from, one skill per behaviour, served over a socket."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from harness.serving import Site, serving

from dragoman import Agent, AgentExtension, Message, TaskFailed, Turn

# Opened by a test to let the skill that waits for it go on, by the text it was sent.
Gates = defaultdict[str, asyncio.Event]


def make(gates: Gates) -> Agent:
    agent = Agent("Rules", "Obeys.", extensions=[AgentExtension(uri="urn:example:known")])

    @agent.skill(default=True)
    async def echo(text: str) -> str:
        return text

    @agent.skill
    async def take(turn: Turn) -> None:
        """Takes anything and makes nothing of it."""

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return f"{text} to {(await turn.ask('Where?')).text}"

    @agent.skill
    async def authorize(text: str, turn: Turn) -> str:
        answer = await turn.authorize("Log in at the bank.")
        while answer.text != "done":
            answer = await turn.authorize(f"Not {answer.text}. Log in at the bank.")
        return "paid"

    @agent.skill
    async def reply(text: str, turn: Turn) -> Message:
        return turn.reply(text)

    @agent.skill
    async def say_and_reply(text: str, turn: Turn) -> Message:
        await turn.say("One moment.")
        return turn.reply(text)

    @agent.skill
    async def hold(text: str, turn: Turn) -> str:
        await turn.say("Holding.")
        await gates[text].wait()
        return text

    @agent.skill
    async def crash(text: str) -> str:
        raise RuntimeError("secret at http://10.0.0.1/internal")

    @agent.skill
    async def fail(text: str) -> str:
        raise TaskFailed("Out of paper.")

    @agent.skill
    async def reject(text: str, turn: Turn) -> str:
        turn.reject("Not my job.")

    @agent.skill
    async def append_to_nothing(text: str, turn: Turn) -> None:
        await turn.artifact("x", id="nobody", append=True)

    @agent.skill
    async def two_artifacts(text: str, turn: Turn) -> None:
        await turn.artifact("one", name="same")
        await turn.artifact({"two": 2}, name="same")

    @agent.skill
    async def chunks(text: str) -> AsyncIterator[str]:
        for number in range(3):
            yield f"{number}\n"

    return agent


@pytest.fixture(scope="module")
def gates() -> Gates:
    return defaultdict(asyncio.Event)


@pytest.fixture(scope="module")
async def site(gates: Gates) -> AsyncIterator[Site]:
    async with serving(make(gates)) as site:
        yield site
