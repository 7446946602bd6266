"""One row per endpoint: where it is, who may ask, what it takes and what it gives.

A row checks what callers send by the same types from which the document describes it.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from dragoman.errors import InvalidParams
from dragoman.gateway.api.envelope import Code
from dragoman.model.identity import Caller, Principal
from dragoman.security.key_scopes import EVERYTHING
from dragoman.server.request import Request
from dragoman.server.routes import Access
from dragoman.server.streams import OpenStreams

if TYPE_CHECKING:
    # Its app imports this.
    from dragoman.gateway.gateway import Gateway

Verb = Literal["GET", "POST", "PATCH", "DELETE"]
_MAX_PARAMETERS = 50
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}", re.ASCII)
_PLACE = re.compile(r" - at `\$\.?(?P<field>[^`]*)`\Z")


class Ask(msgspec.Struct, frozen=True):
    """One request, found in the table and checked."""

    gateway: "Gateway"
    streams: OpenStreams
    request: Request
    # What stands in the path, by name.
    path: dict[str, str]
    # Of the types that the row names; None where it names none.
    query: Any = None
    body: Any = None

    @property
    def caller(self) -> Caller:
        """Whom it speaks for."""
        return self.request.caller

    @property
    def principal(self) -> Principal:
        """Whose account, agents and tasks it is about."""
        return self.request.caller.principal


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    verb: Verb
    # With names in braces for what callers put in.
    path: str
    # As generated clients call it.
    name: str
    summary: str
    answer: Callable[[Ask], Awaitable[Any]]
    access: Access = Access.CALLER
    # What the key of an agent has to be for: where a row does not say, for everything.
    scope: str = EVERYTHING
    status: int = 200
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    # Whether a request without a body means one with nothing in it.
    is_body_optional: bool = False
    # Whether the body is for the answer to read, byte by byte.
    is_raw: bool = False
    # What `data` is; None: there is no content.
    reply: Any = None
    # Whether the reply stands alone, without the envelope.
    is_bare: bool = False
    # Whether the answer writes its own response: events.
    streams: bool = False
    # Whether the same may be asked again under an `Idempotency-Key`.
    is_keyed: bool = False
    # Whether it is there only where a payment provider is set up.
    needs_provider: bool = False
    # What can go wrong beyond what can always go wrong.
    errors: tuple[Code, ...] = ()


class Found(NamedTuple):
    """An endpoint, and what its path says."""

    endpoint: Endpoint
    path: dict[str, str]


class NotAllowed(NamedTuple):
    """There is such a path, for other verbs."""

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
            # A word comes before a name that stands for any word.
            rows.sort(key=lambda row: [step.startswith("{") for step in row[0]])

    def find(self, verb: str, path: str) -> Found | NotAllowed | None:
        """Return the endpoint of a request; None: there is no such path."""
        steps = path.split("/")
        others: list[Endpoint] = []
        for template, endpoint in self._by_length.get(len(steps), ()):
            values = _match(template, steps)
            if values is None:
                continue
            if endpoint.verb == verb:
                return Found(endpoint, values)
            others.append(endpoint)
        if not others:
            return None
        first = others[0].path
        allow = sorted(endpoint.verb for endpoint in others if endpoint.path == first)
        return NotAllowed(", ".join(allow), first)


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
        # What is no number stays a text, which the type refuses.
        if _WHOLE.fullmatch(given[name]):
            given[name] = int(given[name])
        elif _DECIMAL.fullmatch(given[name]):
            given[name] = float(given[name])
    return checked(kind, given)


def checked(kind: Any, value: Any) -> Any:
    """Return a value in the type a row names; raises `InvalidParams`, which says what to mend."""
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
