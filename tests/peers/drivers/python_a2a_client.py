"""PyPI python-a2a as a client: `tasks/send` at paths of its own, and errors told as texts.

No version of A2A has those paths, so what can be asked for is that it is told so and nothing runs.
"""

import asyncio
import logging

import talking
from python_a2a import A2AClient


class Ancestor:
    def __init__(self, place: talking.Place) -> None:
        self.place = place

    async def refusal(self) -> None:
        client = await asyncio.to_thread(A2AClient, self.place.address, timeout=60)
        said = await asyncio.to_thread(client.ask, "echo hello")
        if "error" not in said.lower() and "failed" not in said.lower():
            raise AssertionError(f"not refused: {said}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    talking.run(Ancestor)
