"""What answers the rpcs of a process: A2A by the app, as any other request, and the services that
clients of gRPC look for. Importing this module loads protobuf.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from dragoman.config import Settings
from dragoman.dialects.errors import Table
from dragoman.errors import MethodNotFound, Overloaded
from dragoman.http.admission import Admission
from dragoman.http.grpc.exchange import App, RpcExchange, RpcOutcome
from dragoman.http.grpc.front import RpcOrigin, TakenConnection
from dragoman.http.grpc.header_blocks import HeaderBlock
from dragoman.http.grpc.http2 import Http2Connection
from dragoman.http.grpc.rpc import RpcFailure, RpcHandler, ServedRpc, UnreadRequests
from dragoman.http.grpc.services import HealthService, ReflectionService
from dragoman.http.grpc.streams import Http2Stream
from dragoman.http.request import MAX_URL_BYTES
from dragoman.transports.grpc import statuses, tables
from dragoman.transports.grpc.codec import V0, V1, CalledRpc, find
from dragoman.transports.grpc.framing import framed
from dragoman.transports.grpc.hosts import path_at
from dragoman.transports.grpc.routing import addressed


class A2ARpcServer:
    """Answers the rpcs of every connection that it is given."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        admission: Admission | None,
        is_ready: Callable[[], Awaitable[bool]],
        *,
        reflects: bool,
    ) -> None:
        """`reflects` says whether callers may ask what there is."""
        self._app = app
        self._table: Table = settings.dialects.error_table
        self._admission = admission
        self._unread = UnreadRequests(settings.http.max_body_bytes)
        self._domain = settings.cards.grpc_domain
        self._services = _services(settings)
        self._health = HealthService(self._services, is_ready)
        self._handlers = dict(self._health.handlers)
        if reflects:
            self._handlers |= ReflectionService([*self._services, HealthService.SERVICE]).handlers
        for version in (V1, V0):
            for name in version.schema.rpcs:
                path = f"/{version.schema.service}/{name}"
                handler = self._a2a(path, is_below=False)
                if handler is not None:
                    self._handlers[path] = handler

    def serve(
        self,
        connection: TakenConnection,
        origin: RpcOrigin,
        on_lost: Callable[[], None],
        on_fault: Callable[[int], None],
    ) -> Http2Connection:
        """Return what takes a connection, behind its preface."""

        def opened(stream: Http2Stream, block: HeaderBlock) -> ServedRpc:
            return ServedRpc(stream, block, origin, self._find, self._unread)

        return Http2Connection(connection, opened, on_lost, on_fault)

    def stop(self) -> None:
        """Tell clients that watch the health of the server that it takes no more rpcs."""
        self._health.stop()

    def _find(self, path: str) -> RpcHandler | None:
        """Return what answers a path, at the root or below that of an agent; None: nothing does."""
        handler = self._handlers.get(path)
        # What comes before a service is the path of an agent, as with any other binding. These
        # handlers are not kept: callers may make up as many paths as they like.
        if handler is None and path.count("/") > 2:
            return self._a2a(path, is_below=True)
        return handler

    def _a2a(self, path: str, *, is_below: bool) -> RpcHandler | None:
        service, name = path.rsplit("/", 2)[-2:]
        try:
            called = find(f"/{service}/{name}")
        except MethodNotFound:
            return None
        if called.codec.schema.service not in self._services:
            return None
        return RpcHandler(partial(self._answer, called, is_below))

    async def _answer(self, called: CalledRpc, is_below: bool, rpc: ServedRpc) -> None:
        request, head = rpc.request(), rpc.head
        path = head.path
        if not is_below:
            led = path_at(head.authority, self._domain) if self._domain else ""
            path = (led or addressed(called, request)) + path
        if len(path) > MAX_URL_BYTES:
            raise RpcFailure("RESOURCE_EXHAUSTED", "The path is too long")
        exchange = RpcExchange(request, rpc)
        known = head.known_at(path)
        if known is not None:
            answering = known.answer(exchange)
        else:
            if head.is_repeated:
                exchange.keep = partial(head.know, path)
            scope = exchange.scope(path, head.metadata, rpc.origin)
            answering = self._app(scope, exchange.receive, exchange.send)
        try:
            outcome = await exchange.run(answering)
        finally:
            ticket = exchange.state.pop("ticket", None)
            if ticket is not None and self._admission is not None:
                self._admission.end(ticket)
        if outcome.error is not None:
            raise self._failure(called, outcome)
        message = b"" if called.rpc.operation.streams else framed(outcome.message)
        await rpc.finish(message, outcome.metadata)

    def _failure(self, called: CalledRpc, outcome: RpcOutcome) -> RpcFailure:
        error = outcome.error
        assert error is not None
        name, message, details = statuses.encode(error, called.codec.dialect.version, self._table)
        if type(error) is Overloaded and "retryAfter" in error.facts:
            # We refused it, and have not lost it: callers must not come back at once.
            name = "RESOURCE_EXHAUSTED"
        return RpcFailure(name, message, [*outcome.metadata, (statuses.DETAILS, details)])


def _services(settings: Settings) -> Sequence[str]:
    """Return the services of the versions that are served."""
    versions = settings.versions()
    found = [tables.V1_0.service] if "1.0" in versions else []
    return [*found, tables.V0_3.service] if "0.3" in versions else found
