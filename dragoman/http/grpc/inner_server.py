"""The gRPC server behind the pipes: grpcio in our own event loop, on a socket of this process.

It frames, counts and cancels; who may ask and what is answered is decided by the app, as for any
other request. Importing this module loads grpcio and protobuf: tens of milliseconds and megabytes
that only those pay who use it.
"""

import logging
from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dragoman.config import Settings
from dragoman.dialects.errors import Table
from dragoman.errors import MethodNotFound, Overloaded
from dragoman.http.admission import Admission
from dragoman.http.deadlines import HANDSHAKE_SECONDS, IDLE_SECONDS
from dragoman.http.grpc.exchange import App, RpcExchange, RpcOutcome
from dragoman.http.grpc.pipes import InnerServer, Pipe, Pipes
from dragoman.http.request import MAX_HEADER_BYTES
from dragoman.transports.grpc import statuses, tables
from dragoman.transports.grpc.classes import POOL
from dragoman.transports.grpc.codec import V0, V1, CalledRpc, find
from dragoman.transports.grpc.routing import addressed

logger = logging.getLogger("dragoman")


def _is_ours_to_tell(record: logging.LogRecord) -> bool:
    """Leave out what any caller can have written as often as it likes: that a header is no text."""
    return not str(record.msg).startswith("Invalid encoding")


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours_to_tell)

# Rpcs of one connection that are open at once. It also bounds what resetting them quickly costs.
MOST_RPCS = 100
# Seconds of silence after which a connection is asked whether its caller is there, and those that
# the answer may take.
_ASK_AFTER, _ANSWER_WITHIN = 60, 20
# Callers may ask us as often as this.
_PING_EVERY = 10


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_concurrent_streams", MOST_RPCS),
        ("grpc.max_receive_message_length", settings.http.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_HEADER_BYTES // 2),
        ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        ("grpc.keepalive_time_ms", _ASK_AFTER * 1000),
        ("grpc.keepalive_timeout_ms", _ANSWER_WITHIN * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY * 1000),
        # Plain alone: a small request must not become a large one.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.so_reuseport", 0),
    ]


async def start(
    app: App,
    settings: Settings,
    admission: Admission | None,
    pipes: Pipes,
    path: str,
    *,
    reflects: bool,
) -> InnerServer:
    """Serve rpcs on a socket; `reflects` says whether callers may ask what there is."""
    services = _services(settings)
    server = grpc.aio.server(options=_options(settings))
    server.add_generic_rpc_handlers((_Rpcs(app, settings, admission, pipes, services),))
    # The type of the package's aio half is not known to type checkers.
    checks: Any = vars(health)["aio"].HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)  # pyright: ignore[reportUnknownMemberType] - generated
    for name in ("", *services):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    if reflects:
        names = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server, POOL)
    if not server.add_insecure_port(f"unix:{path}"):
        raise OSError(f"gRPC cannot listen at {path}")
    await server.start()
    return _Running(server, checks)


class _Running(InnerServer):
    def __init__(self, server: grpc.aio.Server, checks: Any) -> None:
        self._server = server
        self._checks = checks

    async def stop(self, grace: float) -> None:
        await self._checks.enter_graceful_shutdown()
        await self._server.stop(grace)


class _Rpcs(grpc.GenericRpcHandler):
    """Finds what answers a path, at the root or below that of an agent."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        admission: Admission | None,
        pipes: Pipes,
        services: Sequence[str],
    ) -> None:
        self._app = app
        self._table: Table = settings.dialects.error_table
        self._admission = admission
        self._pipes = pipes
        self._services = services
        paths = [
            f"/{version.schema.service}/{name}"
            for version in (V1, V0)
            for name in version.schema.rpcs
        ]
        self._handlers = {path: self._handler(path, path) for path in paths}

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of an rpc; None: it is not ours."""
        path: str = handler_call_details.method
        if path in self._handlers:
            return self._handlers[path]
        # What comes before a service is the path of an agent, as with any other binding. These
        # handlers are not kept: callers may make up as many paths as they like.
        prefix, service, name = ["", "", *path.rsplit("/", 2)][-3:]
        return self._handler(path, f"/{service}/{name}", is_below=True) if prefix else None

    def _handler(self, path: str, named: str, *, is_below: bool = False) -> Any:
        try:
            called = find(named)
        except MethodNotFound:
            return None
        if called.codec.schema.service not in self._services:
            return None

        async def answer(request: bytes, context: Any) -> bytes:
            return await self._answer(path, called, request, context, is_below)

        if called.rpc.operation.streams:
            return cast("Any", grpc).unary_stream_rpc_method_handler(answer)
        return cast("Any", grpc).unary_unary_rpc_method_handler(answer)

    async def _answer(
        self, path: str, called: CalledRpc, request: bytes, context: Any, is_below: bool
    ) -> bytes:
        pipe = self._pipes.find(context.peer())
        if pipe is None:
            # A process of this user that found the socket: it is not a caller.
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Connect to the server's port")
            raise AssertionError("abort raises")
        if not is_below:
            path = addressed(called, request) + path
        exchange = RpcExchange(
            path, context.invocation_metadata() or (), request, pipe.origin, context
        )
        outcome = await self._run(exchange, pipe)
        if outcome.error is not None:
            await self._abort(called, outcome, context)
        if outcome.metadata:
            context.set_trailing_metadata(tuple(outcome.metadata))
        return outcome.message

    async def _run(self, exchange: RpcExchange, pipe: Pipe) -> RpcOutcome:
        pipe.open_rpcs += 1
        try:
            return await exchange.run(self._app)
        finally:
            pipe.open_rpcs -= 1
            ticket = exchange.scope["state"].pop("ticket", None)
            if ticket is not None and self._admission is not None:
                self._admission.end(ticket)

    async def _abort(self, called: CalledRpc, outcome: RpcOutcome, context: Any) -> None:
        error = outcome.error
        assert error is not None
        name, message, details = statuses.encode(error, called.codec.dialect.version, self._table)
        if type(error) is Overloaded and "retryAfter" in error.facts:
            # We refused it, and have not lost it: callers must not come back at once.
            name = "RESOURCE_EXHAUSTED"
        trailers: list[tuple[str, str | bytes]] = [*outcome.metadata, (statuses.DETAILS, details)]
        await context.abort(grpc.StatusCode[name], message, tuple(trailers))


def _services(settings: Settings) -> list[str]:
    """Return the services of the versions that are served."""
    versions = settings.versions()
    found = [tables.V1_0.service] if "1.0" in versions else []
    return [*found, tables.V0_3.service] if "0.3" in versions else found
