"""gRPC in this process: whether it is served, and what the first connection starts."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.http.admission import Admission
from dragoman.http.grpc.front import GrpcFront, RpcServer
from dragoman.model.card import GRPC
from dragoman.server.app import App

if TYPE_CHECKING:
    from dragoman.http.grpc.exchange import App as Asgi

# What the extra brings.
_PACKAGES = ("grpc", "hpack", "google.protobuf", "grpc_health", "grpc_reflection")
# What answers rpcs: loading it loads protobuf.
_SERVER = "dragoman.http.grpc.server"


def serves_grpc(settings: Settings) -> bool:
    """Tell whether gRPC is served; raises `ConfigError` where it was asked for and cannot be."""
    if GRPC not in settings.bindings():
        if settings.http.grpc_listen:
            raise ConfigError("grpc_listen: gRPC is not among the bindings that are served")
        return False
    if is_installed():
        return True
    if settings.http.grpc_listen or settings.dialects.transport:
        raise ConfigError(
            "gRPC is not installed: pip install 'dragoman[grpc]'",
            remedy="pip install 'dragoman[grpc]'",
        )
    return False


def grpc_of(app: App) -> GrpcFront | None:
    """Return what takes connections of HTTP/2; None: gRPC is not served."""
    settings = app.settings
    if not serves_grpc(settings):
        return None
    wish = settings.dialects.grpc_reflection
    reflects = wish == "on" or (wish == "auto" and app.site.gatekeeper is None)

    async def load() -> RpcServer:
        return await load_server(
            app, settings, app.access.admission, app.site.is_ready, reflects=reflects
        )

    return GrpcFront(load)


async def load_server(
    app: "Asgi",
    settings: Settings,
    admission: Admission | None,
    is_ready: Callable[[], Awaitable[bool]],
    *,
    reflects: bool,
) -> RpcServer:
    """Return what answers rpcs by an app."""
    # Not on the loop: it takes a while, once.
    server = await asyncio.to_thread(importlib.import_module, _SERVER)
    return server.A2ARpcServer(app, settings, admission, is_ready, reflects=reflects)


def is_installed() -> bool:
    """Tell whether the extra is there."""
    try:
        return all(find_spec(name) is not None for name in _PACKAGES)
    except ModuleNotFoundError:
        # The parent of one of them is missing.
        return False
