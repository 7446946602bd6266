"""Step 7: streamed text, and a file."""

from collections.abc import AsyncIterator

from dragoman import Agent, Part, Turn

PRICES = {"rye": 4, "brioche": 3}

agent = Agent("Bakery", "Takes orders for bread.")


@agent.skill
async def order(item: str, turn: Turn, count: int = 1) -> None:
    """Delivers a receipt as a file."""
    if item not in PRICES:
        turn.reject(f"We have {' and '.join(PRICES)}.")
    lines = f"item,count,total\n{item},{count},{count * PRICES[item]}\n"
    receipt = Part(raw=lines.encode(), filename="receipt.csv", media_type="text/csv")
    await turn.artifact(receipt, name="receipt")


@agent.skill
async def recipe(item: str) -> AsyncIterator[str]:
    """Tells a recipe, step by step."""
    for step in ("Mix.", "Knead.", "Wait.", "Bake."):
        yield f"{step} "
