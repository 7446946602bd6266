"""The ASGI app: every agent, binding and version on one port.

Plain ASGI, because the path of a request is short and a framework would double it. An app takes
parts (`server/site.py`); agents are the first of them (`server/served_agents.py`).
`http/access_control.py` lets callers in, `server/endpoints/` answers calls.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from dragoman.authoring.agent import Agent
from dragoman.config import Settings, check_names, load_settings
from dragoman.dialects import errors
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.running.author_code import guard_tasks
from dragoman.errors import A2AError, ConfigError, retry_after
from dragoman.http.access_control import AccessControl
from dragoman.http.documents import document
from dragoman.http.incidents import incident
from dragoman.http.mount import Mount
from dragoman.http.request import HttpRequest, Scope
from dragoman.security.authentication import Authenticator
from dragoman.server.discovery import CARD_PATH
from dragoman.server.health import HealthProbes
from dragoman.server.process.loop_watch import LoopWatch
from dragoman.server.served_agents import ServedAgents
from dragoman.server.site import AppPart, Site
from dragoman.server.upkeep import Upkeep
from dragoman.stores.interface import Store
from dragoman.telemetry import exporting
from dragoman.transports import sse


class App:
    """Agents, and other parts, as an ASGI app."""

    def __init__(
        self,
        *agents: Agent,
        settings: Settings | None = None,
        store: Store | None = None,
        authenticators: Sequence[Authenticator] = (),
        is_local: bool = False,
        hooks: Sequence[EventHooks] = (),
        parts: Sequence[AppPart] = (),
    ) -> None:
        """Serve agents and parts. `authenticators` let callers in besides those of the settings;
        `is_local` says that only this machine can reach us. `hooks` see and change the events of
        all agents, after their own and before those that the settings name."""
        if not agents and not parts:
            raise ConfigError("nothing to serve: give at least one agent")
        names = [agent.name for agent in agents]
        if len(set(names)) != len(names):
            raise ConfigError(f"two agents have the same name: {', '.join(names)}")
        self.settings = settings or Settings()
        served = [ServedAgents(), *parts] if agents else parts
        self.site = site = Site(
            agents, served, self.settings, store, authenticators, hooks, is_local=is_local
        )
        site.asgi = self
        self.store = site.store
        self.access = AccessControl(
            self.settings,
            site.gatekeeper,
            site.audit,
            is_local=is_local,
            shares=site.shares,
            rates=site.rates,
        )
        for part in site.parts:
            part.add_routes(site)
        HealthProbes(site)
        site.routes.check()
        # Agents are asked last: every path that no other part knows is theirs.
        self._finding = [part.find for part in reversed(site.parts)]
        self._starting: asyncio.Lock | None = None
        # What is open while we run.
        self._opened = contextlib.AsyncExitStack()

    # Life

    @property
    def is_running(self) -> bool:
        """Whether it is open and answers."""
        return self.site.is_running

    async def start(self) -> None:
        """Open the store, take over unfinished tasks, begin to answer."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self.site.is_running:
                return
            guard_tasks(asyncio.get_running_loop())
            async with contextlib.AsyncExitStack() as opened:
                await self._open(opened)
                # From here on `stop` closes it.
                self._opened = opened.pop_all()
            self.site.is_running, self.site.streams.is_stopping = True, False
            self._record("server.started")

    async def _open(self, opened: contextlib.AsyncExitStack) -> None:
        """Open one thing after the other; a failure closes those before it."""
        exporting.open(self.settings)
        opened.push_async_callback(exporting.close)
        await self.site.open(opened)
        opened.push_async_callback(Upkeep(self.site).stop)
        if self.settings.server.loop_blocked_after:
            watch = LoopWatch(asyncio.get_running_loop(), self.settings.server.loop_blocked_after)
            watch.start()
            opened.callback(watch.stop)

    async def listening(self, urls: Sequence[str]) -> None:
        """Tell the parts that callers can connect, at these addresses."""
        for part in self.site.parts:
            await part.listening(urls)

    async def check(self) -> None:
        """Raise `ConfigError` for what would keep us from starting, and touch nothing."""
        async with contextlib.AsyncExitStack() as opened:
            await self.site.open_files(opened)

    async def stop(self) -> None:
        """End open streams, let go of running tasks, close the store."""
        if not self.site.is_running:
            return
        self.site.is_running = False
        self.end_streams()
        self._record("server.stopped")
        await self._opened.aclose()

    def _record(self, act: str) -> None:
        self.site.audit.record(act, outcome="done", object=" ".join(self.site.mounts))

    def end_streams(self) -> None:
        """End every open stream; readers come back with the position they have."""
        self.site.streams.end()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["App"]:
        """Serve for as long as the block lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    # ASGI

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one ASGI connection. No type of ours: each library has its own for the same."""
        if scope["type"] == "http":
            # A larger app may mount us without passing its lifespan on.
            if not self.site.is_running:
                await self.start()
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: sse.Receive, send: sse.Send) -> None:
        await receive()
        try:
            await self.start()
        except ConfigError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        path: str = scope["path"]
        raw: bytes = scope.get("raw_path") or b""
        if b"%2" in raw:
            from dragoman.transports import rest

            path = rest.decode_path(raw)
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        mount, below = self._find(path, scope["method"])
        request = HttpRequest.of(scope, receive, send, mount, below)
        await self._answer(request, self.access.answer(request, self.site.routes))
        request.keep_head(path, self._answer_known)

    def _answer_known(self, request: HttpRequest) -> Coroutine[Any, Any, None]:
        """Answer a request whose head was let in before."""
        if not self.site.is_running:
            return self._answer_after_start(request)
        mount, below = self._find(request.found_by, request.verb)
        if mount is not request.mount or below != request.path:
            # What was there when the head was judged is there no more, or is for others.
            request.mount, request.path = mount, below
            request.reconsider()
        return self._answer(request, self.access.answer_known(request, self.site.routes))

    async def _answer_after_start(self, request: HttpRequest) -> None:
        await self.start()
        await self._answer_known(request)

    async def _answer(self, request: HttpRequest, answering: Coroutine[Any, Any, None]) -> None:
        """Wait until a request is answered, and answer what was raised instead."""
        try:
            await answering
        except Exception as error:
            # Endpoints answer their own errors, in the caller's dialect; here is the rest.
            request.watched.failed(error)
            if request.is_answered:
                raise
            await _fail(request, error if isinstance(error, A2AError) else incident())
        except BaseException as error:
            request.watched.failed(error)
            raise
        finally:
            request.watched.end(request)

    def _find(self, path: str, verb: str) -> tuple[Mount, str]:
        for find in self._finding:
            found = find(path)
            if found is not None:
                if path != "/" and found[1] == "/" and verb in ("GET", "HEAD"):
                    # The address of one of several agents shows its card.
                    return found[0], CARD_PATH
                return found
        raise AssertionError("the first part knows every path")


async def _fail(request: HttpRequest, error: A2AError) -> None:
    """Answer with an error that is of no binding."""
    status, content = errors.rest(error)
    headers = [(b"retry-after", b"%d" % retry_after(error))] if status in (429, 503) else []
    await document(request, content, *headers, status=status)


def agent_app(agent: Agent, settings: Settings | None = None) -> App:
    """Return the app of an agent that is an ASGI app by itself: with the settings of the
    environment, unless some are given."""
    if settings is None:
        check_names(os.environ)
        settings = load_settings(os.environ)
    return App(agent, settings=settings)
