"""One row per endpoint: its path, the access it needs, what it takes and what it returns.

A row checks requests by the same types from which the OpenAPI document describes them.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from dragoman.gateway.api.envelope import Code
from dragoman.gateway.gateway import Gateway
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access
from dragoman.model.identity import Caller, Principal
from dragoman.security.keys.key_scopes import EVERYTHING
from dragoman.server.endpoint_paths import PathTable

Verb = Literal["GET", "POST", "PATCH", "DELETE"]


class Ask(msgspec.Struct, frozen=True):
    """One request, found in the table and checked."""

    gateway: Gateway
    streams: OpenStreams
    request: HttpRequest
    # The values in the path, by name.
    path: dict[str, str]
    # Of the types that the row names; None where it names none.
    query: Any = None
    body: Any = None

    @property
    def caller(self) -> Caller:
        """The caller of the request."""
        return self.request.caller

    @property
    def principal(self) -> Principal:
        """The owner of the account, agents and tasks it is about."""
        return self.request.caller.principal


Answer = TypeVar("Answer", bound=Callable[[Ask], Awaitable[Any]])


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    verb: Verb
    # With names in braces for values.
    path: str
    # The name in generated clients.
    name: str
    summary: str
    answer: Callable[[Ask], Awaitable[Any]]
    access: Access = Access.CALLER
    # The scope that the key of an agent needs; by default the one for everything.
    scope: str = EVERYTHING
    status: int = 200
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    # Whether a request may have no body, which means an empty one.
    is_body_optional: bool = False
    # Whether the answer gets the bytes of the body.
    is_raw: bool = False
    # The type of `data`; None: there is no content.
    reply: Any = None
    # Whether the reply has no envelope.
    is_bare: bool = False
    # Whether the answer writes the response itself, as events.
    streams: bool = False
    # Whether a request may be repeated under an `Idempotency-Key`.
    is_keyed: bool = False
    # Whether it exists only with a payment provider.
    needs_provider: bool = False
    # Errors beyond those of every endpoint.
    errors: tuple[Code, ...] = ()


class EndpointTable:
    """The rows of one module; a decorator adds one for the function that answers."""

    def __init__(self) -> None:
        self.rows: list[Endpoint] = []

    def add(
        self, verb: Verb, path: str, *, name: str = "", summary: str = "", **fields: Any
    ) -> Callable[[Answer], Answer]:
        """Add an endpoint. Its name is that of the function, its summary the docstring, and its
        reply the type that the function returns, unless they are given."""

        def decorate(answer: Answer) -> Answer:
            returned = get_type_hints(answer)["return"]
            row = Endpoint(
                verb=verb,
                path=path,
                name=name or answer.__name__,
                summary=summary or (answer.__doc__ or "").rstrip("."),
                answer=answer,
                reply=None if returned is type(None) else returned,
                **fields,
            )
            self.rows.append(row)
            return answer

        return decorate


Table = PathTable[Endpoint]
