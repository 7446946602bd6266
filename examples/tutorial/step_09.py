"""Step 9: callers have names, and only some may do everything."""

from dragoman import Agent, Turn

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
async def order(item: str, turn: Turn) -> str:
    """Orders something, for a caller that is known."""
    return f"One {item} for {turn.caller.owner}."


@agent.skill(scopes=["bakery:close"])
async def close(reason: str) -> str:
    """Closes the shop for the day."""
    return f"Closed: {reason}"
