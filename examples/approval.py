"""An agent that asks before it acts: the task waits, as long as it takes, for the caller's answer.

    dragoman serve examples/approval.py

Send "100"; the task that comes back waits for input. Send "yes" with its id as `taskId`, and it
goes on where it asked.
"""

from dragoman import Agent, Turn

agent = Agent("Payments", "Pays once somebody said yes.")


@agent.skill(tags=["payments"], examples=["100"])
async def pay(amount: int, turn: Turn) -> str:
    """Pays an amount after a question; small ones at once."""
    if amount <= 0:
        turn.reject("There is nothing to pay.")
    if amount > 20:
        answer = await turn.ask(f"Pay {amount}? Say yes or no.")
        if answer.text.strip().lower() != "yes":
            turn.reject("You did not say yes.")
    return f"Paid {amount}."
