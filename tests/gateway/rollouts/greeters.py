"""Two versions of an agent, and a gateway that has both."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from harness.serving import client, hosting, message, serving
from harness.waiting import eventually

from dragoman import Agent, Turn
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app, order_rules_of
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.rollouts.definition import NewRollout, RolloutCounts, RolloutDefinition
from dragoman.gateway.rollouts.rollouts import Rollouts, read
from dragoman.model.identity import LOCAL, Principal
from dragoman.stores.interface import Survey
from dragoman.stores.memory.gateway import MemoryGatewayStore
from tests.gateway.gateway_site import GatewaySite

OWNER = Principal("", "olga")
Answer = Callable[[str, Any], Any]


class Greeter:
    """One version: what it was told, and how it answers."""

    url: str

    def __init__(self, title: str) -> None:
        self.told: list[str] = []
        self.answer: Answer = lambda text, _: f"Good day to you, {text}, and a fine one"
        self.agent = Agent(title, "Greets.")

        @self.agent.skill(default=True)
        async def greet(text: str, turn: Turn) -> Any:
            """Greets."""
            self.told.append(text)
            found = self.answer(text, turn)
            return await found if asyncio.iscoroutine(found) else found

        @self.agent.skill
        async def pay(text: str) -> str:
            """Pays."""
            self.told.append(f"pay {text}")
            return f"Paid {text}"


class Stage(GatewaySite):
    """A gateway with both versions, of an owner who is not the caller."""

    old: Greeter
    new: Greeter
    agent: Registered
    candidate: Registered

    @property
    def rollouts(self) -> Rollouts:
        return self.gateway.rollouts

    async def begin(self, **more: Any) -> str:
        """Begin a rollout of all tasks; return its id."""
        said: dict[str, Any] = {
            "agent_id": self.agent.id,
            "candidate_id": self.candidate.id,
            "share": 1.0,
        } | more
        return (await self.rollouts.create(LOCAL, NewRollout(**said), operator=True)).id

    async def greet(self, *names: str, **more: Any) -> list[dict[str, Any]]:
        """Have the agent greet each name; return the tasks."""
        return [await self._send(message(name), **more) for name in names]

    async def send_message(self, sent: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Send a message to the agent; return the task."""
        return await self._send(sent, **more)

    async def _send(self, sent: dict[str, Any], **more: Any) -> dict[str, Any]:
        path = f"/a2a/{self.agent.name}"
        return (await self.call("SendMessage", {"message": sent} | more, path=path))["task"]

    async def found(self, id: str) -> RolloutDefinition:
        row = await self.rollouts.one(id, None)
        assert row is not None
        return read(row)

    async def look_and_tell(self, version: Greeter, name: str) -> bool:
        """Have the rollouts look once; tell whether a version was told a name."""
        await self.gateway.trust.digest()
        await self.rollouts.sweep()
        return name in version.told

    async def ended(self, id: str) -> RolloutDefinition:
        """Return a rollout once it has come to its end: what it decided takes a moment to do."""

        async def look() -> RolloutDefinition | None:
            found = await self.found(id)
            return None if found.state in ("running", "promoting") else found

        return await eventually(look)

    async def figures_when(self, id: str, is_so: Callable[[RolloutCounts], Any]) -> RolloutCounts:
        """Return the figures of a rollout once they are as they should be."""

        async def look() -> RolloutCounts | None:
            await self.gateway.trust.digest()
            await self.rollouts.sweep()
            counted = (await self.found(id)).figures
            return counted if is_so(counted) else None

        return await eventually(look)


@asynccontextmanager
async def versions(
    old_title: str = "Greeter", new_title: str = "Greeter Two"
) -> AsyncGenerator[tuple[Greeter, Greeter]]:
    """Serve the old and the new version."""
    old, new = Greeter(old_title), Greeter(new_title)
    async with serving(old.agent) as first, serving(new.agent) as second:
        old.url, new.url = first.url, second.url
        yield old, new


@asynccontextmanager
async def stage(
    location: str, given: tuple[Greeter, Greeter] | None = None, *, price: int = 0
) -> AsyncGenerator[Stage]:
    """Serve a gateway in front of both versions; `given`: versions that are served already."""
    settings = load_settings({}, store=location, forward_patience=10.0, allow_private=True)
    store = MemoryGatewayStore(order_rules_of(settings)) if location == "memory:" else None
    app = gateway_app(settings=settings, is_local=True, store=store)
    async with AsyncExitStack() as stack:
        old, new = given or await stack.enter_async_context(versions())
        url = await stack.enter_async_context(hosting(app))
        http = await stack.enter_async_context(client(url))
        site = Stage(url, http, app)
        site.old, site.new = old, new
        known = {one.title: one for one in site.gateway.registry.all()}
        if not known:
            for one in (old, new):
                known[one.agent.title] = await site.register(
                    one.url, OWNER.owner, repeatable=one is old, price=price
                )
        site.agent, site.candidate = known[old.agent.title], known[new.agent.title]
        yield site


def text_of(task: dict[str, Any]) -> str:
    """Return what a task answered."""
    return task["artifacts"][0]["parts"][0]["text"]


class Books:
    """What the ledger, trust and lists of tasks have."""

    def __init__(self, site: Stage) -> None:
        self._site = site
        self._accounting = site.gateway.store.accounting

    async def transfers(self) -> list[str]:
        return [one.kind for one in await self._accounting.ledger.transfers(0, 1000)]

    async def counted(self, agent: str) -> tuple[int, int]:
        await self._site.gateway.trust.digest()
        totals = await self._accounting.trust.totals(agent)
        return totals.completed, totals.failed

    async def check(self) -> None:
        assert (await self._accounting.ledger.verify()).is_whole

    async def owners(self, agent: str) -> list[str]:
        """Return whom the tasks of an agent in the store belong to."""
        found = await self._site.gateway.store.survey(Survey(limit=1000, agent=agent))
        return [row.scope.owner for row in found]
