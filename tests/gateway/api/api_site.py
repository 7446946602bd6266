"""A gateway behind a real socket, with agents registered that are behind real sockets too."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from harness.serving import Frame, client, frames, hosting, serving
from harness.waiting import WAIT

from dragoman import Agent, Turn
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app
from dragoman.server.app import App

DONE = frozenset({"completed", "failed", "cancelled"})
SECRET = "a payment secret of a test"


def worker() -> Agent:
    """Return an agent that does as it is told: `fail`, `wait`, `ask`, or repeats what it hears."""
    agent = Agent("Echo", "Repeats what it hears.")

    @agent.skill
    async def echo(text: str, turn: Turn) -> str:
        if '"fail"' in text:
            raise RuntimeError("told to")
        if '"ask"' in text:
            answer = await turn.ask("Which one?")
            return f"chosen: {answer.text}"
        if '"wait"' in text:
            await turn.say("waiting")
            await asyncio.Event().wait()
        return f"heard: {text}"

    return agent


class GatewaySite:
    """A served gateway, asked over its REST API."""

    def __init__(self, url: str, http: httpx.AsyncClient, app: App) -> None:
        self.url = url
        self.http = http
        self.app = app
        self.agent = ""
        self.agent_url = ""

    async def ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return what an answer holds, data or error; fails for another status."""
        response = await self.raw(verb, path, body, headers=headers)
        assert response.status_code == status, (response.status_code, response.text)
        if status == 204:
            assert not response.content
            return None
        (kind,) = response.json()
        assert kind == ("data" if status < 400 else "error"), response.text
        return response.json()[kind]

    async def raw(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        if body is None:
            return await self.http.request(verb, f"/api/v1{path}", headers=headers)
        return await self.http.request(verb, f"/api/v1{path}", json=body, headers=headers)

    async def make(self, title: str = "a task", **more: Any) -> dict[str, Any]:
        """Make a task for the agent."""
        headers = more.pop("headers", None)
        body = {"assignedAgentId": self.agent, "title": title, **more}
        return await self.ask("POST", "/tasks", body, status=202, headers=headers)

    async def events(self, task_id: str, **headers: str) -> list[Frame]:
        """Return the events of a task's stream, which ends by itself."""
        async with asyncio.timeout(WAIT):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            path = f"/api/v1/tasks/{task_id}/stream"
            async with self.http.stream("GET", path, headers=named) as response:
                assert response.status_code == 200, await response.aread()
                assert response.headers["content-type"] == "text/event-stream"
                return [frame async for frame in frames(response) if frame.comment is None]

    async def done(self, task_id: str) -> dict[str, Any]:
        """Wait for the end of a task."""
        found = await self.events(task_id)
        assert found[-1].event == "complete", found
        return found[-1].data

    async def until(self, task_id: str, status: str, said: str = "") -> dict[str, Any]:
        """Wait until a task has a status, and its agent has said something."""
        async with asyncio.timeout(WAIT):
            path = f"/api/v1/tasks/{task_id}/stream"
            async with self.http.stream("GET", path) as response:
                async for frame in frames(response):
                    is_so = frame.event == "status" and frame.data["status"] == status
                    if is_so and said in str(frame.data["messages"]):
                        return frame.data
        raise AssertionError(f"it never was {status}")


@asynccontextmanager
async def gateway(
    folder: Path, agent: Agent | None = None, *, price: float = 0, **settings: Any
) -> AsyncGenerator[GatewaySite]:
    """Serve a gateway with one agent, `echo`."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serving(agent or worker()))
        given = {"store": str(folder / "gateway.db"), "payment_secret": SECRET} | settings
        app = gateway_app(settings=load_settings({}, **given), is_local=True)
        url = await stack.enter_async_context(hosting(app))
        http = await stack.enter_async_context(client(url))
        site = GatewaySite(url, http, app)
        site.agent_url = upstream.url
        if "auth" not in settings:
            body = {"endpoint": upstream.url, "name": "Echo", "pricePerTask": price}
            site.agent = (await site.ask("POST", "/agents", body, status=201))["id"]
        yield site


TOKENS = {name: f"{name}-token-{'0' * 32}" for name in ("seller", "buyer", "operator")}


@asynccontextmanager
async def owners(
    folder: Path, *, price: float = 0, **settings: Any
) -> AsyncGenerator[tuple[GatewaySite, dict[str, str], dict[str, str]]]:
    """Serve a gateway that knows its callers: a seller, whose agent it has, and a buyer."""
    file = folder / "tokens.toml"
    scopes = {"operator": '["dragoman:operator"]'}
    file.write_text(
        "".join(
            f'[{name}]\ntoken = "{token}"\nscopes = {scopes.get(name, "[]")}\n'
            for name, token in TOKENS.items()
        )
    )
    file.chmod(0o600)
    given = {"auth": "bearer", "auth_tokens": str(file), "allow_private": True} | settings
    async with gateway(folder, **given) as site:
        seller, buyer = (headers_of(name) for name in ("seller", "buyer"))
        body = {"endpoint": site.agent_url, "name": "Echo", "pricePerTask": price}
        made = await site.ask("POST", "/agents", body, status=201, headers=seller)
        site.agent = made["id"]
        yield site, seller, buyer


def headers_of(name: str) -> dict[str, str]:
    """Return how somebody shows who they are."""
    return {"Authorization": f"Bearer {TOKENS[name]}"}
