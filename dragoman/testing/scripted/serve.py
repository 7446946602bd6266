"""Serves a scripted agent on a port: until a signal, within a test, or in a thread."""

import asyncio
import ipaddress
import signal
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dragoman.client.asgi import Lifespan
from dragoman.config import HttpSettings, Settings
from dragoman.egress.errors import EgressFailed
from dragoman.errors import ConfigError
from dragoman.server.process.grpc_serving import is_installed
from dragoman.server.process.json_rpcs import JsonRpcs
from dragoman.server.process.plain_serving import serving_socket
from dragoman.server.process.tls import tls_context
from dragoman.testing.scripted.connection import ADDRESS

App = Callable[[Any, Any, Any], Awaitable[None]]
START_WITHIN = 60.0


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
    tls = _tls(address)
    rpcs = JsonRpcs(shown) if is_installed() else None
    listener = address.listen()
    life = Lifespan(app)
    try:
        try:
            await life.start()
        except EgressFailed as error:
            raise ConfigError(f"the server did not start: {error}") from None
        async with serving_socket(shown, listener, tls=tls, grpc=rpcs.front if rpcs else None):
            try:
                yield address.url(listener)
            finally:
                # Readers of a task that hangs would keep the server open.
                end_streams = getattr(app, "end_streams", None)
                if end_streams is not None:
                    end_streams()
                if rpcs is not None:
                    await rpcs.stop()
    finally:
        await life.stop()
        listener.close()


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


def _tls(address: ListenOptions) -> ssl.SSLContext | None:
    try:
        return tls_context(
            Settings(
                http=HttpSettings(
                    tls_cert=address.tls_cert, tls_key=address.tls_key, client_ca=address.client_ca
                )
            )
        )
    except ConfigError as error:
        raise ConfigError(f"the certificates cannot be used: {error}") from None
