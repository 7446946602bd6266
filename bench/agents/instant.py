"""An agent that answers at once, for `dragoman serve`: what is measured is the way to it."""

from dragoman import Agent

agent = Agent("Instant", "Says it again.")


@agent.skill(tags=["bench"], default=True)
async def echo(text: str) -> str:
    """Say it again."""
    return text
