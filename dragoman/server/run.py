"""Run the app on a port: uvicorn in this process, stopped by us and not by its clients."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn

from dragoman.config import Settings, load
from dragoman.errors import ConfigError
from dragoman.server.agent import Agent
from dragoman.server.app import App

_UNSENT_BYTES = 16 * 1024
# Seconds agent code has to end when everything else has.
_LAST_WORDS = 0.5


class Server(uvicorn.Server):
    """Ends open streams when it is told to stop: their clients would keep it for ever."""

    def __init__(self, config: uvicorn.Config, app: App, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready
        app.on_broken = self._end

    def _end(self) -> None:
        """Stop serving, as a signal would."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then tell."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let readers go before uvicorn waits for them."""
        self._app.end_streams()
        await super().shutdown(sockets)


def run(
    agents: Sequence[Agent],
    *,
    public: bool,
    given: Mapping[str, Any],
    on_ready: Callable[[str, str], None] | None = None,
) -> None:
    """Serve until a signal ends it."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    settings = load(os.environ, **given)
    _check_address(settings.host, public=public)
    if settings.allow_private:
        print(
            "Warning: --allow-private lets callers have us dial addresses of this machine and "
            "its networks. Do not use it where callers are not trusted.",
            file=sys.stderr,
            flush=True,
        )
    app = App(*agents, settings=settings)
    listener = _listen(settings)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    store = settings.store if settings.store == "memory:" else str(settings.store_path())

    def ready() -> None:
        print(f"Ready: {url}", flush=True)
        if on_ready is not None:
            on_ready(url, store)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        # Who asks is not what a header claims; a proxy in front is a matter of configuration.
        proxy_headers=False,
        http="httptools",
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=max(1, int(settings.drain)),
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = Server(config, app, ready)
    # uvicorn raises the signal again once it is done; it is how we are meant to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    # What is alive after start-up stays; look for cycles seldom, since requests make none.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(app, server, listener))
    listener.close()
    code = 0 if server.started and not app.is_broken else 1
    _leave_threads(code)
    sys.exit(code)


async def _serve(app: App, server: Server, listener: socket.socket) -> None:
    # Before uvicorn, which would report bad settings as a failure of its own.
    await app.start()
    await server.serve(sockets=[listener])
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


def _check_address(host: str, *, public: bool) -> None:
    """There is no authentication yet, so an address others reach must be asked for in words."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local and not public:
        raise ConfigError(
            f"{host} is reachable by others and nothing would authenticate them; "
            "listen on 127.0.0.1, or say --public if that is what you want"
        )


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP, because asyncio sends small answers at once only on sockets that say so.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    lowest = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if lowest is not None:
        # What a reader has not taken stays with us, as a position, and not in the kernel's buffers,
        # which would swallow megabytes for each one that stopped reading.
        listener.setsockopt(socket.IPPROTO_TCP, lowest, _UNSENT_BYTES)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        raise ConfigError(
            f"{settings.host}:{settings.port}: {error.strerror}; try --port 0"
        ) from None
    listener.listen(2048)
    return listener
