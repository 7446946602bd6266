"""One row per endpoint: its path, the access it needs, what it takes and what it returns.

A row checks requests by the same types from which the OpenAPI document describes them.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from dragoman.errors import InvalidParams
from dragoman.gateway.api.envelope import Code
from dragoman.gateway.gateway import Gateway
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access
from dragoman.model.identity import Caller, Principal
from dragoman.security.keys.key_scopes import EVERYTHING

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
_MAX_PARAMETERS = 50
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}", re.ASCII)
_PLACE = re.compile(r" - at `\$\.?(?P<field>[^`]*)`\Z")


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


class FoundEndpoint(NamedTuple):
    """An endpoint, and the values in its path."""

    endpoint: Endpoint
    path: dict[str, str]


class MethodNotAllowed(NamedTuple):
    """The path exists, for other verbs."""

    allow: str
    template: str


class Table:
    """All endpoints."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self._by_length: dict[int, list[tuple[list[str], Endpoint]]] = {}
        for endpoint in endpoints:
            steps = endpoint.path.split("/")
            self._by_length.setdefault(len(steps), []).append((steps, endpoint))
        for rows in self._by_length.values():
            # A literal step comes before one that matches anything.
            rows.sort(key=lambda row: [step.startswith("{") for step in row[0]])

    def find(self, verb: str, path: str) -> FoundEndpoint | MethodNotAllowed | None:
        """Return the endpoint of a request; None: there is no such path."""
        steps = path.split("/")
        others: list[Endpoint] = []
        for template, endpoint in self._by_length.get(len(steps), ()):
            values = _match(template, steps)
            if values is None:
                continue
            if endpoint.verb == verb:
                return FoundEndpoint(endpoint, values)
            others.append(endpoint)
        if not others:
            return None
        first = others[0].path
        allow = sorted(endpoint.verb for endpoint in others if endpoint.path == first)
        return MethodNotAllowed(", ".join(allow), first)


def _match(template: list[str], steps: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for expected, step in zip(template, steps, strict=True):
        if expected.startswith("{"):
            if not step:
                return None
            values[expected[1:-1]] = step
        elif expected != step:
            return None
    return values


def read_query(kind: type[msgspec.Struct], text: bytes) -> Any:
    """Return the parameters of a query; raises `InvalidParams`."""
    try:
        pairs = parse_qsl(
            text.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        raise InvalidParams("there are too many parameters", field="query") from None
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in given:
            raise InvalidParams("is given twice; give it once", field=name)
        given[name] = value
    for name in _numbers(kind) & given.keys():
        # A value that is not a number stays a text, which the type refuses.
        if _WHOLE.fullmatch(given[name]):
            given[name] = int(given[name])
        elif _DECIMAL.fullmatch(given[name]):
            given[name] = float(given[name])
    return checked(kind, given)


def checked(kind: Any, value: Any) -> Any:
    """Return a value as the type of a row; raises `InvalidParams` with the field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        if place is None:
            raise InvalidParams(text) from None
        raise InvalidParams(text[: place.start()], field=place["field"]) from None


_known: dict[type[msgspec.Struct], frozenset[str]] = {}


def _numbers(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a query that are numbers: the rest is text."""
    if kind not in _known:
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType), "queries are structs"
        _known[kind] = frozenset(
            field.encode_name for field in info.fields if _is_number(field.type)
        )
    return _known[kind]


def _is_number(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_is_number(one) for one in kind.types)
    return isinstance(kind, inspect.IntType | inspect.FloatType)
