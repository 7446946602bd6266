"""An agent of a tree: has two agents below do its work, or does it where there is none."""

import asyncio
import os
import secrets

from dragoman import Agent, TaskFailed, TaskState, Turn

BELOW = os.environ.get("TREE_BELOW", "")

agent = Agent("Branch", "Has others work.")


def _token() -> str:
    return secrets.token_hex(8)


@agent.skill(default=True)
async def work(text: str, turn: Turn) -> str:
    """Return what every leaf made: a word that no second run would make again."""
    if not BELOW:
        await turn.sleep(0.05)
        return await turn.step("make", _token)
    await turn.step("begin", _token)
    both = await asyncio.gather(*(turn.call(BELOW, f"{text}.{side}") for side in "lr"))
    if any(answer.state is not TaskState.COMPLETED for answer in both):
        raise TaskFailed("An agent below failed.")
    return " ".join(answer.text for answer in both)


@agent.skill
async def hold(text: str, turn: Turn) -> str:
    """Wait until it is canceled."""
    if not BELOW:
        await asyncio.Event().wait()
    more = {"skillId": "hold"}
    both = await asyncio.gather(
        *(turn.call(BELOW, f"{text}.{side}", metadata=more) for side in "lr")
    )
    return " ".join(answer.text for answer in both)
