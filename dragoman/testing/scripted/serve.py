"""Serves a scripted agent on a port: until a signal, within a test, or in a thread.

The server is uvicorn with one addition: requests carry the transport of their connection, so that
the app can cut it before an answer has begun.
"""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.errors import ConfigError
from dragoman.server.process.grpc_serving import is_installed
from dragoman.server.process.json_rpcs import JsonRpcs
from dragoman.testing.scripted.connection import ADDRESS, TRANSPORT, ConnectionCut

App = Callable[[Any, Any, Any], Awaitable[None]]
START_WITHIN = 60.0
_LOG = logging.getLogger("uvicorn.error")


class ListenOptions:
    """Where to listen, and with which certificates."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls_cert: str = "",
        tls_key: str = "",
        client_ca: str = "",
        public_url: str = "",
    ) -> None:
        self.host = host
        self.port = port
        # The public address for the card; empty: the Host header of each request.
        self.public_url = public_url.rstrip("/")
        self.tls_cert = tls_cert
        self.tls_key = tls_key
        self.client_ca = client_ca
        if tls_key and not tls_cert:
            raise ConfigError("a key for TLS needs its certificate: --tls-cert")
        if client_ca and not tls_cert:
            raise ConfigError("certificates of clients are asked for over TLS: --tls-cert")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> socket.socket:
        """Return a listening socket; raises `ConfigError` if there can be none."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # Explicitly TCP: asyncio sets TCP_NODELAY only on such sockets.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise ConfigError(f"{self.host}:{self.port}: {error.strerror}; try port 0") from None
        listener.listen(256)
        return listener

    def url(self, listener: socket.socket) -> str:
        """Return the address of a listening socket."""
        scheme = "https" if self.tls_cert else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{listener.getsockname()[1]}"


class _Quiet(logging.Filter):
    """Removes intended disconnects from the log; errors of an app stay in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record."""
        error = record.exc_info[1] if record.exc_info else None
        is_ours = isinstance(error, ConnectionCut | asyncio.CancelledError)
        is_end = record.getMessage().startswith("Cancel ")
        return record.levelno >= logging.WARNING and not is_ours and not is_end


class _Protocol(HttpToolsProtocol):
    """Passes the transport with each request, and connections of gRPC to what answers them."""

    # None: gRPC is not installed.
    rpcs: JsonRpcs | None = None
    # What has come of a connection that may be gRPC's.
    _opening: bytes | None = b""
    # The type of the base class allows for none.
    transport: asyncio.Transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first ones say what is spoken."""
        if self.rpcs is not None and self._opening is not None:
            data = self._opening + data
            is_grpc = self.rpcs.begins(data)
            self._opening = data if is_grpc is None else None
            if is_grpc:
                is_secure = self.transport.get_extra_info("ssl_object") is not None
                self.rpcs.take(self, data, is_secure=is_secure)
            if is_grpc is not False:
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # The type lists uvicorn's extensions only.
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[typeddict-item]


class _Server(uvicorn.Server):
    """Signals when it serves; does not handle signals of the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End at once, not at the next tick: tests start many servers."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Wait until it is to end."""
        await self._stopping.wait()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then set `is_up`."""
        await super().startup(sockets)
        self.is_up.set()


def _with_address(app: App, url: str) -> App:
    """Return an app whose requests carry its public address."""

    async def addressed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            extensions: dict[str, Any] = scope.get("extensions") or {}
            scope["extensions"] = {**extensions, ADDRESS: url}
        await app(scope, receive, send)

    return addressed


@asynccontextmanager
async def serving(app: App, address: ListenOptions | None = None) -> AsyncGenerator[str]:
    """Serve an app on this loop; the value is its address."""
    address = address or ListenOptions()
    shown = _with_address(app, address.public_url) if address.public_url else app
    rpcs = JsonRpcs(shown) if is_installed() else None
    server = _Server(_config(shown, address, rpcs))
    listener = address.listen()
    running = asyncio.create_task(server.serve([listener]))
    quiet = _Quiet()
    _LOG.addFilter(quiet)
    try:
        up = asyncio.create_task(server.is_up.wait())
        await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED, timeout=START_WITHIN)
        up.cancel()
        if not server.started:
            raise ConfigError("the server did not start")
        yield address.url(listener)
    finally:
        # Readers of a task that hangs would keep the server open.
        end_streams = getattr(app, "end_streams", None)
        if end_streams is not None:
            end_streams()
        if rpcs is not None:
            await rpcs.stop()
        server.stop()
        with contextlib.suppress(SystemExit):
            await running
        listener.close()
        _LOG.removeFilter(quiet)


@contextmanager
def hosted(app: App, address: ListenOptions | None = None) -> Generator[str]:
    """Serve an app in a thread with an event loop; the value is its address."""
    ready = threading.Event()
    found: list[str] = []
    problems: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with serving(app, address) as url:
            found.append(url)
            loops.append((asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            # Raised in the waiting thread.
            problems.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="scripted-agent", daemon=True)
    thread.start()
    ready.wait(START_WITHIN)
    if not found:
        raise problems[0] if problems else ConfigError("the server did not start")
    try:
        yield found[0]
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_WITHIN)


def run(app: App, address: ListenOptions, on_ready: Callable[[str], None]) -> signal.Signals:
    """Serve until SIGINT or SIGTERM; return which it was."""

    async def serve() -> signal.Signals:
        stop = stopped_by_signals()
        async with serving(app, address) as url:
            on_ready(url)
            return await stop

    return asyncio.run(serve())


def stopped_by_signals() -> "asyncio.Future[signal.Signals]":
    """Return the first SIGINT or SIGTERM that comes, instead of ending the process."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[signal.Signals] = loop.create_future()

    def note(number: signal.Signals) -> None:
        if not stop.done():
            stop.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note, number)
    return stop


def _config(app: App, address: ListenOptions, rpcs: JsonRpcs | None) -> uvicorn.Config:
    try:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            http=type("_Protocol", (_Protocol,), {"rpcs": rpcs}),
            loop="asyncio",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=address.tls_cert or None,
            ssl_keyfile=address.tls_key or None,
            ssl_ca_certs=address.client_ca or None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if address.client_ca else ssl.CERT_NONE,
        )
        config.load()
        if rpcs is not None and config.ssl is not None:
            # Who can speak both is answered by HTTP/1.1.
            config.ssl.set_alpn_protocols(["http/1.1", "h2"])
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates cannot be used: {error}") from None
    return config
