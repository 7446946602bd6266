"""Step 8: a second agent, which the bakery calls."""

from dragoman import Agent, Turn

agent = Agent("Courier", "Delivers what others make.")


@agent.skill
async def deliver(what: str, turn: Turn) -> str:
    """Delivers something after asking where to."""
    address = await turn.ask("Where to?")
    return f"{what} is at {address.text}."
