"""Run the app on a port: uvicorn in this process, stopped by us and not by its clients."""

import asyncio
import gc
import ipaddress
import itertools
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import uvicorn

from dragoman.config import Settings
from dragoman.engine.author_code import AuthorThreads
from dragoman.errors import ConfigError
from dragoman.security.descriptors import for_callers
from dragoman.server.admission import Admission
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.authenticators import unused
from dragoman.server.connections import HANDSHAKE_SECONDS, Connections
from dragoman.server.http import protocol
from dragoman.server.push import check as check_push
from dragoman.server.workers import inherited, supervise
from dragoman.telemetry import figures, logs, page

logger = logging.getLogger("dragoman")

# Connections that may wait to be taken.
_BACKLOG = 2048
_UNSENT_BYTES = 16 * 1024
# Seconds agent code has to end when everything else has.
_LAST_WORDS = 0.5


class Server(uvicorn.Server):
    """Ends open streams when it is told to stop: their clients would keep it for ever."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        on_ready: Callable[[], None],
        line: socket.socket | None = None,
        urls: Sequence[str] = (),
    ) -> None:
        super().__init__(config)
        self._urls = urls
        self._app = app
        self._on_ready = on_ready
        self._line = line
        app.on_broken = self._end

    def _end(self) -> None:
        """Stop serving, as a signal would."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then tell."""
        loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            # A setting of the loop's that uvicorn does not hand on; its own is a minute.
            vars(loop)["create_server"] = partial(
                loop.create_server, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        await super().startup(sockets)
        if self.started:
            if self._line is not None:
                loop.add_reader(self._line, self._end_alone)
            await self._app.listening(self._urls)
            self._on_ready()

    def _end_alone(self) -> None:
        """Stop serving, since nobody is left who would tell us to."""
        assert self._line is not None
        asyncio.get_running_loop().remove_reader(self._line)
        self._end()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let readers go before uvicorn waits for them."""
        self._app.end_streams()
        await super().shutdown(sockets)


class Ready(NamedTuple):
    """What is served, once it is."""

    # Where we listen, the first address first.
    urls: list[str]
    store: str


def run(
    agents: Sequence[Agent],
    settings: Settings,
    *,
    public: bool,
    on_ready: Callable[[Ready], None],
    command: Sequence[str] = (),
    make: Callable[..., App] = App,
) -> None:
    """Serve until a signal ends it; `on_ready` is called once callers can connect.

    `command` starts this program again, which is how there come to be several workers. `make`
    makes the app of the agents.
    """
    logs.configure(settings.log_format, settings.log_level, access=settings.access_log)
    worker = inherited()
    is_local = all(_is_local(host) for host, _ in settings.addresses())
    if worker is None:
        _check(settings, is_local=is_local, public=public)
    # Before anything is opened: what is wrong with settings is said first.
    app = make(*agents, settings=settings, is_local=is_local)
    tls = _tls(settings)
    with ExitStack() as stack:
        if worker is not None:
            stack.enter_context(worker.line)
            listeners = [stack.enter_context(listener) for listener in worker.listeners]
            code = _work(app, listeners, tls, worker.tell_ready, worker.line)
        else:
            addresses = settings.addresses()
            listeners = [stack.enter_context(_listen(host, port)) for host, port in addresses]
            urls = [_url("https" if tls else "http", listener) for listener in listeners]
            store = settings.store if settings.store == "memory:" else str(settings.store_path())

            def ready() -> None:
                on_ready(Ready(urls, store))

            if settings.workers > 1:
                _check_start(app)
                stack.enter_context(page.gathering())
                shares = [_shares(listener, settings.workers) for listener in listeners]
                for one in itertools.chain(*shares):
                    stack.enter_context(one)
                theirs = list(zip(*shares, strict=True))
                code = supervise(command, theirs, drain=settings.drain, on_ready=ready)
            else:
                code = _work(app, listeners, tls, ready)
    _leave_threads(code)
    sys.exit(code)


def _check(settings: Settings, *, is_local: bool, public: bool) -> None:
    """Refuse what is not safe unless it was asked for, and what cannot be."""
    if not is_local and not settings.ways() and not public:
        raise ConfigError(
            f"{settings.listen} is reachable by others and nothing would authenticate them; "
            "listen on 127.0.0.1, say how they prove who they are (--auth), or say --public if "
            "anybody may call"
        )
    if settings.workers > 1 and settings.store == "memory:":
        raise ConfigError("workers: memory: is in one process; several share a file: --store")
    warnings = unused(settings)
    if settings.allow_private:
        warnings.append(
            "--allow-private lets callers have us dial addresses of this machine and its "
            "networks. Do not use it where callers are not trusted."
        )
    share = for_callers(settings.max_connections)
    if share.connections < settings.max_connections:
        warnings.append(
            f"max_connections: {share.connections} instead of {settings.max_connections}, since "
            f"this process may have {share.limit} files and connections open; allow it more "
            "(ulimit -n), or ask for fewer."
        )
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr, flush=True)


def _check_start(app: App) -> None:
    """Find what would keep a worker from starting: here it is told once, and as it should be."""
    check_push(app.settings)
    asyncio.run(app.check())


def _work(
    app: App,
    listeners: list[socket.socket],
    tls: dict[str, Any],
    on_ready: Callable[[], None],
    line: socket.socket | None = None,
) -> int:
    """Serve in this process; return its exit code."""
    app.door.admission = Admission()
    connections = Connections(app.settings, app.door.admission, app.door.refusals)
    connections.max_connections = for_callers(app.settings.max_connections).connections
    figures.connections.watch(connections.__len__)
    figures.connections_taken.watch(lambda: connections.opened)
    figures.connection_refusals.watch_each(lambda: connections.refused)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        # Who asks is not what a header claims; a proxy in front is a matter of configuration.
        proxy_headers=False,
        http=protocol(connections),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=max(1, int(app.settings.drain)),
        **tls,
    )
    urls = [_url("https" if tls else "http", listener) for listener in listeners]
    server = Server(config, app, on_ready, line, urls)
    page.share()
    # uvicorn raises the signal again once it is done; it is how we are meant to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    # What is alive after start-up stays; look for cycles seldom, since requests make none.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        run_through(runner.get_loop(), _serve(app, server, listeners))
    return 0 if server.started and not app.is_broken else 1


def run_through(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, whatever else on the loop wants to end it: signals are heard
    elsewhere, so an exit comes from an agent's code, and a stop too."""
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


async def _serve(app: App, server: Server, listeners: list[socket.socket]) -> None:
    # Before uvicorn, which would report bad settings as a failure of its own.
    await app.start()
    await server.serve(sockets=listeners)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others and (await asyncio.wait(others, timeout=_LAST_WORDS))[1]:
        # Agent code that will not be cancelled.
        _leave(1 if app.is_broken else 0)


def _leave_threads(code: int) -> None:
    """End the process although an agent's plain function still blocks in its thread.

    Python would wait for it for ever.
    """
    deadline = time.monotonic() + _LAST_WORDS
    for thread in threading.enumerate():
        if thread.name.startswith("agent-"):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _leave(code)


def _leave(code: int) -> None:
    """End at once. The store is closed, and what still runs is in the log: the next process takes
    it over."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _ignore(number: int, frame: Any) -> None:
    """What there was to do is done."""


def _is_local(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        # What a name stands for here; an address stands for itself.
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    except (OSError, ValueError):
        raise ConfigError(
            f"listen: {host} is no address, nor a name of one; write 127.0.0.1:8000"
        ) from None
    return all(address.is_loopback for address in addresses)


def _tls(settings: Settings) -> dict[str, Any]:
    """Return what uvicorn needs for TLS; raises `ConfigError` for files it would stumble over."""
    if settings.client_crl and "mtls" not in settings.ways():
        # Only there it is read, and again when it changes: a list inside the TLS library would
        # lock everybody out once it is out of date, until a restart.
        raise ConfigError("client_crl: revoked certificates are looked for only by --auth mtls")
    if not settings.tls_cert:
        # Behind a proxy, which speaks TLS, the authorities are for what it hands over.
        is_alone = not settings.proxy_cert_header
        if settings.tls_key or (settings.client_ca and is_alone):
            raise ConfigError("a key or the authorities of callers need a certificate: --tls-cert")
        return {}
    try:
        probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        probe.load_cert_chain(settings.tls_cert, settings.tls_key or None, password=_no_password)
        if settings.client_ca:
            probe.load_verify_locations(settings.client_ca)
    except (OSError, ValueError) as error:
        names = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{names}: cannot be used for TLS ({reason})") from None
    return {
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key or None,
        "ssl_ca_certs": settings.client_ca or None,
        "ssl_cert_reqs": _asks_for(settings),
        "ssl_context_factory": _context,
    }


def _asks_for(settings: Settings) -> ssl.VerifyMode:
    """Return whether callers are to show a certificate when they connect."""
    if not settings.client_ca:
        return ssl.CERT_NONE
    # One that is shown must be good in any case; without one there may be another way in.
    has_others = {*settings.ways()} > {"mtls"} or settings.proxy_cert_header
    return ssl.CERT_OPTIONAL if has_others else ssl.CERT_REQUIRED


def _context(config: uvicorn.Config, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context that does not depend on what this machine takes for safe."""
    context = make()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    """Nothing prompts, also not the library that reads keys."""
    raise ValueError("the key is encrypted")


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _shares(listener: socket.socket, count: int) -> list[socket.socket]:
    """Return what each of so many processes is to listen on. Of one that all have, whoever wakes
    first takes all connections that wait; where each has its own, the system deals them out."""
    if sys.platform != "linux":
        return [listener.dup() for _ in range(count)]
    # Only once we listen: by then nobody else can have the address.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    host, port = listener.getsockname()[:2]
    return [listener.dup(), *(_listen(host, port, is_shared=True) for _ in range(count - 1))]


def _listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, because asyncio sends small answers at once only on sockets that say so.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    lowest = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if lowest is not None:
        # What a reader has not taken stays with us, as a position, and not in the kernel's buffers,
        # which would swallow megabytes for each one that stopped reading.
        listener.setsockopt(socket.IPPROTO_TCP, lowest, _UNSENT_BYTES)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{host}:{port}: {error.strerror}; --listen {host}:0 takes a free port"
        ) from None
    return listener
