"""The agent whose tasks belong to one caller, while others reach for them."""

import asyncio

from dragoman import Agent, AgentSkill, Turn

agent = Agent(
    "Tenancy",
    "Has tasks of several callers.",
    extended_skills=[
        AgentSkill(id="known", name="Known", description="For known callers.", tags=["proof"])
    ],
)


@agent.skill(tags=["proof"], default=True)
async def finished(text: str) -> str:
    """Answer at once."""
    return text


@agent.skill(tags=["proof"])
async def waiting(text: str, turn: Turn) -> str:
    """Ask, and wait for the answer."""
    return (await turn.ask("What of it?")).text


@agent.skill(tags=["proof"])
async def working(text: str) -> str:
    """Work until it is canceled."""
    await asyncio.Event().wait()
    return text
