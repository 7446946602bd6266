"""Any ASGI app on a socket, by the protocol of our own server: receivers of pushes, scripted
agents. It lets every caller in, and the app's lifespan is not its business."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dragoman.config import HttpSettings, Settings
from dragoman.http.connections import Connections
from dragoman.http.grpc.front import GrpcFront
from dragoman.http.protocol import AsgiApp, protocol

_LARGEST_BODY = 1024 * 1024 * 1024
# Seconds that open requests have at the end.
_DRAIN = 1.0


@asynccontextmanager
async def serving_socket(
    app: AsgiApp,
    listener: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    grpc: GrpcFront | None = None,
) -> AsyncGenerator[None]:
    """Serve an app for as long as the block lasts."""
    http = HttpSettings(max_body_bytes=_LARGEST_BODY, max_connections_per_address=0)
    connections = Connections(Settings(http=http))
    connections.grpc = grpc
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol(app, connections), sock=listener, ssl=tls)
    try:
        yield
    finally:
        server.close()
        await connections.close(_DRAIN)
