"""The ASGI app: every agent, binding and version on one port.

Plain ASGI, because the path of a request is short and a framework would double it. Here is what is
served where; `server/door.py` lets callers in, `server/endpoints.py` answers calls,
`server/discovery.py` what is asked before one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from dragoman.config import Settings
from dragoman.dialects import errors
from dragoman.engine.author_code import AuthorThreads, guard_tasks
from dragoman.engine.engine import Engine
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.isolation import Isolation
from dragoman.engine.shares import Shares
from dragoman.engine.worker import AgentCode
from dragoman.errors import A2AError, ConfigError, StoreBroken, is_interruption, retry_after
from dragoman.model.card import JSONRPC
from dragoman.security.audit import Audit, AuditLog, NoAudit
from dragoman.security.authentication import Authenticator
from dragoman.server.admin import Admin
from dragoman.server.agent import Agent
from dragoman.server.authenticators import gatekeeper
from dragoman.server.cards import offered_extensions
from dragoman.server.discovery import CARD_PATH, Discovery, document
from dragoman.server.door import Door
from dragoman.server.endpoints import Endpoints
from dragoman.server.hook_files import load_hooks
from dragoman.server.house import Houses
from dragoman.server.house_corvid import CorvidEndpoints
from dragoman.server.incidents import incident
from dragoman.server.loop_watch import LoopWatch
from dragoman.server.push import PostRoom
from dragoman.server.quota import quota_of
from dragoman.server.request import Mount, Request, Scope
from dragoman.server.routes import BY_REQUEST, Access, Routes
from dragoman.server.streams import OpenStreams
from dragoman.stores.interface import Store
from dragoman.stores.memory import MemoryStore
from dragoman.telemetry import exporting, figures, logs, page
from dragoman.transports import rest, sse

logger = logging.getLogger("dragoman")

PRUNE_EVERY = 3600.0
SWEEP_EVERY = 1.0
EXPIRE_EVERY = 0.5
_RPC_PATHS = ("", "/", "/rpc", "/rpc/", "/a2a", "/a2a/")


class App:
    """Agents as an ASGI app."""

    def __init__(
        self,
        *agents: Agent,
        settings: Settings | None = None,
        store: Store | None = None,
        authenticators: Sequence[Authenticator] = (),
        is_local: bool = False,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        """Serve agents. `authenticators` let callers in besides those of the settings; `is_local`
        says that only this machine can reach us. `hooks` see and change the events of all agents,
        after their own and before those that the settings name."""
        if not agents:
            raise ConfigError("nothing to serve: give at least one agent")
        names = [agent.name for agent in agents]
        if len(set(names)) != len(names):
            raise ConfigError(f"two agents have the same name: {', '.join(names)}")
        self.settings = settings or Settings()
        self.agents = agents
        self.store = store or _store(self.settings)
        self._is_local = is_local
        self.hooks = [*hooks, *load_hooks(self.settings.hook_targets())]
        path = self.settings.audit_path()
        self.audit: Audit = NoAudit() if path is None else AuditLog(path)
        self._gatekeeper = gatekeeper(self.settings, authenticators)
        # What all agents of this process share among their callers.
        self.shares = Shares(quota_of(self.settings), most_stored=self.settings.max_stored_bytes)
        self.door = Door(
            self.settings, self._gatekeeper, self.audit, is_local=is_local, shares=self.shares
        )
        self._discovery = Discovery(agents, self.settings, self._gatekeeper)
        self._streams = OpenStreams(self.settings.max_streams, self.shares)
        self._mounts: dict[str, Mount] = {}
        self._routes = self._all_routes()
        # By the name of their code.
        self._engines: dict[str, Engine] = {}
        self._isolation: Isolation | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._post_room: PostRoom | None = None
        self._starting: asyncio.Lock | None = None
        # What is open while we run.
        self._opened = contextlib.AsyncExitStack()
        self.is_running = False
        # Why the store takes nothing more; whoever runs the app may want to know.
        self.fault: StoreBroken | None = None
        self.on_broken: Callable[[], None] | None = None

    def _all_routes(self) -> Routes:
        """Return what is served at which path, and to whom."""
        routes = Routes()
        houses = Houses(self.settings)
        endpoints = Endpoints(self.settings, self._discovery, self._streams, self.audit, houses)
        if JSONRPC in self.settings.bindings():
            for path in (*_RPC_PATHS, *houses.paths()):
                routes.add(path, endpoints.answer_jsonrpc, Access.CALLER, BY_REQUEST)
        if houses.serves("corvid"):
            CorvidEndpoints(self.settings, endpoints).add_to(routes, endpoints.answer_rest)
        self._discovery.add_to(routes, lambda: self._post_room, endpoints.answer_rest)
        routes.add("/healthz", self._alive, Access.PROBE)
        routes.add("/readyz", self._ready, Access.PROBE)
        Admin(self.store, self._mounts, self.audit, self._status).add_to(routes)
        if self.settings.metrics:
            # Counts alone may be read where only this machine calls and nobody is asked.
            is_open = self._is_local and self._gatekeeper is None
            routes.add("/metrics", _metrics, Access.PUBLIC if is_open else Access.OPERATOR)
        self._add_routes(routes)
        routes.add_others(endpoints.answer_rest, Access.CALLER, BY_REQUEST)
        routes.check()
        return routes

    def _add_routes(self, routes: Routes) -> None:
        """Serve more than agents."""

    # Life

    async def start(self) -> None:
        """Open the store, take over unfinished tasks, begin to answer."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self.is_running:
                return
            guard_tasks(asyncio.get_running_loop())
            async with contextlib.AsyncExitStack() as opened:
                await self._open(opened)
                # From here on `stop` closes it.
                self._opened = opened.pop_all()
            self.is_running, self._streams.is_stopping = True, False
            self.audit.record("server.started", outcome="done", object=self._names())

    @property
    def is_broken(self) -> bool:
        """Whether the store takes nothing more."""
        return self.fault is not None

    async def listening(self, urls: Sequence[str]) -> None:
        """Callers can connect, at these addresses."""

    async def check(self) -> None:
        """Raise `ConfigError` for what would keep us from starting, and touch nothing."""
        async with contextlib.AsyncExitStack() as opened:
            await self._open_files(opened)

    async def _open(self, opened: contextlib.AsyncExitStack) -> None:
        """Open one thing after the other; what fails takes along those before it."""
        exporting.open(self.settings)
        opened.push_async_callback(exporting.close)
        opened.callback(self._forget_agents)
        await self._open_files(opened)
        # Of this loop, as the engines are.
        self._isolation = Isolation(self.settings.suspect_seconds)
        if self.settings.push:
            self._post_room = PostRoom(self.store, self.settings, self._engine_of)
        for agent, rack in zip(self.agents, self._discovery.racks, strict=True):
            agent.threads = AuthorThreads(self.settings.threads, f"agent-{agent.name}")
            opened.push_async_callback(agent.delegation.close)
            for close in agent.closing:
                opened.push_async_callback(_closed, agent.name, close)
            engine = self._engine(opened, await self._code(agent, opened))
            offered = offered_extensions(agent, self.settings)
            uris = frozenset(extension.uri for extension in offered)
            self._mounts[agent.name] = Mount(agent, engine, rack, f"/agents/{agent.name}", uris)
            self.audit.card(agent.name, rack.digest())
        # After the engines, and so closed before them: it reads their logs.
        opened.push_async_callback(self._close_post_room)
        chores = (
            self._keep_streams_alive(),
            self._end_expired_streams(),
            self._keep_lease(),
            self._sweep(),
            self._prune(),
            self._watch_disk(),
        )
        self._chores = [asyncio.get_running_loop().create_task(chore) for chore in chores]
        opened.push_async_callback(self._end_chores)
        if self.settings.loop_blocked_after:
            watch = LoopWatch(asyncio.get_running_loop(), self.settings.loop_blocked_after)
            watch.start()
            opened.callback(watch.stop)

    async def _code(self, agent: Agent, opened: contextlib.AsyncExitStack) -> AgentCode:
        """Return what works on the tasks of an agent, ready to: its own skills."""
        return agent

    def _engine(self, opened: contextlib.AsyncExitStack, code: AgentCode) -> Engine:
        """Return the engine of some code, looked after from here on."""
        engine = Engine(
            code,
            self.store,
            self.settings,
            postings=self._post_room,
            isolation=self._isolation,
            shares=self.shares,
            is_local=self._is_local,
            hooks=[code.hooks, *self.hooks] if isinstance(code, Agent) else self.hooks,
        )
        opened.push_async_callback(engine.stop)
        self._engines[code.name] = engine
        return engine

    async def _open_files(self, opened: contextlib.AsyncExitStack) -> None:
        """Open what the settings name: tasks, the audit log, and who callers are known by."""
        await self.store.open()
        opened.push_async_callback(self.store.close)
        # In a thread: it waits for the disk.
        opened.push_async_callback(asyncio.to_thread, self.audit.stop)
        self.settings.make_own_folder()
        self.audit.start()
        if self._gatekeeper is not None:
            opened.push_async_callback(self._gatekeeper.stop)
            await self._gatekeeper.start()

    async def stop(self) -> None:
        """End open streams, let go of running tasks, close the store."""
        if not self.is_running:
            return
        self.is_running = False
        self.end_streams()
        self.audit.record("server.stopped", outcome="done", object=self._names())
        await self._opened.aclose()

    async def _end_chores(self) -> None:
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    async def _close_post_room(self) -> None:
        if self._post_room is not None:
            await self._post_room.stop()
            self._post_room = None

    def _forget_agents(self) -> None:
        for agent in self.agents:
            if agent.threads is not None:
                agent.threads.shutdown(wait=False, cancel_futures=True)
                agent.threads = None
        self._engines.clear()
        self._mounts.clear()

    def end_streams(self) -> None:
        """End every open stream; readers come back with the position they have."""
        self._streams.end()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["App"]:
        """Serve for as long as the block lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def _keep_streams_alive(self) -> None:
        while True:
            await asyncio.sleep(self.settings.keepalive / 4)
            self._streams.keep_alive(self.settings.keepalive)

    async def _end_expired_streams(self) -> None:
        """End the streams of readers who have lost the right since they were let in."""
        while True:
            await asyncio.sleep(min(EXPIRE_EVERY, self.settings.keepalive / 4))
            if self._gatekeeper is not None:
                self._streams.end_expired(self._gatekeeper.holds)

    async def _keep_lease(self) -> None:
        """Renew our lease. Two renewals may be lost before another process takes our tasks over; if
        we were only frozen, the fence stops us."""
        while True:
            await asyncio.sleep(self.settings.lease / 3)
            try:
                await self.store.renew()
            except StoreBroken:
                # It is told by the one who watches the store.
                return
            except Exception:
                # Whatever it was: without the next renewal our tasks are another's.
                logger.exception("the lease could not be renewed")

    async def _sweep(self) -> None:
        """Look after tasks that others left, and those that are overdue. The first look does not
        keep anyone from being served: there may be thousands."""
        while True:
            try:
                await self._take_over()
            except Exception:
                # Whatever it was: others depend on the next look.
                logger.exception("nothing is taken over this time")
            await asyncio.sleep(min(SWEEP_EVERY, self.settings.lease / 4))

    async def _take_over(self) -> None:
        for engine in list(self._engines.values()):
            await engine.sweep()
        if self._post_room is not None:
            await self._post_room.claim()

    def _engine_of(self, name: str) -> Engine | None:
        """Return an agent's engine; any one reads what is in the store."""
        if not name:
            return next(iter(self._engines.values()))
        return self._engines.get(name)

    async def _watch_disk(self) -> None:
        """Serve no more once the store is lost or the disk lost a write: what it holds is unknown
        until it is read again, which the next process does."""
        self.fault = await self.store.broken()
        logger.critical("%s; nothing more is acknowledged", self.fault)
        if self.on_broken is not None:
            self.on_broken()

    async def _prune(self) -> None:
        while True:
            ended_before = int((time.time() - self.settings.retain_seconds) * 1000)
            try:
                count = await self.store.prune(
                    ended_before=ended_before, keep=self.settings.retain_tasks
                )
                if count:
                    logger.info("forgot %d finished tasks", count)
            except Exception:
                logger.exception("finished tasks are not forgotten this time")
            await asyncio.sleep(PRUNE_EVERY)

    # ASGI

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "http":
            # A larger app may mount us without passing its lifespan on.
            if not self.is_running:
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
            path = rest.decoded(raw)
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        mount, below = self._route(path)
        if below == "/" != path and scope["method"] in ("GET", "HEAD"):
            # Whoever looks at the address of one of several agents sees its card.
            below = CARD_PATH
        path = below
        request = Request(scope, receive, send, mount, path)
        try:
            await self.door.answer(request, self._routes)
        except Exception as error:
            # What answers calls has said so itself, in its caller's words; here is the rest.
            request.watched.failed(error)
            if request.is_answered:
                raise
            await _fail(request, error if isinstance(error, A2AError) else incident())
        except BaseException as error:
            request.watched.failed(error)
            raise
        finally:
            request.watched.end(request)

    def _route(self, path: str) -> tuple[Mount, str]:
        """Return who answers a path, and the rest of it: the root is the first agent's."""
        if path.startswith("/agents/"):
            name, _, rest_of_path = path[len("/agents/") :].partition("/")
            mount = self._mounts.get(name)
            if mount is not None:
                return mount, f"/{rest_of_path}"
        return next(iter(self._mounts.values())), path

    def _names(self) -> str:
        return " ".join(agent.name for agent in self.agents)

    def _status(self) -> dict[str, Any]:
        """Return how we are, for operators."""
        ways = self._gatekeeper.authenticators if self._gatekeeper is not None else []
        return {
            "version": figures.release(),
            "state": self._health(),
            "agents": [agent.name for agent in self.agents],
            "authentication": [way.name for way in ways],
            "runningTasks": sum(engine.live_tasks for engine in self._engines.values()),
            "openStreams": len(self._streams),
            "worker": self.store.worker,
            "isAlone": self.store.is_alone,
            "auditLinesLost": self.audit.lost,
        }

    def _health(self) -> str:
        if self.is_broken:
            return "broken"
        return "ok" if self.is_running and not self._streams.is_stopping else "stopping"

    async def _alive(self, request: Request) -> None:
        """Tell whoever watches over the process whether it is of any use to start it again."""
        await self._tell_health(request, "broken" if self.is_broken else "ok")

    async def _ready(self, request: Request) -> None:
        """Tell whoever balances load whether to send us anything."""
        await self._tell_health(request, self._health())

    async def _tell_health(self, request: Request, health: str) -> None:
        if health == "ok":
            await document(request, {"status": health})
            return
        told = {"status": health}
        if self.fault is not None:
            # Where the store is concerns no caller.
            told["reason"] = self.fault.public
        await document(request, told, (b"retry-after", b"1"), status=503)


async def _fail(request: Request, error: A2AError) -> None:
    """Answer with an error that is of no binding."""
    status, content = errors.rest(error)
    headers = [(b"retry-after", b"%d" % retry_after(error))] if status in (429, 503) else []
    await document(request, content, *headers, status=status)


async def _metrics(request: Request) -> None:
    if request.verb != "GET":
        await request.refuse_verb("GET")
        return
    # In a thread: it reads what other workers counted.
    body = await asyncio.to_thread(page.render)
    headers = [(b"content-type", page.CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
    await request.respond(200, [*headers, (b"content-length", b"%d" % len(body))], body)


async def _closed(name: str, close: Callable[[], Awaitable[None]]) -> None:
    """Let an author's code close what it opened, whatever it makes of that: the store is closed
    after it."""
    try:
        await close()
    except BaseException as error:
        if is_interruption(error):
            raise
        logs.tell(logger, "agent %s could not close what it had opened", name, error=error)


def _store(settings: Settings) -> Store:
    if settings.store == "memory:":
        return MemoryStore()
    from dragoman.security.vault import vault_of
    from dragoman.stores.sqlite import SQLiteStore

    if settings.synchronous != "full" and not settings.accept_data_loss:
        raise ConfigError(
            f"synchronous = {settings.synchronous} loses acknowledged tasks when the power fails; "
            "say --i-accept-data-loss if that is what you want"
        )
    return SQLiteStore(
        settings.store_path(),
        lease=settings.lease,
        synchronous=settings.synchronous,
        sealing=vault_of(settings),
        makes_folder=settings.has_own_folder,
        is_new=settings.new_store,
    )
