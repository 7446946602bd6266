"""Step 6: waiting is durable too, and a deadline ends it."""

import os
from datetime import timedelta

from dragoman import Agent, Turn

PRICES = {"rye": 4, "brioche": 3}
BAKING = timedelta(seconds=float(os.environ.get("BAKING_SECONDS", "5")))

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill(deadline=timedelta(hours=1))
async def order(item: str, turn: Turn, count: int = 1) -> str:
    """Bakes to order, within an hour."""
    if item not in PRICES:
        turn.reject(f"We have {' and '.join(PRICES)}.")
    await turn.say(f"{count} {item} are in the oven")
    await turn.sleep(BAKING)
    return f"{count} {item}, still warm."
