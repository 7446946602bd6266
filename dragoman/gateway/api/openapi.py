"""The OpenAPI document of the API, made from the table."""

from typing import Any

from dragoman.gateway.api.envelope import STATUSES, Code, Failure
from dragoman.gateway.api.table import Endpoint, Table
from dragoman.http.routes import Access
from dragoman.server.openapi import ApiDescription, describe

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


def document(table: Table, version: str) -> dict[str, Any]:
    """Return the description of all endpoints."""
    return describe(_API, table.endpoints, version)


def _id(path: str) -> dict[str, Any]:
    """Return the schema of an id: agents have names too, and the id of a key is not a UUID."""
    is_uuid = path.startswith(("/api/v1/tasks/", "/api/v1/workflows/"))
    return {"type": "string", "format": "uuid"} if is_uuid else {"type": "string"}


def _errors_of(endpoint: Endpoint) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes_of(endpoint)):
        found.setdefault(STATUSES[code], []).append(code)
    return found


def codes_of(endpoint: Endpoint) -> list[Code]:
    """Return every code that an endpoint may answer with, except `INTERNAL_ERROR`."""
    codes: list[Code] = [*endpoint.errors, *_ALWAYS]
    if endpoint.access is Access.CALLER:
        codes += _OF_CALLERS
    if endpoint.body is not None or endpoint.is_raw:
        codes += _OF_BODIES
    return codes


_API = ApiDescription(
    title="Dragoman gateway",
    about=_ABOUT,
    prefix="v1/",
    failure=Failure,
    errors_of=_errors_of,
    event=_EVENT,
    id_of=_id,
)
