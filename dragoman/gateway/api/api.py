"""Answers requests of the REST API: finds the row, checks the request, wraps the reply."""

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.engine.receivers import refused
from dragoman.errors import (
    A2AError,
    InvalidParams,
    MethodNotFound,
    PermissionDenied,
    RateLimited,
    StoreUnavailable,
    Unauthenticated,
    retry_after,
)
from dragoman.gateway.api import (
    agents,
    billing,
    disputes,
    health,
    keys,
    openapi,
    settlements,
    tasks,
    trust,
    workflows,
)
from dragoman.gateway.api.envelope import ApiRefused, failure
from dragoman.gateway.api.table import Ask, Endpoint, Table
from dragoman.gateway.gateway import Gateway
from dragoman.gateway.registry.search import may_see
from dragoman.gateway.rollouts import endpoints as rollouts
from dragoman.gateway.triggers import endpoints as triggers
from dragoman.http.documents import PRIVATE
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import JSON, Headers, HttpRequest, check_type, read_body, read_value
from dragoman.http.routes import BY_REQUEST, Access, Routes
from dragoman.security.audit.log import DENIED
from dragoman.security.keys.key_scopes import allows
from dragoman.server.endpoint_paths import FoundEndpoint, MethodNotAllowed, checked, read_query
from dragoman.server.endpoints.responder import public_error
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

_PUBLIC_CACHE = (b"cache-control", b"public, max-age=60")
_encode = msgspec.json.Encoder().encode


async def _described(ask: Ask) -> Any:
    return document(sells_credits=ask.gateway.ledger.sells_credits)


TABLE = Table(
    [
        *health.ENDPOINTS,
        Endpoint(
            verb="GET",
            path="/api/v1/openapi.json",
            name="describe",
            summary="Read this document",
            answer=_described,
            access=Access.PUBLIC,
            reply=dict[str, Any],
            is_bare=True,
        ),
        *agents.ENDPOINTS.rows,
        *keys.ENDPOINTS.rows,
        *tasks.ENDPOINTS.rows,
        *trust.ENDPOINTS.rows,
        *disputes.ENDPOINTS.rows,
        *billing.ENDPOINTS.rows,
        *settlements.ENDPOINTS.rows,
        *workflows.ENDPOINTS.rows,
        *triggers.ENDPOINTS.rows,
        *rollouts.ENDPOINTS.rows,
    ]
)


@functools.cache
def table(*, sells_credits: bool) -> Table:
    """Return the endpoints that a gateway serves."""
    return Table([row for row in TABLE.endpoints if sells_credits or not row.needs_provider])


@functools.cache
def document(*, sells_credits: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints that are served."""
    return openapi.document(table(sells_credits=sells_credits), figures.release())


class Api:
    """The REST API of one gateway."""

    def __init__(self, gateway: Gateway, streams: OpenStreams) -> None:
        self._gateway = gateway
        self._streams = streams
        self._settings = gateway.settings
        self._table = table(sells_credits=gateway.ledger.sells_credits)

    def add_to(self, routes: Routes) -> None:
        """Add the routes; a path that is open to others than callers has a route of its own."""
        added: set[str] = set()
        for endpoint in self._table.endpoints:
            is_below = endpoint.path.startswith("/api/v1/")
            if endpoint.path in added or (endpoint.access is Access.CALLER and is_below):
                continue
            added.add(endpoint.path)
            routes.add(endpoint.path, self.answer, endpoint.access, BY_REQUEST)
        routes.add("/api/v1/*", self.answer, Access.CALLER, BY_REQUEST)

    async def answer(self, request: HttpRequest) -> None:
        """Answer one request."""
        request.watched.binding = "api"
        try:
            await self._answer(request)
        except ApiRefused as error:
            await self.refuse(request, error)
        except (Exception, asyncio.CancelledError) as error:
            if request.is_answered:
                raise
            meant = refused(error) if isinstance(error, StoreUnavailable) else error
            await self.refuse(request, public_error(meant, self._streams))

    async def _answer(self, request: HttpRequest) -> None:
        found = self._table.find(request.verb, request.path)
        if found is None:
            raise MethodNotFound("Nothing is served here; see /api/v1/openapi.json")
        if isinstance(found, MethodNotAllowed):
            request.watched.route = found.template
            request.extra = [*request.extra, (b"allow", found.allow.encode())]
            raise ApiRefused("METHOD_NOT_ALLOWED", f"This takes {found.allow}")
        endpoint = found.endpoint
        request.watched.route = endpoint.path
        request.watched.is_for(endpoint.name, "none", "gateway")
        self._check_scope(request, found)
        query = None
        if endpoint.query is not None:
            query = read_query(endpoint.query, request.scope["query_string"])
        body = await self._body(request, endpoint)
        ask = Ask(self._gateway, self._streams, request, found.path, query, body)
        reply = await endpoint.answer(ask)
        if endpoint.streams:
            return
        cached = _PUBLIC_CACHE if endpoint.name == "describe" else PRIVATE
        if endpoint.reply is None:
            await request.respond(endpoint.status, [cached], b"")
            return
        content = _encode(reply if endpoint.is_bare else {"data": reply})
        await _respond(request, endpoint.status, content, [cached])

    def _check_scope(self, request: HttpRequest, found: FoundEndpoint[Endpoint]) -> None:
        """Raise `PermissionDenied` if the key of an agent lacks the scope."""
        endpoint = found.endpoint
        if endpoint.access is not Access.CALLER:
            return
        agent_id = ""
        if endpoint.path.startswith("/api/v1/agents/{id}") and endpoint.scope != "agents:read":
            agent = self._gateway.registry.get(found.path["id"])
            # An agent that the caller may not know of does not exist for it.
            is_known = agent is not None and may_see(agent, request.caller.principal)
            agent_id = agent.id if agent is not None and is_known else ""
        if not allows(request.caller, endpoint.scope, agent_id):
            self._gateway.audit.record(
                "access.denied",
                outcome=DENIED,
                who=request.caller.principal.text,
                object=endpoint.name,
                reason=f"the key of an agent is not for {endpoint.scope}",
                address=request.address,
            )
            raise PermissionDenied("The key is not for this", scope=endpoint.scope)

    async def _body(self, request: HttpRequest, endpoint: Endpoint) -> Any:
        if endpoint.is_raw:
            return await read_body(request, self._settings.http.max_body_bytes)
        if endpoint.body is None:
            return None
        check_type(request)
        content = await read_body(request, self._settings.http.max_body_bytes)
        if not content:
            if endpoint.is_body_optional:
                return endpoint.body()
            raise InvalidParams("there is none; send JSON", field="body")
        value = await read_value(content, self._settings.http.max_json_values)
        return checked(endpoint.body, value)

    async def refuse(self, request: HttpRequest, error: A2AError | ApiRefused) -> None:
        """Answer with an error."""
        request.watched.failed(error)
        status, body = failure(error)
        headers: Headers = [PRIVATE]
        if status in (429, 503):
            headers.append((b"retry-after", b"%d" % retry_after(error)))
        if isinstance(error, RateLimited):
            headers += error.headers
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", request.challenge.encode()))
        await _respond(request, status, _encode(body), headers)


async def _respond(request: HttpRequest, status: int, body: bytes, headers: Sequence[Any]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await request.respond(status, [(b"content-type", JSON), length, *headers], body)
