"""Step 4: the agent asks back."""

from dragoman import Agent, Turn

PRICES = {"rye": 4, "brioche": 3}

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
async def order(item: str, turn: Turn, count: int = 1) -> str:
    """Orders something, after a question."""
    if item not in PRICES:
        turn.reject(f"We have {' and '.join(PRICES)}.")
    total = count * PRICES[item]
    if not await turn.confirm(f"{count} {item} for {total} credits?"):
        turn.reject("Nothing was ordered.")
    await turn.say(f"Baking {count} {item}")
    return f"{count} {item} for {total} credits."
