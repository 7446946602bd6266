"""Agents whose code dies, and the world outside of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from harness.waiting import eventually, within

from dragoman import Agent
from dragoman.model.events import StepKind, StepRecorded
from dragoman.model.identity import Scope
from dragoman.model.task import Task
from tests.engine.engines import House

# Those of the present test.
AGENTS: list[Agent] = []


@asynccontextmanager
async def kept(house: House) -> AsyncIterator[House]:
    """Stop a house at the end, and the threads of its agents."""
    AGENTS.clear()
    yield house
    await house.stop()
    # Code that lost its task in a thread ends before its loop does.
    for agent in AGENTS:
        if agent.threads is not None:
            await within(asyncio.to_thread(agent.threads.shutdown))


class World:
    """What lies outside the agent: deeds that were done, and gates that code waits at."""

    def __init__(self) -> None:
        self.deeds: list[str] = []
        self.reached = threading.Semaphore(0)
        self.gate = threading.Event()
        self.opened = asyncio.Event()

    def do(self, deed: str) -> str:
        self.deeds.append(deed)
        return f"{deed} done"

    async def do_async(self, deed: str) -> str:
        await asyncio.sleep(0)
        return self.do(deed)

    async def stop_here(self) -> None:
        self.reached.release()
        await self.opened.wait()

    def stop_here_in_thread(self) -> None:
        self.reached.release()
        assert self.gate.wait(60)

    async def is_reached(self) -> None:
        """Wait until code stands at the gate."""
        await eventually(lambda: self.reached.acquire(blocking=False))

    def open(self) -> None:
        self.opened.set()
        self.gate.set()


def made(function: Callable[..., Any], **options: Any) -> Agent:
    agent = Agent("Tester", "Is tested.")
    agent.skill(id="work", **options)(function)
    AGENTS.append(agent)
    return agent


def results(task: Task) -> list[Any]:
    return [part.text for artifact in task.artifacts for part in artifact.parts]


async def recorded(house: House, task: Task) -> list[tuple[StepKind, int, str]]:
    """Return the steps in a task's log."""
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    events = [r.event for r in await house.store.read(head.number, after=0, limit=1000)]
    return [(e.kind, e.index, e.name) for e in events if isinstance(e, StepRecorded)]


async def leave(house: House, how: str, agent: Agent | None = None, **settings: Any) -> None:
    """End the process one way or the other, and begin the next."""
    if how == "killed":
        await house.restart(agent, **settings)
    else:
        before = agent or house._agent
        await house.stop()
        await house.start(before, **settings)
