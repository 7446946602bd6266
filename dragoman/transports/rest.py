"""REST paths and queries of 1.0 to methods and parameters."""

import re
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from dragoman.dialects.operations import ROWS
from dragoman.errors import InvalidParams

# First segments that are ours and so cannot be a tenant.
RESERVED = frozenset(
    {
        "v1",
        "tasks",
        "message:send",
        "message:stream",
        "extendedAgentCard",
        ".well-known",
        "a2a",
        "api",
        "rpc",
        "agent",
        "agents",
    }
)
_BOOLEANS = {"true": True, "false": False}
_QUERY_BOOLEANS = ("includeArtifacts", "include_artifacts")


class Route(msgspec.Struct, frozen=True):
    """An operation found by its path."""

    method: str
    params: dict[str, str]


class NotAllowed(msgspec.Struct, frozen=True):
    """The path is known, but not with this verb."""

    allow: str


def _pattern(path: str) -> re.Pattern[str]:
    escaped = re.escape(path).replace(r"\{id\}", "(?P<id>[^/]+)")
    return re.compile(escaped.replace(r"\{config\}", "(?P<config>[^/]+)") + r"\Z")


# Actions first: `/tasks/{id}` would swallow `:cancel`, and ids may contain colons.
_ROUTES = sorted(
    ((_pattern(row.path), row) for row in ROWS), key=lambda route: ":" not in route[1].path
)


def find(verb: str, path: str) -> Route | NotAllowed | None:
    """Return the operation a path names, at the root or under a tenant."""
    found = _match(verb, path)
    if found is not None:
        return found
    tenant, slash, rest = path[1:].partition("/")
    if not slash or not tenant or tenant in RESERVED:
        return None
    below = _match(verb, "/" + rest)
    if isinstance(below, Route):
        return Route(below.method, below.params | {"tenant": tenant})
    return below


def _match(verb: str, path: str) -> Route | NotAllowed | None:
    allowed: list[str] = []
    for pattern, row in _ROUTES:
        found = pattern.match(path)
        if found is None:
            continue
        if verb in row.verbs:
            return Route(row.v1, _named(found.groupdict(), "/pushNotification" in row.path))
        allowed.extend(row.verbs)
        if ":" in row.path:
            # An action with another verb is not a task whose id ends like one.
            break
    return NotAllowed(", ".join(dict.fromkeys(allowed))) if allowed else None


def _named(groups: dict[str, str], is_push: bool) -> dict[str, str]:
    if not is_push:
        return groups
    named = {"taskId": groups["id"]}
    return named | {"id": groups["config"]} if "config" in groups else named


def params(route: Route, query: bytes, body: Any) -> dict[str, Any]:
    """Return an operation's parameters: the body's or the query's, then the path's, which win."""
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise InvalidParams("must be an object")
    values: dict[str, Any] = _query(query) | body
    tenant = values.get("tenant")
    if "tenant" in route.params and tenant not in (None, "", route.params["tenant"]):
        raise InvalidParams("is not the tenant of the path", field="tenant")
    for name in route.params:
        # The other spelling of a name the path gives must not contradict it as a duplicate.
        values.pop("task_id" if name == "taskId" else name, None)
    return values | route.params


def content(result: bytes) -> bytes:
    """Return the body of an answer: what says nothing is an empty object here, and not null."""
    return b"{}" if result == b"null" else result


def _query(query: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        raise InvalidParams("the query cannot be read") from None
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise InvalidParams("is given twice", field=name)
        # An empty parameter is an unset one, except that flags must say what they mean.
        if name in _QUERY_BOOLEANS:
            values[name] = _BOOLEANS.get(value, value)
        elif value:
            values[name] = value
    return values
