"""One row per endpoint of the operator API: its path, who may use it, what it takes and returns."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access
from dragoman.server.endpoint_paths import PathTable
from dragoman.server.operator.addresses import API
from dragoman.server.operator.live import LiveFigures
from dragoman.server.operator.viewing import Viewer
from dragoman.server.site import Site
from dragoman.stores.interface import Store


class OperatorAsk(msgspec.Struct, frozen=True):
    """One request, found in the table and checked."""

    site: Site
    request: HttpRequest
    viewer: Viewer
    live: LiveFigures
    # The values in the path, by name.
    path: dict[str, str]
    # Of the types that the row names; None where it names none.
    query: Any = None
    body: Any = None

    @property
    def store(self) -> Store:
        """The store of all tasks."""
        return self.site.store

    def record_read(self, act: str, object: str = "") -> None:
        """Note in the audit log what the caller looked at, unless that was noted lately."""
        if self.live.is_first_read(self.request.caller.principal.text, act, object):
            self.record(act, object)

    def record(self, act: str, object: str = "", reason: str = "") -> None:
        """Note in the audit log what the caller did."""
        self.site.audit.record(
            act,
            outcome="allowed",
            who=self.request.caller.principal.text,
            object=object,
            reason=reason,
            address=self.request.address,
        )


Answer = TypeVar("Answer", bound=Callable[[OperatorAsk], Awaitable[Any]])


class OperatorEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    verb: Literal["GET", "POST"]
    # With names in braces for values.
    path: str
    # The name in generated clients.
    name: str
    summary: str
    answer: Callable[[OperatorAsk], Awaitable[Any]]
    # Whether it is for operators of the whole server alone.
    is_for_operators: bool = False
    # The scope that the key of an agent needs.
    scope: str = "tasks:read"
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    reply: Any = None
    # Whether the answer writes the response itself, as events.
    streams: bool = False
    # Whether what is asked for may be missing.
    may_be_missing: bool = False
    access: Access = Access.CALLER
    # As every endpoint of this API.
    status: int = 200
    is_body_optional: bool = False
    is_raw: bool = False
    is_bare: bool = True
    is_keyed: bool = False


class OperatorRows:
    """The rows of one module; a decorator adds one for the function that answers."""

    def __init__(self) -> None:
        self.rows: list[OperatorEndpoint] = []

    def add(
        self, verb: Literal["GET", "POST"], path: str, **fields: Any
    ) -> Callable[[Answer], Answer]:
        """Add an endpoint below the prefix. Its name is that of the function, its summary the
        docstring, and its reply the type that the function returns."""

        def decorate(answer: Answer) -> Answer:
            returned = get_type_hints(answer)["return"]
            fields.setdefault("may_be_missing", "{" in path)
            row = OperatorEndpoint(
                verb=verb,
                path=API + path,
                name=answer.__name__,
                summary=(answer.__doc__ or "").partition("\n\n")[0].rstrip("."),
                answer=answer,
                reply=None if returned is type(None) else returned,
                **fields,
            )
            self.rows.append(row)
            return answer

        return decorate


Table = PathTable[OperatorEndpoint]
