"""The ASGI app: every agent, binding and version on one port.

Plain ASGI, because the path of a request is short and a framework would double it. Here is who may
ask what; `server/endpoints.py` answers calls, `server/discovery.py` what is asked before one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dragoman.config import Settings
from dragoman.dialects.house import r
from dragoman.engine.engine import Engine
from dragoman.errors import (
    ConfigError,
    Overloaded,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
)
from dragoman.model.card import JSONRPC
from dragoman.model.identity import ADMIN, OPERATOR, Caller
from dragoman.security.audit import Audit, AuditLog, NoAudit
from dragoman.security.authentication import Authenticator, Denied
from dragoman.security.proxies import Proxies
from dragoman.server.admin import Admin
from dragoman.server.admission import Admission
from dragoman.server.agent import Agent
from dragoman.server.authenticators import gatekeeper
from dragoman.server.cards import offered_extensions
from dragoman.server.discovery import Discovery, denied, document, unauthenticated
from dragoman.server.endpoints import Endpoints
from dragoman.server.guard import PROBLEM_JSON, Guard, Problem
from dragoman.server.limits import SOURCE_AGENT, Limits
from dragoman.server.push import PostRoom
from dragoman.server.refusals import Refusals
from dragoman.server.request import Headers, Mount, Request, Scope
from dragoman.server.routes import Access, Route, Routes
from dragoman.server.streams import OpenStreams
from dragoman.stores.interface import Store
from dragoman.stores.memory import MemoryStore
from dragoman.telemetry import exporting, figures, page
from dragoman.transports import rest, sse

logger = logging.getLogger("dragoman")

PRUNE_EVERY = 3600.0
SWEEP_EVERY = 1.0
_RPC_PATHS = ("", "/", "/rpc", "/rpc/", "/a2a", "/a2a/", r.PATH)

# Scopes of which a caller must have one, where knowing them is not enough.
_ROLES: dict[Access | None, set[str]] = {
    Access.OPERATOR: {OPERATOR},
    Access.ADMIN: {OPERATOR, ADMIN},
}


class App:
    """Agents as an ASGI app."""

    def __init__(
        self,
        *agents: Agent,
        settings: Settings | None = None,
        store: Store | None = None,
        authenticators: Sequence[Authenticator] = (),
        is_local: bool = False,
    ) -> None:
        """Serve agents. `authenticators` let callers in besides those of the settings; `is_local`
        says that only this machine can reach us."""
        if not agents:
            raise ConfigError("nothing to serve: give at least one agent")
        names = [agent.name for agent in agents]
        if len(set(names)) != len(names):
            raise ConfigError(f"two agents have the same name: {', '.join(names)}")
        self.settings = settings or Settings()
        self.agents = agents
        self.store = store or _store(self.settings)
        self._is_local = is_local
        path = self.settings.audit_path()
        self.audit: Audit = NoAudit() if path is None else AuditLog(path)
        self._gatekeeper = gatekeeper(self.settings, authenticators)
        self._guard = Guard(self.settings, is_local=is_local)
        self._limits = Limits(self.settings)
        self._proxies = Proxies(self.settings.proxies)
        # Refuses in overload; None: whoever runs the loop we are in sees to that.
        self.admission: Admission | None = None
        # Remembers whom a rate keeps out, for whoever reads requests before we do.
        self.refusals = self._no_refusals()
        self._discovery = Discovery(agents, self.settings, self._gatekeeper)
        self._streams = OpenStreams(self.settings.max_streams)
        self._mounts: dict[str, Mount] = {}
        self._routes = self._all_routes()
        self._engines: list[Engine] = []
        self._chores: list[asyncio.Task[None]] = []
        self._post_room: PostRoom | None = None
        self._starting: asyncio.Lock | None = None
        # What is open while we run.
        self._opened = contextlib.AsyncExitStack()
        self.is_running = False
        # Set when the disk lost a write; whoever runs the app may want to know.
        self.is_broken = False
        self.on_broken: Callable[[], None] | None = None

    def _no_refusals(self) -> Refusals:
        """Return a memory of refusals that tells callers apart as we do."""
        places = [b"x-forwarded-for"] if self.settings.proxies else []
        ways = self._gatekeeper.authenticators if self._gatekeeper is not None else []
        shown = [name for way in ways for name in way.reads]
        # Pages of other sites are told in another way.
        origins = [b"origin"] if self.settings.cors else []
        return Refusals([*places, *shown, *origins], [*places, *origins])

    def _all_routes(self) -> Routes:
        """Return what is served at which path, and to whom."""
        routes = Routes()
        endpoints = Endpoints(self.settings, self._discovery, self._streams, self.audit)
        if JSONRPC in self.settings.bindings():
            for path in _RPC_PATHS:
                routes.add(path, endpoints.answer_jsonrpc, Access.CALLER)
        self._discovery.add_to(routes, lambda: self._post_room, endpoints.answer_rest)
        routes.add("/healthz", self._alive, Access.PUBLIC)
        routes.add("/readyz", self._ready, Access.PUBLIC)
        Admin(self.store, self._mounts, self.audit, self._status).add_to(routes)
        if self.settings.metrics:
            # Counts alone may be read where only this machine calls and nobody is asked.
            is_open = self._is_local and self._gatekeeper is None
            routes.add("/metrics", _metrics, Access.PUBLIC if is_open else Access.OPERATOR)
        routes.add_others(endpoints.answer_rest, Access.CALLER)
        routes.check()
        return routes

    # Life

    async def start(self) -> None:
        """Open the store, take over unfinished tasks, begin to answer."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self.is_running:
                return
            async with contextlib.AsyncExitStack() as opened:
                await self._open(opened)
                # From here on `stop` closes it.
                self._opened = opened.pop_all()
            self.is_running, self._streams.is_stopping = True, False
            self.audit.record("server.started", outcome="done", object=self._names())

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
        if self.settings.push:
            self._post_room = PostRoom(self.store, self.settings, self._engine_of)
        for agent, rack in zip(self.agents, self._discovery.racks, strict=True):
            agent.threads = ThreadPoolExecutor(self.settings.threads, f"agent-{agent.name}")
            engine = Engine(agent, self.store, self.settings, postings=self._post_room)
            opened.push_async_callback(engine.stop)
            self._engines.append(engine)
            offered = offered_extensions(agent, self.settings)
            uris = frozenset(extension.uri for extension in offered)
            self._mounts[agent.name] = Mount(agent, engine, rack, f"/agents/{agent.name}", uris)
            self.audit.card(agent.name, rack.digest())
        # After the engines, and so closed before them: it reads their logs.
        opened.push_async_callback(self._close_post_room)
        chores = (
            self._keep_streams_alive(),
            self._keep_lease(),
            self._sweep(),
            self._prune(),
            self._watch_disk(),
        )
        self._chores = [asyncio.get_running_loop().create_task(chore) for chore in chores]
        opened.push_async_callback(self._end_chores)

    async def _open_files(self, opened: contextlib.AsyncExitStack) -> None:
        """Open what the settings name: tasks, the audit log, and who callers are known by."""
        await self.store.open()
        opened.push_async_callback(self.store.close)
        # In a thread: it waits for the disk.
        opened.push_async_callback(asyncio.to_thread, self.audit.stop)
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
            if self._gatekeeper is not None:
                # Who was let in an hour ago may have lost the right since.
                self._streams.end_expired(self._gatekeeper.holds)

    async def _keep_lease(self) -> None:
        """Renew our lease. Two renewals may be lost before another process takes our tasks over; if
        we were only frozen, the fence stops us."""
        while True:
            await asyncio.sleep(self.settings.lease / 3)
            try:
                await self.store.renew()
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
        for engine in self._engines:
            await engine.sweep()
        if self._post_room is not None:
            await self._post_room.claim()

    def _engine_of(self, name: str) -> Engine | None:
        """Return an agent's engine; any one reads what is in the store."""
        if not name:
            return self._engines[0]
        for agent, engine in zip(self.agents, self._engines, strict=True):
            if agent.name == name:
                return engine
        return None

    async def _watch_disk(self) -> None:
        """Serve no more once the disk lost a write: what it holds is unknown until it is read
        again, which the next process does."""
        await self.store.broken()
        self.is_broken = True
        logger.critical("the disk lost a write; nothing more is acknowledged")
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
        mount, path = self._route(path)
        request = Request(scope, receive, send, mount, path)
        try:
            await self._answer(request)
        except BaseException as error:
            request.watched.failed(error)
            raise
        finally:
            request.watched.end(request)

    async def _answer(self, request: Request) -> None:
        self._guard.dress(request)
        if (problem := self._guard.problem(request)) is not None:
            await refuse(request, problem)
            return
        if (allowed := self._guard.preflight(request)) is not None:
            await request.respond(204, allowed, b"")
            return
        route = self._routes.find(request.path)
        request.watched.route = route.name
        if route.access is Access.CALLER:
            # Before the caller is known, so that refusals are in the trace too.
            has_trace = b"traceparent" in request.headers
            request.watched.join(request.scope["headers"], has_trace=has_trace)
        if route.access is Access.PUBLIC:
            await route.answer(request)
        else:
            await self._answer_caller(request, route)

    async def _answer_caller(self, request: Request, route: Route) -> None:
        """Answer someone who has to be known, within what they and we can take."""
        client = request.scope.get("client")
        peer: str = client[0] if client else ""
        request.address = self._proxies.origin(peer, request.scope["headers"])
        caller: Caller | None = None
        try:
            self._admit(request)
            self._limits.arrive(request.address)
            if not await self._lets_in(request, route):
                return
            caller = request.caller
            agent = request.header(SOURCE_AGENT)
            room = self._limits.admit(caller, agent, request.address)
        except Overloaded as error:
            if isinstance(error, RateLimited):
                self._note_limited(request, caller, error)
            await turn_away(request, error)
            return
        request.room = room
        request.extra += room.headers
        try:
            if self.admission is not None:
                self.admission.know(client, room.key)
            await route.answer(request)
        finally:
            room.leave()

    def _note_limited(self, request: Request, caller: Caller | None, error: RateLimited) -> None:
        """Remember who would be refused again, or from where nobody would be let in."""
        shown = request.evidence
        if caller is None:
            who = self.refusals.place(shown.address, shown.headers)
        else:
            who = self.refusals.caller(shown.address, shown.certificate, shown.headers)
        standing = self._limits.standing(caller, request.address)
        headers, body = _document(_too_many(error))
        self.refusals.note(who, standing, [*headers, *request.extra], body)

    def _admit(self, request: Request) -> None:
        """Refuse what is too much for us, unless that was decided where requests come in."""
        state = request.scope.get("state", {})
        if self.admission is None or state.get("is_admitted"):
            return
        is_preferred = request.verb in ("GET", "HEAD") or b"last-event-id" in request.headers
        if not self.admission.enter(
            request.scope.get("client"), is_preferred=is_preferred, came_at=state.get("came_at")
        ):
            raise Overloaded

    async def _lets_in(self, request: Request, route: Route) -> bool:
        """Find out who asks, and tell whether the path is open to them; if not, that is the
        answer."""
        keeper = self._gatekeeper
        if keeper is None:
            # Where nobody is asked who they are, nobody is an operator: behind a proxy on this
            # machine everybody comes from this machine.
            if route.access is Access.CALLER:
                return True
            await unauthenticated(request, Unauthenticated())
            return False
        request.challenge = keeper.challenge
        try:
            request.pass_ = await keeper.admit(request.evidence)
        except Denied as error:
            if keeper.is_tried(request.evidence):
                self._limits.failed(request.address)
            self._note_denial(request, route, "auth.denied", error.subject, error.reason)
            await unauthenticated(request, error)
            return False
        if (needed := _ROLES.get(route.access)) and not request.caller.scopes & needed:
            who = request.caller.owner
            self._note_denial(request, route, "access.denied", who, "not an operator")
            await denied(request, PermissionDenied(scope=OPERATOR))
            return False
        return True

    def _note_denial(
        self, request: Request, route: Route, act: str, who: str, reason: str
    ) -> None:
        self.audit.record(
            act,
            outcome="denied",
            who=who,
            object=f"{request.verb} {request.mount.agent.name} {route.name}".rstrip(),
            reason=reason,
            address=request.evidence.address,
        )

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
            "runningTasks": sum(engine.live_tasks for engine in self._engines),
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
        await _tell_health(request, "broken" if self.is_broken else "ok")

    async def _ready(self, request: Request) -> None:
        """Tell whoever balances load whether to send us anything."""
        await _tell_health(request, self._health())


async def _metrics(request: Request) -> None:
    if request.verb != "GET":
        await request.refuse_verb("GET")
        return
    # In a thread: it reads what other workers counted.
    body = await asyncio.to_thread(page.render)
    headers = [(b"content-type", page.CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
    await request.respond(200, [*headers, (b"content-length", b"%d" % len(body))], body)


async def _tell_health(request: Request, health: str) -> None:
    if health == "ok":
        await document(request, {"status": health})
    else:
        await document(request, {"status": health}, (b"retry-after", b"1"), status=503)


async def turn_away(request: Request, error: Overloaded) -> None:
    """Tell someone to come back later, before what they want is looked at."""
    if isinstance(error, RateLimited):
        request.extra += error.headers
        seconds, problem = error.retry_after, _too_many(error)
    else:
        seconds, problem = 1, Problem(503, "Service Unavailable", error.public)
    request.extra.append((b"retry-after", b"%d" % seconds))
    await refuse(request, problem)


async def refuse(request: Request, problem: Problem) -> None:
    """Answer a request that gets no further than its head."""
    headers, body = _document(problem)
    await request.respond(problem.status, headers, body)


def _document(problem: Problem) -> tuple[Headers, bytes]:
    """Return a problem as the headers that describe it, and a body."""
    body = problem.body()
    return [(b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body))], body


def _too_many(error: RateLimited) -> Problem:
    return Problem(429, "Too Many Requests", error.public)


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
    )
