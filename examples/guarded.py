"""An agent that knows who asks: everybody who is let in may greet, only some may approve.

    dragoman keys create --owner ada --scope pay:approve
    dragoman serve examples/guarded.py --auth api-key
    dragoman send -a localhost:8000 "hello"
    dragoman send -a localhost:8000 --skill approve "invoice 7"

The two last commands take the key from A2ACLI_API_KEY. `turn.caller` comes from the credential,
never from the message.
"""

from dragoman import Agent, Turn

agent = Agent("Guarded", "Greets known callers, and approves for callers with the scope.")


@agent.skill
async def greet(text: str, turn: Turn) -> str:
    """Says whose call it is."""
    return f"Hello {turn.caller.owner}"


@agent.skill(scopes=["pay:approve"])
async def approve(text: str, turn: Turn) -> str:
    """Approves a payment."""
    return f"{turn.caller.owner} approved {text}"
