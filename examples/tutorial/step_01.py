"""Step 1: a function becomes an agent."""

from dragoman import Agent

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
def order(item: str) -> str:
    """Orders something from the shelf."""
    return f"One {item}, with pleasure."
