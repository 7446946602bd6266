"""Answers requests of the operator API: finds the row, checks the request, encodes the reply."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.dialects import errors
from dragoman.engine.receivers import refused
from dragoman.errors import (
    A2AError,
    InvalidParams,
    MethodNotFound,
    PermissionDenied,
    RateLimited,
    StoreUnavailable,
    retry_after,
)
from dragoman.http.documents import PRIVATE, document, scope_challenge
from dragoman.http.request import JSON, Headers, HttpRequest, check_type, read_body, read_value
from dragoman.http.routes import Access
from dragoman.model.identity import OPERATOR
from dragoman.security.audit.log import DENIED
from dragoman.security.keys.key_scopes import allows
from dragoman.server.endpoint_paths import MethodNotAllowed, checked, read_query
from dragoman.server.endpoints.responder import public_error
from dragoman.server.openapi import ApiDescription, describe
from dragoman.server.operator import (
    audit,
    configuration,
    events,
    inbox_endpoints,
    inspection,
    keys,
    pushes,
    samples,
    system,
)
from dragoman.server.operator.addresses import API
from dragoman.server.operator.live import LiveFigures
from dragoman.server.operator.shapes import Me
from dragoman.server.operator.table import (
    OperatorAsk,
    OperatorEndpoint,
    OperatorRows,
    Table,
)
from dragoman.server.operator.tasks import endpoints as task_endpoints
from dragoman.server.operator.tasks import top_lists, trees
from dragoman.server.operator.viewing import Viewer
from dragoman.server.site import Site
from dragoman.telemetry import figures

_LARGEST_BODY = 1024 * 1024
_encode = msgspec.json.Encoder().encode

OWN = OperatorRows()


@OWN.add("GET", "/me")
async def who_asks(ask: OperatorAsk) -> Me:
    """Say who asks, and what it may see."""
    caller = ask.request.caller
    return Me(
        role=ask.viewer.role,
        owner=caller.owner,
        tenant=caller.tenant or "",
        is_authenticated=caller.authenticated,
        agents=[agent.name for agent in ask.site.agents],
        has_registry="gateway" in ask.site.status(),
        version=figures.release(),
    )


@OWN.add("GET", "/openapi.json", access=Access.PUBLIC)
async def describe_console(ask: OperatorAsk) -> dict[str, Any]:
    """Read this document."""
    return described()


TABLE = Table(
    [
        *OWN.rows,
        *task_endpoints.ENDPOINTS.rows,
        *events.ENDPOINTS.rows,
        *trees.ENDPOINTS.rows,
        *inbox_endpoints.ENDPOINTS.rows,
        *samples.ENDPOINTS.rows,
        *top_lists.ENDPOINTS.rows,
        *system.ENDPOINTS.rows,
        *pushes.ENDPOINTS.rows,
        *audit.ENDPOINTS.rows,
        *configuration.ENDPOINTS.rows,
        *keys.ENDPOINTS.rows,
        *inspection.ENDPOINTS.rows,
    ]
)


class OperatorApi:
    """The operator API of one app."""

    def __init__(self, site: Site, live: LiveFigures) -> None:
        self._site = site
        self.live = live

    async def answer(self, request: HttpRequest) -> None:
        """Answer one request."""
        request.watched.binding = "api"
        try:
            await self._answer(request)
        except (Exception, asyncio.CancelledError) as error:
            if request.is_answered:
                raise
            meant = refused(error) if isinstance(error, StoreUnavailable) else error
            await _refuse(request, public_error(meant, self._site.streams))

    async def _answer(self, request: HttpRequest) -> None:
        found = TABLE.find(request.verb, request.path)
        if found is None:
            raise MethodNotFound(f"Nothing is served here; see {API}/openapi.json")
        if isinstance(found, MethodNotAllowed):
            request.watched.route = found.template
            await request.refuse_verb(found.allow)
            return
        endpoint = found.endpoint
        request.watched.route = endpoint.path
        request.watched.is_for(endpoint.name, "none", "console")
        viewer = Viewer.of(request.caller, is_local=self._site.is_local)
        self._check_access(request, endpoint, viewer)
        query = None
        if endpoint.query is not None:
            query = read_query(endpoint.query, request.scope["query_string"])
        body = await _body(request, endpoint)
        ask = OperatorAsk(self._site, request, viewer, self.live, found.path, query, body)
        reply = await endpoint.answer(ask)
        if not endpoint.streams:
            await _respond(request, 200, _encode(reply), [PRIVATE])

    def _check_access(
        self, request: HttpRequest, endpoint: OperatorEndpoint, viewer: Viewer
    ) -> None:
        if endpoint.access is not Access.CALLER:
            return
        reason = ""
        if endpoint.is_for_operators and not viewer.is_operator:
            reason, scope = "not an operator", OPERATOR
        elif not allows(request.caller, endpoint.scope):
            reason, scope = f"the key of an agent is not for {endpoint.scope}", endpoint.scope
        else:
            return
        self._site.audit.record(
            "access.denied",
            outcome=DENIED,
            who=request.caller.principal.text,
            object=endpoint.name,
            reason=reason,
            address=request.address,
        )
        raise PermissionDenied(scope=scope)


async def _body(request: HttpRequest, endpoint: OperatorEndpoint) -> Any:
    if endpoint.body is None:
        return None
    check_type(request)
    content = await read_body(request, _LARGEST_BODY)
    if not content:
        raise InvalidParams("there is none; send JSON", field="body")
    return checked(endpoint.body, await read_value(content))


async def _refuse(request: HttpRequest, error: A2AError) -> None:
    request.watched.failed(error)
    status, content = errors.rest(error)
    headers: Headers = [PRIVATE, *scope_challenge(request, error)]
    if status in (429, 503):
        headers.append((b"retry-after", b"%d" % retry_after(error)))
    if isinstance(error, RateLimited):
        headers += error.headers
    await document(request, content, *headers, status=status)


async def _respond(request: HttpRequest, status: int, body: bytes, headers: Sequence[Any]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await request.respond(status, [(b"content-type", JSON), length, *headers], body)


# Its description


class OperatorFault(msgspec.Struct, frozen=True):
    """What went wrong, as in the REST binding of A2A."""

    code: Annotated[int, Meta(ge=400, lt=600)]
    status: str
    message: str
    details: list[Any] = []


class OperatorFailure(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    error: OperatorFault


_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["event", "end", "change", "error"]},
        "data": {"type": "string"},
        "id": {"type": "string"},
    },
}


def _errors_of(endpoint: OperatorEndpoint) -> dict[int, list[str]]:
    found = {400: ["INVALID_ARGUMENT"], 429: ["RESOURCE_EXHAUSTED"], 503: ["UNAVAILABLE"]}
    if endpoint.access is Access.CALLER:
        found |= {401: ["UNAUTHENTICATED"], 403: ["PERMISSION_DENIED"]}
    if endpoint.may_be_missing:
        found[404] = ["NOT_FOUND"]
    if endpoint.body is not None:
        found |= {413: ["RESOURCE_EXHAUSTED"], 415: ["INVALID_ARGUMENT"]}
    return found


_API = ApiDescription(
    title="Dragoman operator API",
    about=(
        "What the console draws. Operators see all, the admin of a tenant that tenant, a caller "
        "its own; what a caller may not see does not exist for it. Instants are RFC 3339 in UTC, "
        "positions are numbers of events in a task's log."
    ),
    prefix="v1/console/",
    failure=OperatorFailure,
    errors_of=_errors_of,
    event=_EVENT,
    id_of=lambda path: {"type": "string"},
)


@functools.cache
def described() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return describe(_API, TABLE.endpoints, figures.release())
