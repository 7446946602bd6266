"""REST paths, queries and bodies to operations, and operations to them for peers."""

import functools
import re
from collections.abc import Set
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import BY_V1_METHOD, ROWS, OperationRow, row_of
from dragoman.dialects.reading import Object
from dragoman.errors import InvalidParams
from dragoman.model.operations import Operation

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
        "console",
        "lf.a2a.v1.A2AService",
        "a2a.v1.A2AService",
        "admin",
        "metrics",
        "healthz",
        "readyz",
    }
)
_BOOLEANS = {"true": True, "false": False}
_MARKS = {"{id}": "task_id", "{config}": "config_id"}
_IN_PATH_0_3 = ("name", "parent", "id", "pushNotificationConfigId")
_QUERY_BOOLEANS = ("includeArtifacts", "include_artifacts")


# Stands for a slash within a segment until the segments are told apart.
_SLASH = "\ue02f"


class RestRoute(msgspec.Struct, frozen=True):
    """An operation found by its path."""

    method: str
    params: dict[str, str]


class VerbNotAllowed(msgspec.Struct, frozen=True):
    """The path is known, but not with this verb."""

    allow: str


class Outgoing(msgspec.Struct, frozen=True):
    """A request to make of a peer."""

    verb: str
    # Percent-encoded, with the query; to be put after the address of the peer's interface.
    path: str
    body: Object | None


def _pattern(path: str) -> re.Pattern[str]:
    escaped = re.escape(path).replace(r"\{id\}", "(?P<id>[^/]+)")
    if path.startswith("/v1/"):
        # Protos before 0.3, and one line of 0.3's, spell these two differently.
        escaped = re.sub("^/v1/tasks(?=.*/push)", "/v1/tasks?", escaped)
        escaped = escaped.replace("/pushNotificationConfigs", "/pushNotification(?:Config)?s")
    return re.compile(escaped.replace(r"\{config\}", "(?P<config>[^/]+)") + r"\Z")


# Made with the first request.
@functools.cache
def _routes(version: str) -> list[tuple[re.Pattern[str], OperationRow]]:
    # Actions first: `/tasks/{id}` would swallow `:cancel`, and ids may contain colons.
    return sorted(
        ((_pattern(row.path_of(version)), row) for row in ROWS),
        key=lambda route: ":" not in route[1].path,
    )


def decode_path(raw: bytes) -> str:
    """Return a path decoded, in which an encoded slash is part of an id and does not end it."""
    return unquote(re.sub("%2[Ff]", _SLASH, raw.decode("latin-1")))


def segment(text: str) -> str:
    """Return one segment of a decoded path as its sender wrote it."""
    return text.replace(_SLASH, "/")


def find(
    verb: str, path: str, *, reserved: Set[str] = RESERVED
) -> RestRoute | VerbNotAllowed | None:
    """Return the operation a path of 1.0 names, at the root or under a tenant."""
    found = _match(verb, path, _routes("1.0"))
    if found is not None:
        return found
    tenant, slash, rest = path[1:].partition("/")
    if not slash or not tenant or tenant in reserved:
        return None
    below = _match(verb, "/" + rest, _routes("1.0"))
    if isinstance(below, RestRoute):
        return RestRoute(below.method, below.params | {"tenant": tenant.replace(_SLASH, "/")})
    return below


def find_0_3(verb: str, path: str) -> RestRoute | VerbNotAllowed | None:
    """Return the operation a path of 0.3 names, by its name in 1.0."""
    return _match(verb, path, _routes("0.3"))


def template(route: RestRoute, version: str) -> str:
    """Return an operation's path without what callers put into it."""
    path = BY_V1_METHOD[route.method].path_of(version)
    return f"/{{tenant}}{path}" if "tenant" in route.params else path


def _match(
    verb: str, path: str, routes: list[tuple[re.Pattern[str], OperationRow]]
) -> RestRoute | VerbNotAllowed | None:
    allowed: list[str] = []
    for pattern, row in routes:
        found = pattern.match(path)
        if found is None:
            continue
        if verb in row.verbs:
            return RestRoute(
                row.v1, _path_params(found.groupdict(), "/pushNotification" in row.path)
            )
        allowed.extend(row.verbs)
        if ":" in row.path:
            # An action with another verb is not a task whose id ends like one.
            break
    return VerbNotAllowed(", ".join(dict.fromkeys(allowed))) if allowed else None


def _path_params(groups: dict[str, str], is_push: bool) -> dict[str, str]:
    groups = {name: value.replace(_SLASH, "/") for name, value in groups.items()}
    if not is_push:
        return groups
    named = {"taskId": groups["id"]}
    return named | {"id": groups["config"]} if "config" in groups else named


def params(route: RestRoute, query: bytes, body: Any) -> dict[str, Any]:
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


def request(dialect: Dialect, operation: Operation) -> Outgoing:
    """Return how to ask a peer for an operation; its tenant is in the path."""
    row = row_of(operation)
    _, values = dialect.encode_request(operation)
    path = row.path_of(dialect.version)
    for mark, name in _MARKS.items():
        if mark in path:
            path = path.replace(mark, _segment(getattr(operation, name)))
    if tenant := values.pop("tenant", ""):
        path = f"/{_segment(tenant)}{path}"
    # Where either will do, official servers of 1.0 have POST and those of 0.3 only GET.
    is_new = dialect.version == "1.0"
    verb = row.verbs[-1 if is_new else 0]
    for name in _in_path(row) if is_new else () if verb == "POST" else _IN_PATH_0_3:
        values.pop(name, None)
    if verb == "POST":
        return Outgoing(verb, path, None if operation.streams and not values else values)
    query = urlencode({name: _query_text(value) for name, value in values.items()}, quote_via=quote)
    return Outgoing(verb, f"{path}?{query}" if query else path, None)


def _in_path(row: OperationRow) -> tuple[str, ...]:
    """Return the parameters of 1.0 that the path has. What a configuration is created under is
    not among them."""
    if "{config}" in row.path:
        return "taskId", "id"
    if "/pushNotification" in row.path:
        return ("taskId",)
    return ("id",) if "{id}" in row.path else ()


def _segment(value: str) -> str:
    """Return an id as one segment of a path; one of dots would be taken for a step upwards."""
    return value.replace(".", "%2E") if value in (".", "..") else quote(value, safe="")


def _query_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def method(route: RestRoute, dialect: Dialect) -> str:
    """Return what a dialect calls the operation of a path."""
    return BY_V1_METHOD[route.method].method(dialect.version)


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
