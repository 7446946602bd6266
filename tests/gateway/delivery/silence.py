"""What the tests of silent agents look at: the words and the artifacts of a task of the gateway."""

import asyncio
from typing import Any

from tests.gateway.gateway_site import GatewaySite


def words(found: Any) -> str:
    return found["status"]["message"]["parts"][0]["text"]


def text_of(found: Any) -> str:
    return "".join(part["text"] for one in found["artifacts"] for part in one["parts"])


async def passed(seconds: float) -> None:
    """Wait until time has passed: what must not happen within it has no event."""
    await asyncio.sleep(seconds)


async def state(site: GatewaySite, task_id: str) -> str:
    return (await site.task(task_id))["status"]["state"]
