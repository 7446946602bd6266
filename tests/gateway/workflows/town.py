"""A gateway's workflows over a real store, with agents that do as they are told."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.waiting import eventually, within

from dragoman import Agent, TaskFailed, Turn
from dragoman.config import EngineSettings, Settings
from dragoman.engine.engine import Engine
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.workflows.workflows import Workflow, WorkflowRun, Workflows
from dragoman.model import operations as ops
from dragoman.model.identity import Caller, Principal
from dragoman.model.task import Task
from dragoman.service import Batch, Call, Reply, TaskPage
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from dragoman.testing.clock import ManualClock

OWNER = Principal("", "ann")


def step(name: str, *depends_on: int, skill: str = "echo", **given: Any) -> dict[str, Any]:
    return {
        "name": name,
        "agentId": "helper",
        "skillId": skill,
        "dependsOn": list(depends_on),
        **given,
    }


def retrying(times: int, backoff: int = 1000) -> dict[str, Any]:
    return {"retryPolicy": {"maxRetries": times, "backoffMs": backoff}}


HELPER = Registered(id="helper", name="helper", title="Helper", url="http://127.0.0.1:9")
SECRET = Registered(
    id="secret",
    name="secret",
    title="S",
    url="http://127.0.0.1:9",
    owner=Principal.read("bob"),
    callers=["cid"],
)


class Town:
    """A gateway with one agent that does as it is told, and workflows over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        # Inputs that arrived at the agent, by its skill, and how many more of them fail.
        self.given: list[tuple[str, dict[str, Any]]] = []
        self.failures: Counter[str] = Counter()
        self.gate = asyncio.Event()
        # Batches of their tasks' streams that runs were given.
        self.followed = 0
        self.before: Callable[[Call], Awaitable[None]] | None = None
        self.registry = SimpleNamespace(get={"helper": HELPER, "secret": SECRET}.get)
        self.settings = Settings(engine=EngineSettings(cancel_grace=10))
        self.store = SQLiteGatewayStore(path)
        self.agent = self._agent()
        self.service: Any = None
        self.workflows: Any = None

    def _agent(self) -> Agent:
        agent = Agent("gateway", "Does as it is told.")

        @agent.skill
        async def echo(text: str) -> str:
            self.given.append(("echo", json.loads(text)))
            return f"did {json.loads(text).get('n', '')}"

        @agent.skill
        async def fail(text: str) -> str:
            self.given.append(("fail", json.loads(text)))
            raise TaskFailed("it went wrong")

        @agent.skill
        async def flaky(text: str) -> dict[str, int]:
            self.given.append(("flaky", json.loads(text)))
            self.failures["flaky"] -= 1
            if self.failures["flaky"] >= 0:
                raise TaskFailed(f"{self.failures['flaky']} to go")
            return {"answer": 42}

        @agent.skill
        async def hold(text: str) -> str:
            self.given.append(("hold", json.loads(text)))
            await self.gate.wait()
            return "held"

        @agent.skill
        async def ask(text: str, turn: Turn) -> str:
            self.given.append(("ask", json.loads(text)))
            await self.gate.wait()
            return f"told {(await turn.ask('Which?')).text}"

        @agent.skill
        async def silent(text: str) -> None:
            self.given.append(("silent", json.loads(text)))

        return agent

    async def open(self) -> int:
        await self.store.open()
        self.engine = Engine(self.agent, self.store, self.settings)
        self.service = SimpleNamespace(answer=self._answer, follow=self._follow)
        self.workflows = Workflows(
            self.store, self.registry.get, self.service, self.settings, clock=self.clock
        )
        await self.engine.sweep()
        return await self.workflows.sweep()

    async def _answer(self, call: Call) -> Reply:
        if self.before is not None:
            await self.before(call)
        return await self.engine.answer(call)

    async def _follow(self, call: Call) -> AsyncIterator[Batch]:
        async for batch in self.engine.follow(call):
            self.followed += 1
            yield batch

    async def close(self) -> None:
        await self.workflows.stop()
        await self.engine.stop()
        await within(self.store.close())

    async def die(self) -> None:
        """End as a killed process does: what runs is left where it is."""
        self.store._workers.leave = lambda connection: None  # type: ignore[method-assign]
        await self.close()

    async def reborn(self) -> int:
        await self.die()
        self.store = SQLiteGatewayStore(self.path)
        return await self.open()

    # What one does with workflows

    async def define(self, *steps: dict[str, Any], **given: Any) -> Workflow:
        definition = {"name": "Trip", "steps": list(steps), **given}
        return await within(self.workflows.create(OWNER, definition))

    async def begin(self, *steps: dict[str, Any], **given: Any) -> WorkflowRun:
        made = await self.define(*steps, **given)
        return await within(self.workflows.execute(OWNER, made.id))

    async def run(self, *steps: dict[str, Any], **given: Any) -> WorkflowRun:
        return await self.ended(await self.begin(*steps, **given))

    async def at(self, run: WorkflowRun, owner: Principal = OWNER) -> WorkflowRun:
        found = await within(self.workflows.run(owner, run.id))
        assert found is not None
        return found

    async def ended(self, run: WorkflowRun) -> WorkflowRun:
        async def is_over() -> bool:
            return (await self.at(run)).status in ("completed", "failed", "cancelled")

        await eventually(is_over)
        return await self.at(run)

    async def reaches(self, run: WorkflowRun, *statuses: str, tries: int = 1) -> WorkflowRun:
        """Wait until steps stand so, and all that run or wait have made so many tasks."""
        seen = run

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.at(run)
            return tuple(one.status for one in seen.steps) == statuses and all(
                bool(one.task_id) and one.attempts == tries
                for one in seen.steps
                if one.status == "running" or one.retry_at
            )

        await eventually(is_so)
        return seen

    async def pauses(self, run: WorkflowRun, tries: int) -> WorkflowRun:
        """Wait until the first step has failed so often and waits to be tried again."""
        seen = run

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.at(run)
            return seen.steps[0].retry_at > 0 and seen.steps[0].attempts == tries

        await eventually(is_so)
        return seen

    async def tasks(self) -> list[Task]:
        """The tasks that steps made."""
        operation = ops.ListTasks(page_size=100, history=1)
        reply = await self.engine.answer(Call(operation=operation, caller=Caller(OWNER.owner)))
        assert isinstance(reply, TaskPage)
        return [found.reading.task for found in reply.tasks]


def statuses(run: WorkflowRun) -> list[str]:
    return [one.status for one in run.steps]
