"""Step 3: a caller is told what is wrong, and what goes on."""

from dragoman import Agent, Turn

PRICES = {"rye": 4, "brioche": 3}

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
async def order(item: str, turn: Turn, count: int = 1) -> str:
    """Orders something from the shelf."""
    if item not in PRICES:
        turn.reject(f"We have {' and '.join(PRICES)}.")
    await turn.say(f"Baking {count} {item}")
    return f"{count} {item} for {count * PRICES[item]} credits."
