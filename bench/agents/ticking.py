"""The agent of `bench.wakeups`: says what time it is, again and again."""

import asyncio
import time

from dragoman import Agent, Turn

agent = Agent("Ticking", "Says the time.")


@agent.skill(tags=["bench"], default=True)
async def ticks(text: str, turn: Turn) -> str:
    """Say the time in nanoseconds at a steady pace; the text is `COUNT SECONDS_BETWEEN`."""
    count, between = text.split()
    due = time.monotonic()
    for _ in range(int(count)):
        # What was said in time is said at its time, however long the last one took.
        due += float(between)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await turn.say(str(time.time_ns()))
    return "done"
