"""Step 8: one agent has another one do a part of the work."""

import os

from dragoman import Agent, Turn

COURIER = os.environ.get("COURIER", "http://127.0.0.1:8001")

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
async def order(item: str, turn: Turn) -> str:
    """Has a courier deliver an order."""
    delivery = await turn.call(COURIER, f"The {item}")
    return f"The courier says: {delivery.text}"
