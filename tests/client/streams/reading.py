"""What the tests of streams show a client, and what they read of it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from dragoman.client.streams.shown_task import Shown
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.message import Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskState
from dragoman.service import TaskReply
from tests.client.stub import (
    Asked,
    Said,
    reply,
    said,
)

WORKING, DONE, ASKS = TaskState.WORKING, TaskState.COMPLETED, TaskState.INPUT_REQUIRED
SEND = ops.SendMessage(message=said("m", Role.USER))
UNSUPPORTED, NO_METHOD = -32004, -32601


async def shown(events: Any) -> list[Shown]:
    async with asyncio.timeout(60), events:
        return [event async for event in events]


def states(events: list[Shown]) -> list[TaskState]:
    return [event.status.state for event in events if isinstance(event, Task | StatusUpdate)]


def texts(events: list[Shown]) -> str:
    found = ""
    for event in events:
        held = event.artifacts if isinstance(event, Task) else []
        if isinstance(event, ArtifactUpdate):
            held = [event.artifact]
        found += "".join(str(part.text) for one in held for part in one.parts)
    return found


def answers(*steps: Callable[[Asked], Said]) -> Callable[[Asked], Said]:
    """Answer each request with the next step; the last one goes on for ever."""
    left: Iterator[Callable[[Asked], Said]] = iter(steps[:-1])
    return lambda asked: next(left, steps[-1])(asked)


def by_method(**steps: Callable[[Asked], Said]) -> Callable[[Asked], Said]:
    return lambda asked: steps[asked.method.replace("/", "_")](asked)


def lost(asked: Asked) -> Said:
    return Said(is_lost=True)


def created(asked: Asked, value: Task) -> Said:
    return reply(asked, SEND, TaskReply(TaskReading(0, value)))
