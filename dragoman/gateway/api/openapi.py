"""The OpenAPI document, made from the table."""

from typing import Any

import msgspec

from dragoman.gateway.api.envelope import STATUSES, Code, Failure
from dragoman.gateway.api.table import Endpoint, Table
from dragoman.http.routes import Access

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
# Errors of every endpoint.
_ALWAYS: tuple[Code, ...] = ("VALIDATION_ERROR", "RATE_LIMIT_EXCEEDED", "UNAVAILABLE")
_OF_CALLERS: tuple[Code, ...] = ("UNAUTHORIZED", "FORBIDDEN")
_OF_BODIES: tuple[Code, ...] = ("PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")
_ABOUT = (
    "Answers are `{data}` or `{error: {code, message, details?}}`. Amounts are credits, to six "
    "decimals. Instants are RFC 3339 in UTC."
)

# One event of a stream. Its data is JSON: a task, a message, a piece of a result or an error.
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["status", "message", "artifact", "complete", "error"]},
        "data": {"type": "string"},
        "id": {"type": "string"},
    },
}

# Refused before the request reaches this API, with the server's own body.
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


def document(table: Table, version: str) -> dict[str, Any]:
    """Return the description of all endpoints."""
    kinds: list[Any] = [Failure]
    for endpoint in table.endpoints:
        kinds += [kind for kind in (endpoint.query, endpoint.body, endpoint.reply) if kind]
    unique = list({repr(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    by_kind = {repr(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for endpoint in table.endpoints:
        described = _described(endpoint, by_kind, components)
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = described
    for endpoint in table.endpoints:
        if endpoint.query is not None:
            # Its fields are parameters; it is not an object of the document.
            components.pop(endpoint.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman gateway", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(
    endpoint: Endpoint, by_kind: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.path.removeprefix("/api/").removeprefix("v1/").split("/")[0].strip("/")],
        "responses": _responses(endpoint, by_kind),
    }
    if parameters := _parameters(endpoint, components):
        found["parameters"] = parameters
    if endpoint.access is Access.CALLER:
        # The empty alternative: a gateway on one machine may not authenticate callers.
        found["security"] = [{"bearer": []}, {}]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": {_JSON: {"schema": by_kind[repr(endpoint.body)]}},
        }
    elif endpoint.is_raw:
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": {}}}}
    return found


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": step[1:-1], "in": "path", "required": True, "schema": _id(endpoint.path)}
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


def _id(path: str) -> dict[str, Any]:
    """Return the schema of an id: agents have names too, and the id of a key is not a UUID."""
    is_uuid = path.startswith(("/api/v1/tasks/", "/api/v1/workflows/"))
    return {"type": "string", "format": "uuid"} if is_uuid else {"type": "string"}


def _responses(endpoint: Endpoint, by_kind: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "It is done."}
    if endpoint.streams:
        good["content"] = {"text/event-stream": {"schema": _EVENT}}
    elif endpoint.reply is not None:
        schema: dict[str, Any] = by_kind[repr(endpoint.reply)]
        if not endpoint.is_bare:
            schema = {"type": "object", "required": ["data"], "properties": {"data": schema}}
        good["content"] = {_JSON: {"schema": schema}}
    responses: dict[str, Any] = {str(endpoint.status): good}
    codes: dict[int, list[Code]] = {}
    for code in dict.fromkeys(codes_of(endpoint)):
        codes.setdefault(STATUSES[code], []).append(code)
    for status, named in sorted(codes.items()):
        content: dict[str, Any] = {_JSON: {"schema": by_kind[repr(Failure)]}}
        if status in _BY_SERVER:
            content |= _PROBLEM
        elif status == 401:
            content = {_JSON: {"schema": _UNKNOWN}}
        responses[str(status)] = {"description": " or ".join(named), "content": content}
    if endpoint.query is not None:
        responses["414"] = {"description": "The URL is too long", "content": _PROBLEM}
    return responses


def codes_of(endpoint: Endpoint) -> list[Code]:
    """Return every code that an endpoint may answer with, except `INTERNAL_ERROR`."""
    codes: list[Code] = [*endpoint.errors, *_ALWAYS]
    if endpoint.access is Access.CALLER:
        codes += _OF_CALLERS
    if endpoint.body is not None or endpoint.is_raw:
        codes += _OF_BODIES
    return codes
