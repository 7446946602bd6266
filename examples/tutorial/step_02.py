"""Step 2: types say what the skill takes and returns."""

from dataclasses import dataclass

from dragoman import Agent

PRICES = {"rye": 4, "brioche": 3}

agent = Agent("Bakery", "Takes orders for bread.")


@dataclass
class Bill:
    item: str
    count: int
    total: int


@agent.skill
def order(item: str, count: int = 1) -> Bill:
    """Orders something from the shelf."""
    return Bill(item, count, count * PRICES[item])
