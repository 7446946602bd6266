"""Joins the endpoints of all bindings, and says at which paths they answer."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from dragoman.config import Settings
from dragoman.dialects import house_paths, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access, Routes
from dragoman.model.card import GRPC, JSONRPC
from dragoman.security.audit.log import Audit
from dragoman.server.discovery import Discovery
from dragoman.server.endpoints.jsonrpc_endpoint import JsonRpcEndpoint
from dragoman.server.endpoints.responder import Responder
from dragoman.transports.grpc.hosts import SERVICES
from dragoman.transports.jsonrpc import Envelope

if TYPE_CHECKING:
    # Loads protobuf: with the first rpc.
    from dragoman.http.grpc.exchange import RpcExchange
    from dragoman.server.endpoints.grpc_endpoint import GrpcEndpoint
    from dragoman.server.endpoints.houses import Houses
    from dragoman.server.endpoints.rest_endpoint import RestEndpoint

_RPC_PATHS = ("", "/", "/rpc", "/rpc/", "/a2a", "/a2a/")


class Endpoints:
    """The operations of the protocol, over JSON-RPC, REST and gRPC."""

    def __init__(
        self, settings: Settings, discovery: Discovery, streams: OpenStreams, audit: Audit
    ) -> None:
        self._settings = settings
        self.responder = Responder(settings, discovery, streams, audit)
        # Loaded with the first rpc.
        self._rpc_of: Callable[[HttpRequest], RpcExchange | None] | None = None
        self._grpc: GrpcEndpoint | None = None

    def add_to(self, routes: Routes) -> None:
        """Serve JSON-RPC, gRPC and the paths of houses; REST answers every other path."""
        shared = JsonRpcEndpoint(self.responder, self._choose)
        served, paths = self._settings.houses(), list[str]()
        if JSONRPC in self._settings.bindings():
            for path in _RPC_PATHS:
                routes.add(path, shared.answer, Access.CALLER, BY_REQUEST)
            paths += [house_paths.NEXUS] if "nexus" in served else []
            paths += [house_paths.R] if "r" in served else []
        if "corvid" in served:
            paths += [house_paths.CORVID_SEND, f"{house_paths.CORVID_TASK}*"]
        for path in paths:
            routes.add(path, partial(self._answer_house, path), Access.CALLER, BY_REQUEST)
        if GRPC in self._settings.bindings():
            for service in SERVICES:
                routes.add(f"/{service}/*", self._answer_rpc, Access.CALLER, BY_REQUEST)

    @cached_property
    def _houses(self) -> "Houses":
        from dragoman.server.endpoints.houses import Houses

        return Houses(self._settings, self.responder, self.answer_rest)

    @cached_property
    def _rest(self) -> "RestEndpoint":
        from dragoman.server.endpoints.rest_endpoint import RestEndpoint

        return RestEndpoint(self.responder, self._over_rest)

    async def answer_rest(self, request: HttpRequest) -> None:
        """Answer a REST request, also one that leads nowhere."""
        await self._rest.answer(request)

    async def _answer_house(self, path: str, request: HttpRequest) -> None:
        await self._houses.answers[path](request)

    def _choose(self, request: HttpRequest, envelope: Envelope, first: str) -> Dialect:
        """Return the dialect of a JSON-RPC call to a path of all dialects. One of 1.0 is no
        house's."""
        header, query = request.version
        is_old = "/" in envelope.method
        if header or query:
            is_old = negotiate.error_version(header, query, envelope.method) != "1.0"
        choose = self._houses.choose if is_old else self.responder.official
        return choose(request, envelope, first)

    def _over_rest(self, dialect: Dialect, method: str) -> Dialect:
        return self._houses.over_rest(dialect, method)

    async def _answer_rpc(self, request: HttpRequest) -> None:
        """Answer an rpc; what has only its path is a request like others."""
        if self._rpc_of is None:
            from dragoman.http.grpc.exchange import rpc_of

            self._rpc_of = rpc_of
        exchange = self._rpc_of(request)
        if exchange is None:
            await self.answer_rest(request)
            return
        if self._grpc is None:
            from dragoman.server.endpoints.grpc_endpoint import GrpcEndpoint

            self._grpc = GrpcEndpoint(self.responder)
        await self._grpc.answer(request, exchange)
