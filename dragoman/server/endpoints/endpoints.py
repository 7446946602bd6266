"""Joins the endpoints of all bindings, and says at which paths they answer."""

from typing import TYPE_CHECKING

from dragoman.config import Settings
from dragoman.http.grpc.exchange import rpc_of
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access, Routes
from dragoman.model.card import GRPC, JSONRPC
from dragoman.security.audit.log import Audit
from dragoman.server.discovery import Discovery
from dragoman.server.endpoints.houses import Houses
from dragoman.server.endpoints.jsonrpc_endpoint import JsonRpcEndpoint
from dragoman.server.endpoints.responder import Responder
from dragoman.server.endpoints.rest_endpoint import RestEndpoint
from dragoman.transports.grpc import tables

if TYPE_CHECKING:
    # Loads protobuf: with the first rpc.
    from dragoman.server.endpoints.grpc_endpoint import GrpcEndpoint

_RPC_PATHS = ("", "/", "/rpc", "/rpc/", "/a2a", "/a2a/")


class Endpoints:
    """The operations of the protocol, over JSON-RPC, REST and gRPC."""

    def __init__(
        self, settings: Settings, discovery: Discovery, streams: OpenStreams, audit: Audit
    ) -> None:
        self._settings = settings
        self._houses = Houses(settings)
        self.responder = Responder(settings, discovery, streams, audit)
        self.answer_rest = RestEndpoint(self.responder, self._houses.over_rest).answer
        self._grpc: GrpcEndpoint | None = None

    def add_to(self, routes: Routes) -> None:
        """Serve JSON-RPC, gRPC and the paths of houses; REST answers every other path."""
        choose = self._houses.on_shared_paths(self.responder.official)
        shared = JsonRpcEndpoint(self.responder, choose)
        if JSONRPC in self._settings.bindings():
            for path in _RPC_PATHS:
                routes.add(path, shared.answer, Access.CALLER, BY_REQUEST)
        if GRPC in self._settings.bindings():
            for schema in (tables.V1_0, tables.V0_3):
                routes.add(f"/{schema.service}/*", self._answer_rpc, Access.CALLER, BY_REQUEST)
        self._houses.add_to(routes, self.responder, self.answer_rest)

    async def _answer_rpc(self, request: HttpRequest) -> None:
        """Answer an rpc; what has only its path is a request like others."""
        exchange = rpc_of(request)
        if exchange is None:
            await self.answer_rest(request)
            return
        if self._grpc is None:
            from dragoman.server.endpoints.grpc_endpoint import GrpcEndpoint

            self._grpc = GrpcEndpoint(self.responder)
        await self._grpc.answer(request, exchange)
