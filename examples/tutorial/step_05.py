"""Step 5: what must not happen twice is a step."""

from pathlib import Path

from dragoman import Agent, Turn

PRICES = {"rye": 4, "brioche": 3}
TILL = Path("till.txt")

agent = Agent("Bakery", "Takes orders for bread.")


def charge(amount: int, order: str) -> int:
    """Stand in for a payment service; return the number of the receipt."""
    with TILL.open("a") as till:
        till.write(f"{order} {amount}\n")
    return len(TILL.read_text().splitlines())


@agent.skill
async def order(item: str, turn: Turn, count: int = 1) -> str:
    """Charges once, then asks where to deliver."""
    if item not in PRICES:
        turn.reject(f"We have {' and '.join(PRICES)}.")
    total = count * PRICES[item]
    receipt = await turn.step("charge", charge, total, turn.task_id)
    address = await turn.ask("Where shall it go?")
    return f"{count} {item} to {address.text}, receipt {receipt}."
