"""The ASGI app: every agent, binding and version on one port.

Plain ASGI, because the path of a request is short and a framework would double it. Whatever is
wrong with a request, the answer has the shape its sender expects and says nothing about us.
What is asked about the server and not of its agents, `server/discovery.py` answers.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dragoman.config import Settings
from dragoman.dialects import errors, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.engine import Engine
from dragoman.errors import (
    A2AError,
    ConfigError,
    InternalError,
    MethodNotFound,
    Overloaded,
    Unauthenticated,
)
from dragoman.model import operations as ops
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.model.identity import ANONYMOUS, new_id
from dragoman.model.message import Message
from dragoman.model.record import Recorded, encode
from dragoman.server.agent import Agent
from dragoman.server.cards import offered_extensions
from dragoman.server.discovery import Discovery, unauthenticated
from dragoman.server.push import PostRoom
from dragoman.server.request import (
    JSON,
    MAX_URL_BYTES,
    Headers,
    Mount,
    Request,
    Scope,
    check_type,
    is_heavy,
    not_allowed,
    read_body,
    read_value,
    respond,
    rest_type,
    target_length,
)
from dragoman.service import Batch, Call, Opening, Reply
from dragoman.stores.interface import Store
from dragoman.stores.memory import MemoryStore
from dragoman.transports import jsonrpc, rest, sse

logger = logging.getLogger("dragoman")

PRUNE_EVERY = 3600.0
SWEEP_EVERY = 1.0
_RPC_PATHS = frozenset({"", "/", "/rpc", "/rpc/", "/a2a", "/a2a/"})
# Says that a stream does not go on from where its reader was, but begins with the task as it is.
RESET = (b"x-dragoman-resume", b"reset")


class App:
    """Agents as an ASGI app."""

    def __init__(
        self,
        *agents: Agent,
        settings: Settings | None = None,
        store: Store | None = None,
    ) -> None:
        if not agents:
            raise ConfigError("nothing to serve: give at least one agent")
        names = [agent.name for agent in agents]
        if len(set(names)) != len(names):
            raise ConfigError(f"two agents have the same name: {', '.join(names)}")
        self.settings = settings or Settings()
        self.agents = agents
        self.store = store or _store(self.settings)
        self._bindings = self.settings.bindings()
        self._discovery = Discovery(agents, self.settings)
        self._mounts: dict[str, Mount] = {}
        self._engines: list[Engine] = []
        self._streams: set[sse.Stream] = set()
        self._chores: list[asyncio.Task[None]] = []
        self._post_room: PostRoom | None = None
        self._starting: asyncio.Lock | None = None
        self.is_running = False
        # Set when the disk lost a write; whoever runs the app may want to know.
        self.is_broken = False
        self.on_broken: Callable[[], None] | None = None
        # Set when requests are cut off because the server ends, and not by their callers.
        self.is_stopping = False

    # Life

    async def start(self) -> None:
        """Open the store, take over unfinished tasks, begin to answer."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self.is_running:
                return
            await self.store.open()
            try:
                if self.settings.push:
                    self._post_room = PostRoom(self.store, self.settings, self._engine_of)
            except ConfigError:
                await self.store.close()
                raise
            for agent, rack in zip(self.agents, self._discovery.racks, strict=True):
                agent.threads = ThreadPoolExecutor(self.settings.threads, f"agent-{agent.name}")
                engine = Engine(agent, self.store, self.settings, postings=self._post_room)
                self._engines.append(engine)
                offered = offered_extensions(agent, self.settings)
                uris = frozenset(extension.uri for extension in offered)
                self._mounts[agent.name] = Mount(agent, engine, rack, f"/agents/{agent.name}", uris)
            loop = asyncio.get_running_loop()
            self._chores = [
                loop.create_task(self._keep_streams_alive()),
                loop.create_task(self._keep_lease()),
                loop.create_task(self._sweep()),
                loop.create_task(self._prune()),
                loop.create_task(self._watch_disk()),
            ]
            self.is_running, self.is_stopping = True, False

    async def stop(self) -> None:
        """End open streams, let go of running tasks, close the store."""
        if not self.is_running:
            return
        self.is_running = False
        self.end_streams()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        if self._post_room is not None:
            await self._post_room.stop()
            self._post_room = None
        for engine in self._engines:
            await engine.stop()
        await self.store.close()
        for agent in self.agents:
            if agent.threads is not None:
                agent.threads.shutdown(wait=False, cancel_futures=True)
                agent.threads = None
        self._engines.clear()
        self._mounts.clear()

    def end_streams(self) -> None:
        """End every open stream; readers come back with the position they have."""
        self.is_stopping = True
        for stream in list(self._streams):
            stream.stop()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["App"]:
        """Serve for as long as the block lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def _keep_streams_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.settings.keepalive / 4)
            quiet_since = loop.time() - self.settings.keepalive
            for stream in list(self._streams):
                stream.keep_alive(quiet_since)

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
        if target_length(scope) > MAX_URL_BYTES:
            await respond(send, 414, [(b"content-length", b"0")], b"")
            return
        if is_heavy(scope["headers"]):
            await respond(send, 431, [(b"content-length", b"0")], b"")
            return
        mount, path = self._route(path)
        request = Request(scope, receive, send, mount, path)
        if path in _RPC_PATHS and JSONRPC in self._bindings:
            if request.verb == "POST":
                await self._jsonrpc(request)
            else:
                await not_allowed(send, "POST")
        elif not await self._discovery.answer(request, self._health(), self._post_room):
            await self._rest(request)

    def _route(self, path: str) -> tuple[Mount, str]:
        """Return who answers a path, and the rest of it: the root is the first agent's."""
        if path.startswith("/agents/"):
            name, _, rest_of_path = path[len("/agents/") :].partition("/")
            mount = self._mounts.get(name)
            if mount is not None:
                return mount, f"/{rest_of_path}"
        return next(iter(self._mounts.values())), path

    def _health(self) -> str:
        """Return how we are, for whoever balances load."""
        if self.is_broken:
            return "broken"
        return "ok" if self.is_running and not self.is_stopping else "stopping"

    # JSON-RPC

    async def _jsonrpc(self, request: Request) -> None:
        id: jsonrpc.Id = None
        method = ""
        dialect: Dialect | None = None
        try:
            check_type(request)
            value = await read_value(await read_body(request, self.settings.max_body_bytes))
            id = jsonrpc.request_id(value)
            method = jsonrpc.method_name(value)
            envelope = jsonrpc.parse(value)
            dialect = negotiate.for_jsonrpc(
                envelope.method, *request.version, infer=self.settings.version_mode == "infer"
            )
            dialect = self._discovery.offered(dialect, request)
            operation = dialect.decode_request(envelope.method, envelope.params)
            call = self._call(request, operation, dialect)
            if operation.streams:
                await self._stream_jsonrpc(request, call, dialect, id)
                return
            reply = await self._answer(request, call, dialect)
            body = jsonrpc.success(id, dialect.encode_reply(operation, reply))
            is_card = isinstance(operation, ops.GetExtendedCard)
            await self._reply(request, JSON, body, dialect.version, private=is_card)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except asyncio.CancelledError:
            if not self.is_stopping:
                raise
            _forgive_cancellation()
            await self._jsonrpc_error(request, Overloaded(), id, dialect, method)
        except A2AError as error:
            await self._jsonrpc_error(request, error, id, dialect, method)
        except Exception:
            await self._jsonrpc_error(request, _incident(), id, dialect, method)

    async def _jsonrpc_error(
        self,
        request: Request,
        error: A2AError,
        id: jsonrpc.Id,
        dialect: Dialect | None,
        method: str,
    ) -> None:
        self._discovery.narrow(error)
        version = dialect.version if dialect else negotiate.error_version(*request.version, method)
        body = jsonrpc.failure(id, errors.jsonrpc(error, version))
        kind = JSON
        if request.wants_stream_only:
            # A client that can only read events gets the error as one.
            kind, body = sse.CONTENT_TYPE, sse.on_single_lines(sse.frame(body))
        # Errors of the protocol are 200 here; that we are busy is a matter of HTTP.
        status = 503 if isinstance(error, Overloaded) else 200
        await self._reply(request, kind, body, version, status=status)

    def _call(self, request: Request, operation: ops.Operation, dialect: Dialect) -> Call:
        is_old = dialect.version != "1.0"
        return Call(
            operation=operation,
            caller=ANONYMOUS,
            after=request.after,
            extensions=request.extensions,
            closes_on_input=is_old or not isinstance(operation, ops.SubscribeToTask),
            patience=self.settings.max_block_seconds if is_old else 0.0,
            client_task_id=is_old and self.settings.client_task_ids,
        )

    async def _answer(self, request: Request, call: Call, dialect: Dialect) -> Reply:
        if isinstance(call.operation, ops.GetExtendedCard):
            return self._discovery.extended_card(request, dialect)
        return await request.mount.service.answer(call)

    async def _stream_jsonrpc(
        self, request: Request, call: Call, dialect: Dialect, id: jsonrpc.Id
    ) -> None:
        before, after = jsonrpc.success_frame(id)

        def failed(error: A2AError) -> bytes:
            return jsonrpc.failure(id, errors.jsonrpc(error, dialect.version))

        await self._stream(request, call, dialect, (before, after), failed)

    # REST

    async def _rest(self, request: Request) -> None:
        version = negotiate.rest_version(*request.version, request.path)
        is_old = version != V1_0.version
        infer = self.settings.version_mode == "infer"
        try:
            if HTTP_JSON not in self._bindings:
                raise MethodNotFound("Nothing is served here")
            route = rest.find_0_3(request.verb, request.path) if is_old else self._find(request)
            if isinstance(route, rest.NotAllowed):
                await not_allowed(request.send, route.allow)
                return
            if route is None:
                raise MethodNotFound("Nothing is served here")
            dialect: Dialect = V1_0
            if not is_old:
                dialect = negotiate.for_rest(*request.version, infer=infer)
                dialect = self._discovery.offered(dialect, request)
            check_type(request)
            body = await read_body(request, self.settings.max_body_bytes)
            value = await read_value(body) if body else None
            if is_old:
                agent = request.header(b"user-agent") or ""
                dialect = negotiate.for_rest_0_3(*request.version, agent, value, infer=infer)
                dialect = self._discovery.offered(dialect, request)
                version = dialect.version
            params = rest.params(route, request.scope["query_string"], value)
            operation = dialect.decode_request(rest.method(route, dialect), params)
            call = self._call(request, operation, dialect)
            if operation.streams:
                await self._stream_rest(request, call, dialect)
                return
            reply = await self._answer(request, call, dialect)
            content = rest.content(dialect.encode_reply(operation, reply))
            await self._reply(request, rest_type(request, version), content, version, private=True)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except asyncio.CancelledError:
            if not self.is_stopping:
                raise
            _forgive_cancellation()
            await self._rest_error(request, Overloaded(), version)
        except A2AError as error:
            await self._rest_error(request, error, version)
        except Exception:
            await self._rest_error(request, _incident(), version)

    def _find(self, request: Request) -> rest.Route | rest.NotAllowed | None:
        """Return what a path of 1.0 is. Below `/v1` it is one only for who says so: that is our
        address then, or a tenant."""
        if not request.path.startswith("/v1/"):
            return rest.find(request.verb, request.path)
        if self._discovery.base(request).endswith("/v1"):
            return rest.find(request.verb, request.path.removeprefix("/v1"))
        return rest.find(request.verb, request.path, reserved=rest.RESERVED - {"v1"})

    def _rest_failure(self, error: A2AError, version: str) -> tuple[int, Any]:
        if version == V1_0.version:
            return errors.rest(error, self.settings.error_table)
        return errors.rest_0_x(error)

    async def _rest_error(self, request: Request, error: A2AError, version: str) -> None:
        self._discovery.narrow(error)
        status, content = self._rest_failure(error, version)
        kind = rest_type(request, version)
        await self._reply(request, kind, encode(content), version, status=status, private=True)

    async def _stream_rest(self, request: Request, call: Call, dialect: Dialect) -> None:
        def failed(error: A2AError) -> bytes:
            return encode(self._rest_failure(error, dialect.version)[1])

        await self._stream(request, call, dialect, (b"", b""), failed)

    # Answers

    async def _stream(
        self,
        request: Request,
        call: Call,
        dialect: Dialect,
        wrap: tuple[bytes, bytes],
        failed: Callable[[A2AError], bytes],
    ) -> None:
        if len(self._streams) >= self.settings.max_streams:
            raise Overloaded
        batches = request.mount.service.follow(call)
        stream = sse.Stream(request.send, request.receive)
        self._streams.add(stream)
        try:
            # Waits for the first batch: a refusal is a plain error and not a broken stream.
            first = await anext(batches)
        except BaseException:
            self._streams.discard(stream)
            raise
        try:
            headers = [*sse.HEADERS, *_common(request, dialect.version)]
            if isinstance(first, Opening) and first.is_reset:
                headers.append(RESET)
            await stream.open(headers)
            await stream.write(_frames(first, dialect, wrap))
            async for batch in batches:
                await stream.write(_frames(batch, dialect, wrap))
        except asyncio.CancelledError:
            if not stream.is_closed:
                raise
            _forgive_cancellation()
        except A2AError as error:
            await stream.write(sse.error_frame(failed(error)))
        except Exception:
            await stream.write(sse.error_frame(failed(_incident())))
        finally:
            stream.is_closed = True
            self._streams.discard(stream)
            await batches.aclose()
            await stream.close()

    async def _reply(
        self,
        request: Request,
        kind: bytes,
        body: bytes,
        version: str,
        *,
        status: int = 200,
        private: bool = False,
    ) -> None:
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        headers += _common(request, version)
        if private:
            headers.append((b"cache-control", b"private, no-store"))
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await respond(request.send, status, headers, body)


def _store(settings: Settings) -> Store:
    if settings.store == "memory:":
        return MemoryStore()
    from dragoman.stores.sqlite import SQLiteStore

    if settings.synchronous != "full" and not settings.accept_data_loss:
        raise ConfigError(
            f"synchronous = {settings.synchronous} loses acknowledged tasks when the power fails; "
            "say --i-accept-data-loss if that is what you want"
        )
    return SQLiteStore(
        settings.store_path(), lease=settings.lease, synchronous=settings.synchronous
    )


def _common(request: Request, version: str) -> Headers:
    headers: Headers = [
        (b"a2a-version", version.encode()),
        (b"vary", b"A2A-Version, Accept"),
    ]
    asked = request.extensions
    if asked:
        active = ", ".join(sorted(asked & request.mount.extensions)).encode()
        if active:
            name = b"a2a-extensions" if version == V1_0.version else b"x-a2a-extensions"
            headers.append((name, active))
    return headers


def _frames(batch: Batch, dialect: Dialect, wrap: tuple[bytes, bytes]) -> bytes:
    before, after = wrap
    if isinstance(batch, Opening):
        opening = dialect.encode_opening(batch.reply)
        return sse.frame(before + opening + after, batch.reply.reading.seq)
    if isinstance(batch, Message):
        return sse.frame(before + dialect.encode_event(Recorded(0, batch)) + after)
    return b"".join(
        [
            b"id: %d\ndata: %b%b%b\n\n"
            % (recorded.seq, before, dialect.encode_event(recorded), after)
            for recorded in batch
        ]
    )


def _incident() -> InternalError:
    """Log the exception in hand and return what the caller may know of it."""
    incident = new_id()
    logger.exception("incident %s", incident)
    return InternalError(incident=incident)


def _forgive_cancellation() -> None:
    """The cancellation was our own way to end a stream; the task goes on to close it."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
