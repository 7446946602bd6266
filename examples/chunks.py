"""Results that come bit by bit: each `yield` is a chunk that streams as soon as the next one comes
or 50 ms later, so that the last one can say that it is the last.

The second skill is plain blocking code; it runs in a thread and blocks no other task.

    dragoman serve examples/chunks.py
    curl -N localhost:8000/message:stream -H 'content-type: application/json' -d \
      '{"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "a b c"}]}}'
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from dragoman import Agent

agent = Agent("Chunks", "Says things word by word.")


@agent.skill(tags=["streaming"], default=True)
async def words(text: str) -> AsyncIterator[str]:
    """Repeats a text word by word."""
    for word in text.split():
        yield f"{word} "
        await asyncio.sleep(0.02)


@agent.skill(tags=["streaming"])
def countdown(start: int) -> Iterator[str]:
    """Counts down to nought; choose it with the metadata {"skillId": "countdown"}."""
    for number in range(start, -1, -1):
        yield f"{number} "
        time.sleep(0.02)
