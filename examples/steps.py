"""An order in three steps that would hurt if they were done twice: reserve, charge, ship.

    dragoman serve examples/steps.py
    curl localhost:8000/message:send -H 'content-type: application/json' -d \
      '{"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "a lamp"}]}}'

Kill the server while it packs (`kill -9`) and start it again: the order goes on, and `ledger.txt`
has one line of each step. Only a step that was under way when the process died is done again; the
task's id goes along with it, so that the other side can tell.
"""

import os
from pathlib import Path

from dragoman import Agent, Turn

LEDGER = Path("ledger.txt")
PACKING = float(os.environ.get("PACKING_SECONDS", "5"))

agent = Agent("Orders", "Reserves, charges and ships, each of it once.")


def enter(deed: str, item: str, order: str) -> int:
    """Do something in the world outside; return its number."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{deed} {item} {order}\n")
    return len(LEDGER.read_text().splitlines())


@agent.skill(tags=["orders"], examples=["a lamp"])
async def order(item: str, turn: Turn) -> str:
    """Orders an item."""
    await turn.step("reserve", enter, "reserve", item, turn.task_id)
    receipt = await turn.step("charge", enter, "charge", item, turn.task_id)
    await turn.say(f"Packing {item}")
    await turn.sleep(PACKING)
    await turn.step("ship", enter, "ship", item, turn.task_id)
    return f"{item} is on its way, receipt {receipt}."
