"""An MCP server on a port (streamable HTTP at /mcp), behind the door that our agents have.

Who may call, from where and how often is decided as everywhere else: on addresses that others
reach, callers prove who they are. Sessions are not kept: each request stands for itself, so nobody
can go on in a session of somebody else.
"""

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

from dragoman.config import Settings
from dragoman.mcp.offers import Desk
from dragoman.mcp.server import make
from dragoman.model.identity import Who
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.discovery import document
from dragoman.server.request import Request, read_body
from dragoman.server.routes import Access, Routes
from dragoman.transports import json_text

PATH = "/mcp"
_VERBS = ("POST",)
# What a request may have at most, besides what the settings say: the package reads and checks it on
# the loop, where each value takes microseconds, and models write no more than this.
MOST_BYTES = 1024 * 1024
MOST_VALUES = 10_000
# Whom a request counts for, where tools are called: the package starts tasks of its own for it.
_who: ContextVar[Who] = ContextVar("who", default="")


class McpApp(App):
    """A desk, served as MCP. The one agent is a name for logs; it is not served."""

    def __init__(self, desk: Desk, settings: Settings, *, is_local: bool = False) -> None:
        self._desk = desk
        self._sessions: Any = None
        self._ending = asyncio.Event()
        super().__init__(Agent(desk.name, desk.about), settings=settings, is_local=is_local)

    @property
    def _most_bytes(self) -> int:
        return min(self.settings.max_body_bytes, MOST_BYTES)

    def _all_routes(self) -> Routes:
        routes = Routes()
        routes.add(PATH, self._answer, Access.CALLER)
        routes.add("/healthz", self._alive, Access.PROBE)
        routes.add("/readyz", self._ready, Access.PROBE)
        routes.add_others(_nothing, Access.CALLER)
        routes.check()
        return routes

    async def _open(self, opened: contextlib.AsyncExitStack) -> None:
        opened.push_async_callback(self._desk.close)
        await super()._open(opened)
        self._ending = asyncio.Event()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(self._keep(begun))

        async def end() -> None:
            self._ending.set()
            await asyncio.wait([keeping])

        opened.push_async_callback(end)
        await begun

    async def _keep(self, begun: "asyncio.Future[None]") -> None:
        """Hold what the package opens, which one task has to open and close."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        sessions = StreamableHTTPSessionManager(
            make(self._desk, self._begin),
            stateless=True,
            max_request_body_size=self._most_bytes,
        )
        async with sessions.run():
            self._sessions = sessions
            begun.set_result(None)
            await self._ending.wait()
        self._sessions = None

    def _begin(self) -> None:
        """Count what a tool has an agent begin on the quota of the caller: to the agent all of
        them are one, which is this server. Raises `RateLimited`."""
        if self.shares.quota is not None:
            self.shares.quota.begin(_who.get(), 1)

    async def _answer(self, request: Request) -> None:
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
        # As strictly as agents read it, which the package does not: what it refuses is no JSON.
        body = await read_body(request, self._most_bytes)
        await json_text.read(body, min(self.settings.max_json_values, MOST_VALUES))
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return given.pop() if given else await request.receive()

        await self._sessions.handle_request(request.scope, receive, send)


async def _nothing(request: Request) -> None:
    error = {"code": 404, "status": "NOT_FOUND", "message": f"MCP is served at {PATH}"}
    await document(request, {"error": error}, status=404)
