"""The agent of `sdk_agent.py`, made with Dragoman."""

from dragoman import Agent

agent = Agent("Shout", "Says it loudly.")


@agent.skill
async def shout(text: str) -> str:
    """Shouts."""
    return text.upper()
