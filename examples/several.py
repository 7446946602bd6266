"""Two agents in one process: each has its own card, skills and tasks.

    dragoman serve examples/several.py
    curl localhost:8000/agents/upper/.well-known/agent-card.json
    curl localhost:8000/agents/lower/.well-known/agent-card.json

The first one also answers at the root.
"""

from dragoman import Agent

upper = Agent("Upper", "Writes in capitals.")
lower = Agent("Lower", "Writes without capitals.")


@upper.skill(tags=["text"])
async def raise_case(text: str) -> str:
    """Returns the text in capitals."""
    return text.upper()


@lower.skill(tags=["text"])
async def lower_case(text: str) -> str:
    """Returns the text without capitals."""
    return text.lower()
