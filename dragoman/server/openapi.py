"""The OpenAPI document of a JSON API, made from its table of endpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dragoman.http.routes import Access
from dragoman.server.endpoint_paths import PathEndpoint

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
# Refused before the request reaches the API, with the server's own body.
_BY_SERVER = (429, 503)
_PROBLEM = {"application/problem+json": {"schema": {"type": "object"}}}
_UNKNOWN = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {"code": {"const": "UNAUTHORIZED"}, "message": {"type": "string"}},
        }
    },
}


class DescribedEndpoint(PathEndpoint, Protocol):
    """A row of a table, as far as the document tells of it."""

    @property
    def name(self) -> str:
        """The name in generated clients."""
        ...

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        ...

    @property
    def access(self) -> Access:
        """To whom it is open."""
        ...

    @property
    def status(self) -> int:
        """Of an answer that is none of the errors."""
        ...

    @property
    def query(self) -> type[msgspec.Struct] | None:
        """The type of its parameters."""
        ...

    @property
    def body(self) -> type[msgspec.Struct] | None:
        """The type of the body that it takes."""
        ...

    @property
    def is_body_optional(self) -> bool:
        """Whether a request may have no body."""
        ...

    @property
    def is_raw(self) -> bool:
        """Whether the body is any bytes."""
        ...

    @property
    def reply(self) -> Any:
        """The type of its answer; None: there is no content."""
        ...

    @property
    def is_bare(self) -> bool:
        """Whether the answer has no envelope."""
        ...

    @property
    def streams(self) -> bool:
        """Whether it answers with events."""
        ...

    @property
    def is_keyed(self) -> bool:
        """Whether a request may be repeated under a key."""
        ...


class ApiDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the document says of the API as a whole."""

    title: str
    about: str
    # The part of every path that names no group of endpoints.
    prefix: str
    # The type of an answer that is an error, and the errors of an endpoint by their statuses.
    failure: Any
    errors_of: Callable[[Any], Mapping[int, Sequence[str]]]
    # The schema of an event of a stream, and of an id in a path.
    event: dict[str, Any]
    id_of: Callable[[str], dict[str, Any]]


def describe(
    api: ApiDescription, endpoints: Sequence[DescribedEndpoint], version: str
) -> dict[str, Any]:
    """Return the description of all endpoints."""
    kinds: list[Any] = [api.failure]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.query, endpoint.body, endpoint.reply) if kind]
    unique = list({repr(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    by_kind = {repr(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        described = _described(api, endpoint, by_kind, components)
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = described
    for endpoint in endpoints:
        if endpoint.query is not None:
            # Its fields are parameters; it is not an object of the document.
            components.pop(endpoint.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": version, "description": api.about},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(
    api: ApiDescription,
    endpoint: DescribedEndpoint,
    by_kind: dict[str, Any],
    components: dict[str, Any],
) -> dict[str, Any]:
    group = endpoint.path.removeprefix("/api/").removeprefix(api.prefix).split("/")[0].strip("/")
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [group],
        "responses": _responses(api, endpoint, by_kind),
    }
    if parameters := _parameters(api, endpoint, components):
        found["parameters"] = parameters
    if endpoint.access not in (Access.PUBLIC, Access.PROBE):
        # The empty alternative: a server on one machine may not authenticate callers.
        found["security"] = [{"bearer": []}, {}]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": {_JSON: {"schema": by_kind[repr(endpoint.body)]}},
        }
    elif endpoint.is_raw:
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": {}}}}
    return found


def _parameters(
    api: ApiDescription, endpoint: DescribedEndpoint, components: dict[str, Any]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": step[1:-1], "in": "path", "required": True, "schema": api.id_of(endpoint.path)}
        for step in endpoint.path.split("/")
        if step.startswith("{")
    ]
    if endpoint.query is not None:
        schema = components[endpoint.query.__name__]
        needed = schema.get("required", [])
        for name, kind in schema["properties"].items():
            found.append({"name": name, "in": "query", "required": name in needed, "schema": kind})
    if endpoint.is_keyed:
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    if endpoint.streams:
        seen = {"type": "string"}
        found.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": seen})
    return found


def _responses(
    api: ApiDescription, endpoint: DescribedEndpoint, by_kind: dict[str, Any]
) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "It is done."}
    if endpoint.streams:
        good["content"] = {"text/event-stream": {"schema": api.event}}
    elif endpoint.reply is not None:
        schema: dict[str, Any] = by_kind[repr(endpoint.reply)]
        if not endpoint.is_bare:
            schema = {"type": "object", "required": ["data"], "properties": {"data": schema}}
        good["content"] = {_JSON: {"schema": schema}}
    responses: dict[str, Any] = {str(endpoint.status): good}
    for status, named in sorted(api.errors_of(endpoint).items()):
        content: dict[str, Any] = {_JSON: {"schema": by_kind[repr(api.failure)]}}
        if status in _BY_SERVER:
            content |= _PROBLEM
        elif status == 401:
            content = {_JSON: {"schema": _UNKNOWN}}
        responses[str(status)] = {"description": " or ".join(named), "content": content}
    if endpoint.query is not None:
        responses["414"] = {"description": "The URL is too long", "content": _PROBLEM}
    return responses
