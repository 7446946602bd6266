"""An agent that asks before it acts: the task waits for the caller's answer, for days if need be.

    dragoman serve examples/approval.py

Send "100"; the task that comes back waits for input. Send "yes" with its id as `taskId`, and it
goes on where it asked. The server may end in between, even by `kill -9`: the next one has the
question, and the answer reaches the code that asked. After a week without one the task fails.
"""

from datetime import timedelta

from dragoman import Agent, Turn

agent = Agent("Payments", "Pays after an approval.")


def transfer(amount: int) -> str:
    """Stand in for the bank."""
    return f"Paid {amount}."


@agent.skill(tags=["payments"], examples=["100"], deadline=timedelta(days=7))
async def pay(amount: int, turn: Turn) -> str:
    """Pays an amount after a question; small ones at once."""
    if amount <= 0:
        turn.reject("There is nothing to pay.")
    if amount > 20:
        answer = await turn.ask(f"Pay {amount}? Say yes or no.")
        if answer.text.strip().lower() != "yes":
            turn.reject("You did not say yes.")
    return await turn.step("transfer", transfer, amount)
