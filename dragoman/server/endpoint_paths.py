"""Endpoints of a JSON API by verb and path, and their parameters, checked by the types from which
the OpenAPI document describes them."""

import re
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from dragoman.errors import InvalidParams

_MAX_PARAMETERS = 50
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}", re.ASCII)
_PLACE = re.compile(r" - at `\$\.?(?P<field>[^`]*)`\Z")


class PathEndpoint(Protocol):
    """A row of a table: what it answers."""

    @property
    def verb(self) -> str:
        """The verb of HTTP."""
        ...

    @property
    def path(self) -> str:
        """The path, with names in braces for values."""
        ...


E = TypeVar("E", bound=PathEndpoint)


class FoundEndpoint(NamedTuple, Generic[E]):
    """An endpoint, and the values in its path."""

    endpoint: E
    path: dict[str, str]


class MethodNotAllowed(NamedTuple):
    """The path exists, for other verbs."""

    allow: str
    template: str


class PathTable(Generic[E]):
    """All endpoints."""

    def __init__(self, endpoints: Sequence[E]) -> None:
        self.endpoints = endpoints
        self._by_length: dict[int, list[tuple[list[str], E]]] = {}
        for endpoint in endpoints:
            steps = endpoint.path.split("/")
            self._by_length.setdefault(len(steps), []).append((steps, endpoint))
        for rows in self._by_length.values():
            # A literal step comes before one that matches anything.
            rows.sort(key=lambda row: [step.startswith("{") for step in row[0]])

    def find(self, verb: str, path: str) -> FoundEndpoint[E] | MethodNotAllowed | None:
        """Return the endpoint of a request; None: there is no such path."""
        steps = path.split("/")
        others: list[E] = []
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
