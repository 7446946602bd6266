"""An MCP server on a port: streamable HTTP at /mcp, behind the same access control as our agents.

Authentication, limits and quotas are those of every app. No session is kept: each request stands
for itself, so a caller cannot go on in the session of another.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any

from dragoman.config import Settings
from dragoman.errors import MethodNotFound
from dragoman.http.documents import document
from dragoman.http.mount import Mount
from dragoman.http.request import HttpRequest, read_body
from dragoman.http.routes import Access
from dragoman.mcp.offers import Offers
from dragoman.mcp.server import mcp_server
from dragoman.model.identity import Who
from dragoman.server.app import App
from dragoman.server.site import AppPart, Site
from dragoman.service import Batch, Call, Reply
from dragoman.transports import json_text

PATH = "/mcp"
_VERBS = ("POST",)
# What a request may have at most, besides what the settings say: the package reads and checks it on
# the loop, where each value takes microseconds, and models write no more than this.
MOST_BYTES = 1024 * 1024
MOST_VALUES = 10_000
# Whom a request counts for, where tools are called: the package starts tasks of its own for it.
_who: ContextVar[Who] = ContextVar("who", default="")


def mcp_app(offers: Offers, settings: Settings, *, is_local: bool = False) -> App:
    """Return the app that serves offers as MCP, and no agent."""
    return App(settings=settings, is_local=is_local, parts=[McpPart(offers)])


class McpPart(AppPart):
    """Tools and documents, served as MCP."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._mount = Mount(offers.name, _NoService(), "", frozenset())
        self._sessions: Any = None

    def add_routes(self, site: Site) -> None:
        """Serve `/mcp`, and say so everywhere else."""
        self._shares = site.shares
        self._most_bytes = min(site.settings.http.max_body_bytes, MOST_BYTES)
        self._most_values = min(site.settings.http.max_json_values, MOST_VALUES)
        site.routes.add(PATH, self._answer, Access.CALLER)
        site.routes.add_others(_not_found, Access.CALLER)

    def find(self, path: str) -> tuple[Mount, str]:
        """Return the one mount there is."""
        return self._mount, path

    async def open(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Have the offers closed when the app stops."""
        opened.push_async_callback(self._offers.close)

    async def start(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Open the package's sessions, in a task of their own: the one that opens them has to
        close them."""
        site.mounts[self._mount.name] = self._mount
        is_ending = asyncio.Event()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(self._run(begun, is_ending))

        async def end() -> None:
            is_ending.set()
            await asyncio.wait([running])

        opened.push_async_callback(end)
        await begun

    async def _run(self, begun: "asyncio.Future[None]", is_ending: asyncio.Event) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        sessions = StreamableHTTPSessionManager(
            mcp_server(self._offers, self._begin),
            stateless=True,
            max_request_body_size=self._most_bytes,
        )
        async with sessions.run():
            self._sessions = sessions
            begun.set_result(None)
            await is_ending.wait()
        self._sessions = None

    async def _begin(self) -> None:
        """Count a task that a tool begins on the quota of the caller: the agent sees one caller
        for all, which is this server. Raises `RateLimited`."""
        quota = self._shares.quota
        if quota is not None:
            await quota.prepare(_who.get())
            quota.begin(_who.get(), 1)

    async def _answer(self, request: HttpRequest) -> None:
        if request.verb not in _VERBS:
            # There is no session to follow or to end.
            await request.refuse_verb(", ".join(_VERBS))
            return

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                request.is_answered = True
                request.watched.responded(message["status"])
                message = {**message, "headers": [*message["headers"], *request.extra]}
            await request.send(message)

        _who.set(request.caller.who)
        # As strictly as for agents; the package would read on: what is refused is not JSON.
        body = await read_body(request, self._most_bytes)
        await json_text.read(body, self._most_values)
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return given.pop() if given else await request.receive()

        await self._sessions.handle_request(request.scope, receive, send)


class _NoService:
    """Stands where agents have a service: no route of an MCP server leads to it."""

    async def answer(self, call: Call) -> Reply:
        """Refuse."""
        raise MethodNotFound

    async def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Refuse."""
        raise MethodNotFound
        yield  # pragma: no cover - what makes it a generator


async def _not_found(request: HttpRequest) -> None:
    error = {"code": 404, "status": "NOT_FOUND", "message": f"MCP is served at {PATH}"}
    await document(request, {"error": error}, status=404)
