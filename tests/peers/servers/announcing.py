"""Runs an ASGI app of a peer until it is told to end, on a port that is free.

The line `Ready: ADDRESS` on standard output says where; SIGTERM or the end of standard input ends
it. Imports nothing but uvicorn: it runs in the environment of whichever peer asks.
"""

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn


class Announcing(uvicorn.Server):
    """Says so when it is ready."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self.address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"Ready: {self.address}", flush=True)


def free_port() -> int:
    """Return a port that is free at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(make_app: Callable[[str], Any]) -> None:
    """Serve what `make_app` makes of the address."""
    # Only of a socket that is said to be TCP does asyncio send small answers at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        make_app(address), log_level="warning", timeout_graceful_shutdown=1, lifespan="on"
    )
    server = Announcing(config, address)

    def end_with_input() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_input, daemon=True).start()
    server.run(sockets=[listening])
