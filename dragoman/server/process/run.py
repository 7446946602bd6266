"""Run an app on a port, until a signal ends it: also although clients keep streams open."""

import asyncio
import atexit
import gc
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.config import Settings
from dragoman.egress.descriptors import for_callers
from dragoman.engine.running.author_code import AuthorThreads
from dragoman.errors import ConfigError
from dragoman.http.admission import Admission
from dragoman.http.connections import Connections
from dragoman.http.deadlines import HANDSHAKE_SECONDS
from dragoman.http.grpc.front import GrpcFront
from dragoman.http.protocol import protocol
from dragoman.server.app import App
from dragoman.server.authenticators import unused
from dragoman.server.process.grpc_serving import grpc_of
from dragoman.server.process.listening import BACKLOG, is_local, listen, shared_listeners, url_of
from dragoman.server.process.tls import tls_context
from dragoman.server.process.workers import INTERRUPTED, inherited, supervise
from dragoman.server.push_service import check as check_push
from dragoman.telemetry import figures, logs, page
from dragoman.telemetry.activity import activity

if TYPE_CHECKING:
    from ssl import SSLContext

    # Loads websockets, which an extra brings.
    from dragoman.server.process.joining import Joining

logger = logging.getLogger("dragoman")

# Seconds that agent code has to end after everything else has.
_LAST_WORDS = 0.5
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform == "win32":
    _SIGNALS.append(signal.SIGBREAK)


class Server:
    """Serves an app on sockets from when it has started until it is to end."""

    def __init__(
        self,
        app: App,
        connections: Connections,
        on_ready: Callable[[], None],
        *,
        tls: "SSLContext | None" = None,
        channel: socket.socket | None = None,
        urls: Sequence[str] = (),
        grpc: GrpcFront | None = None,
        join: "Joining | None" = None,
    ) -> None:
        """`join` keeps the agent connected to a gateway, in place of a port."""
        self._join = join
        self._grpc = grpc
        self._urls = urls
        self._app = app
        self._connections = connections
        self._protocol = protocol(app, connections)
        self._on_ready = on_ready
        self._tls = tls
        self._channel = channel
        # The signals that came.
        self.came: list[int] = []
        self.is_started = False
        self._is_ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[asyncio.Server] = []
        app.site.end_process = self._end

    def take_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop serving; a second Ctrl-C does not wait for what is under way."""
        if number == signal.SIGINT and self.came:
            self._connections.is_forced = True
        self.came.append(number)
        if self._loop is None:
            return
        if self._loop.is_closed():
            # So is the store: only threads and modules of authors are still to end.
            os._exit(self.code)
        # A signal comes between any two instructions, also of the loop.
        self._loop.call_soon_threadsafe(self._end)

    @property
    def code(self) -> int:
        """The exit code of the process: Ctrl-C is told from an orderly stop."""
        if not self.is_started or self._app.site.fault is not None:
            return 1
        return INTERRUPTED if signal.SIGINT in self.came else 0

    def _end(self) -> None:
        """Stop serving, as a signal would."""
        self._is_ending.set()

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Open the app, listen, and end both when told so."""
        self._loop = asyncio.get_running_loop()
        await self._app.start()
        self.is_started = True
        # One may have come while the store was opened.
        if not self.came:
            await self._listen(self._loop, listeners)
            await self._is_ending.wait()
        await self._close(listeners)

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, listeners: Sequence[socket.socket]
    ) -> None:
        """Start listening, then report it."""
        # The loop's default for a handshake is a minute.
        handshake = None if self._tls is None else HANDSHAKE_SECONDS
        self._servers = [
            await loop.create_server(
                self._protocol,
                sock=listener,
                backlog=BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=handshake,
            )
            for listener in listeners
        ]
        if self._channel is not None:
            loop.add_reader(self._channel, self._end_alone)
        await self._app.listening(self._urls)
        if self._join is not None:
            await self._join.start(self._app.site.store, self._protocol, self._end)
        self._on_ready()

    def _end_alone(self) -> None:
        """Stop serving: the parent is gone, and no signal will come from it."""
        assert self._channel is not None
        asyncio.get_running_loop().remove_reader(self._channel)
        self._end()

    async def _close(self, listeners: Sequence[socket.socket]) -> None:
        """Let go of the callers, then of the app."""
        activity.flush()
        drain = self._app.settings.server.drain
        is_kept = self._app.settings.stores.location != "memory:"
        fate = "goes on at the next start" if is_kept else "is lost with the memory it was in"
        logger.info("stopping: what is under way %s", fate)
        # Connections that wait to be accepted are accepted in this turn of the loop. The kernel
        # resets those that still wait when we stop to listen.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for listener in listeners:
            listener.close()
        self._connections.is_stopping = True
        self._app.end_streams()
        if self._join is not None:
            self._join.leave()
        if self._grpc is not None:
            # Before its connections are closed: rpcs that are being answered have some time.
            await self._grpc.stop(drain)
        if late := await self._connections.close(max(1.0, drain)):
            logger.error("requests that were not answered in time: %d", late)
        if not self._connections.is_forced:
            await self._app.stop()
        if self._join is not None:
            await self._join.close()


class Ready(msgspec.Struct, frozen=True):
    """What is served, once it is."""

    # Where we listen, the first address first.
    urls: list[str]
    store: str
    # Where only gRPC is served, `host:port`.
    grpc: Sequence[str] = ()


def run(
    agents: Sequence[Agent],
    settings: Settings,
    *,
    public: bool,
    on_ready: Callable[[Ready], None],
    command: Sequence[str] = (),
    make: Callable[..., App] = App,
    join: "Joining | None" = None,
) -> None:
    """Serve until a signal ends it; `on_ready` is called once callers can connect.

    `command` starts this program again, for each of several workers. `make` makes the app. With
    `join` nothing is listened to: callers come by the gateway that the agent joins.
    """
    logs.configure(
        settings.telemetry.log_format,
        settings.telemetry.log_level,
        access=settings.telemetry.access_log,
    )
    if settings.telemetry.log_level in ("debug", "info"):
        activity.begin()
    worker = inherited()
    if join is not None:
        _join(make(*agents, settings=settings, is_local=False), join, on_ready, settings)
        return
    places = [*settings.addresses(), *settings.grpc_addresses()]
    only_local = all(is_local(host) for host, _ in places)
    if worker is None:
        _check(settings, is_local=only_local, public=public)
    # Before anything is opened, so that mistakes in the settings are reported first.
    app = make(*agents, settings=settings, is_local=only_local)
    tls = tls_context(settings)
    with ExitStack() as stack:
        if worker is not None:
            stack.enter_context(worker.channel)
            listeners = [stack.enter_context(listener) for listener in worker.listeners]
            code = _work(app, listeners, tls, worker.tell_ready, worker.channel)
        else:
            listeners = [stack.enter_context(listen(host, port)) for host, port in places]
            urls = [url_of("https" if tls else "http", listener) for listener in listeners]
            count = len(settings.addresses())
            grpc = [url.partition("://")[2] for url in urls[count:]]

            def ready() -> None:
                on_ready(Ready(urls[:count], settings.store_name, grpc))

            if settings.server.workers > 1:
                _check_start(app)
                stack.enter_context(page.gathering())
                shares = [
                    shared_listeners(listener, settings.server.workers) for listener in listeners
                ]
                for one in itertools.chain(*shares):
                    stack.enter_context(one)
                theirs = list(zip(*shares, strict=True))
                code = supervise(command, theirs, drain=settings.server.drain, on_ready=ready)
            else:
                code = _work(app, listeners, tls, ready)
    _end(code)


def _join(app: App, join: "Joining", on_ready: Callable[[Ready], None], settings: Settings) -> None:
    """Serve an agent to a gateway that it dials out to."""
    code = _work(app, [], None, lambda: on_ready(Ready([], settings.store_name)), join=join)
    if join.refusal is not None:
        raise join.refusal
    _end(code)


def _check(settings: Settings, *, is_local: bool, public: bool) -> None:
    """Refuse settings that are unsafe unless confirmed, or contradictory."""
    if not is_local and not settings.ways() and not public:
        named = ", ".join([*settings.http.listen, *settings.http.grpc_listen])
        raise ConfigError(
            f"{named} is reachable by others and nothing would "
            "authenticate them; "
            "listen on 127.0.0.1, say how callers authenticate (--auth), or say --public if "
            "every caller is welcome",
            remedy=f"--listen 127.0.0.1:{settings.http.listen[0].rpartition(':')[2]}",
        )
    if settings.server.workers > 1 and settings.stores.location == "memory:":
        raise ConfigError(
            "workers: memory: is in one process; several share a file: --store",
            remedy="--store tasks.db",
        )
    warnings = unused(settings)
    if settings.egress.allow_private:
        warnings.append(
            "--allow-private lets callers have us dial addresses of this machine and its "
            "networks. Do not use it where callers are not trusted."
        )
    share = for_callers(settings.http.max_connections)
    if share.connections < settings.http.max_connections:
        warnings.append(
            f"max_connections: {share.connections} instead of {settings.http.max_connections}, "
            f"since this process may have {share.limit} files and connections open; allow it more "
            "(ulimit -n), or ask for fewer."
        )
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr, flush=True)


def _check_start(app: App) -> None:
    """Find what would keep the workers from starting, to report it once and not once per worker."""
    check_push(app.settings)
    asyncio.run(app.check())


def _work(
    app: App,
    listeners: list[socket.socket],
    tls: "SSLContext | None",
    on_ready: Callable[[], None],
    channel: socket.socket | None = None,
    join: "Joining | None" = None,
) -> int:
    """Serve in this process; return its exit code."""
    app.access.admission = Admission()
    connections = Connections(app.settings, app.access.admission, app.access.refusals)
    connections.max_connections = for_callers(app.settings.http.max_connections).connections
    figures.connections.watch(connections.__len__)
    figures.connections_taken.watch(lambda: connections.opened)
    figures.connection_refusals.watch_each(lambda: connections.refused)
    count = len(app.settings.addresses())
    grpc = grpc_of(app) if join is None else None
    if grpc is not None:
        ports = [listener.getsockname()[1] for listener in listeners[count:]]
        connections.grpc, connections.grpc_ports = grpc, frozenset(ports)
        grpc.most = max(1, connections.max_connections // 3)
        place = app.site.discovery.grpc
        place.is_served, place.port = True, ports[0] if ports else 0
    urls = [url_of("https" if tls else "http", listener) for listener in listeners[:count]]
    server = Server(
        app, connections, on_ready, tls=tls, channel=channel, urls=urls, grpc=grpc, join=join
    )
    page.share()
    for number in _SIGNALS:
        signal.signal(number, server.take_signal)
    # Objects alive after start-up stay; collect seldom, since requests make no cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        run_through(runner.get_loop(), _serve(server, listeners))
    return server.code


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def run_through(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end although other code stops the loop or raises an exit: signals are
    handled elsewhere, so these come from an agent's code."""
    loop.set_default_executor(AuthorThreads())
    running = loop.create_task(main)
    running.add_done_callback(lambda _: loop.stop())
    while not running.done():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            if not running.done():
                logger.error("an agent's code wanted to end the server", exc_info=error)
    running.result()


async def _serve(server: Server, listeners: list[socket.socket]) -> None:
    await server.serve(listeners)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others and (await asyncio.wait(others, timeout=_LAST_WORDS))[1]:
        # Agent code that ignores its cancellation.
        _leave(server.code)


def _end(code: int) -> NoReturn:
    """End the process in good order: as it was asked to, also if it is asked once more."""
    # Python gives signals their first meaning again before it has ended.
    atexit.register(_ignore_signals)
    _leave_threads(code)
    sys.exit(code)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave_threads(code: int) -> None:
    """End the process although an agent's plain function still blocks its thread: Python would
    wait for it for ever."""
    deadline = time.monotonic() + _LAST_WORDS
    for thread in threading.enumerate():
        if thread.name.startswith("agent-"):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _leave(code)


def _leave(code: int) -> None:
    """End at once. The store is closed, and the next process takes over the tasks that still run:
    they are in the log."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
