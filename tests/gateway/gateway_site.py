"""A gateway to send tasks through, and agents behind it, in this process behind real sockets."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from harness.serving import Site, client, hosting

from dragoman import Agent, App, Client, Turn
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.gateway import Gateway
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import Principal


class GatewaySite(Site):
    """A served gateway."""

    @property
    def gateway(self) -> Gateway:
        return gateway_of(self.app)

    async def register(self, url: str, owner: str = "", **more: Any) -> Registered:
        """Register an agent."""
        return await self.gateway.registry.register(
            Registration(url=url, **more), Principal.read(owner)
        )

    def at(self, agent: Registered) -> str:
        """Return the address of an agent here."""
        return f"{self.url}/a2a/{agent.name}"

    def client(self, agent: Registered, **more: Any) -> Client:
        """Return a client of an agent behind the gateway."""
        return Client(self.at(agent), **more)


@asynccontextmanager
async def gateway(
    folder: Path, *agents: Agent, is_ours: bool = False, **settings: Any
) -> AsyncGenerator[GatewaySite]:
    """Serve a gateway on a file of its own; with `is_ours` on connections as our processes have."""
    chosen = {"store": str(folder / "gateway.db"), "forward_patience": 10.0} | settings
    app = gateway_app(*agents, settings=load_settings({}, **chosen), is_local=True)
    async with hosting(app, is_ours=is_ours) as url, client(url) as http:
        yield GatewaySite(url, http, app)


async def log(site: GatewaySite, task_id: str) -> list[bytes]:
    """Return all that the log of a task has."""
    sql = """SELECT bodies FROM events, tasks
        WHERE id = ? AND position >> 20 = number ORDER BY position"""

    def read(connection: Any) -> list[bytes]:
        rows = connection.execute(sql, (task_id,)).fetchall()
        return [line for (bodies,) in rows for line in bytes(bodies).split(b"\n")]

    return await site.gateway.store.read_tx(read)


def workshop() -> Agent:
    """Return an agent with a skill for everything that can be carried."""
    agent = Agent("Workshop", "Does one of each.")

    @agent.skill(default=True)
    async def echo(text: str) -> str:
        """Says it again."""
        return f"echo: {text}"

    @agent.skill
    async def count(to: int) -> AsyncIterator[str]:
        """Counts, chunk by chunk."""
        for number in range(1, to + 1):
            yield f"{number} "
            await asyncio.sleep(0)

    @agent.skill
    async def order(what: str, turn: Turn) -> str:
        """Asks back."""
        await turn.say(f"One {what}.")
        where = await turn.ask("Where to?")
        return f"{what} to {where.text}"

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        """Waits until it is canceled."""
        await turn.say("waiting")
        await asyncio.Event().wait()
        return text

    @agent.skill
    async def refuse(text: str, turn: Turn) -> str:
        """Rejects everything."""
        turn.reject("not today")

    @agent.skill
    async def fail(text: str) -> str:
        """Fails."""
        raise ValueError(text)

    return agent


class Restartable:
    """An agent on one port that can go away and come back, with its tasks or without."""

    def __init__(self, agent: Agent, **settings: Any) -> None:
        self._agent = agent
        self._settings = load_settings({}, **{"store": "memory:"} | settings)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._stack = AsyncExitStack()
        self.app: App | None = None

    async def start(self) -> None:
        self.app = App(self._agent, settings=self._settings)
        await self._stack.enter_async_context(hosting(self.app, port=self.port))

    async def stop(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Restartable":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
