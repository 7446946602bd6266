"""The envelope of every answer of the API: `data`, or `error` with a code.

The codes are words and belong to this API; here is the code of each error of ours.
"""

from typing import Any, Literal

import msgspec

from dragoman import errors
from dragoman.errors import A2AError, InvalidParams, RateLimited

Code = Literal[
    "AGENT_NOT_FOUND",
    "AGENT_OFFLINE",
    "TASK_NOT_FOUND",
    "TASK_ALREADY_ASSIGNED",
    "TASK_CANCELLED",
    "INSUFFICIENT_CREDITS",
    "TRUST_THRESHOLD_NOT_MET",
    "RATE_LIMIT_EXCEEDED",
    "UNAUTHORIZED",
    "FORBIDDEN",
    "VALIDATION_ERROR",
    "INTERNAL_ERROR",
    "PROTOCOL_ERROR",
    # Not among the codes of NEXUS.
    "NOT_FOUND",
    "CONFLICT",
    "UNAVAILABLE",
    "PAYLOAD_TOO_LARGE",
    "UNSUPPORTED_MEDIA_TYPE",
    "METHOD_NOT_ALLOWED",
]

STATUSES: dict[Code, int] = {
    "AGENT_NOT_FOUND": 404,
    "AGENT_OFFLINE": 503,
    "TASK_NOT_FOUND": 404,
    "TASK_ALREADY_ASSIGNED": 409,
    "TASK_CANCELLED": 408,
    "INSUFFICIENT_CREDITS": 402,
    "TRUST_THRESHOLD_NOT_MET": 403,
    "RATE_LIMIT_EXCEEDED": 429,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "VALIDATION_ERROR": 400,
    "INTERNAL_ERROR": 500,
    "PROTOCOL_ERROR": 502,
    "NOT_FOUND": 404,
    "CONFLICT": 409,
    "UNAVAILABLE": 503,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "METHOD_NOT_ALLOWED": 405,
}

# A subclass comes before its base.
_CODES: tuple[tuple[type[A2AError], Code], ...] = (
    (errors.BodyTooLarge, "PAYLOAD_TOO_LARGE"),
    (errors.ContentTypeNotSupported, "UNSUPPORTED_MEDIA_TYPE"),
    (errors.NoAgentAvailable, "AGENT_NOT_FOUND"),
    (errors.ParseFailed, "VALIDATION_ERROR"),
    (errors.InvalidRequest, "VALIDATION_ERROR"),
    (errors.InvalidParams, "VALIDATION_ERROR"),
    (errors.HopLimit, "VALIDATION_ERROR"),
    (errors.TaskNotCancelable, "VALIDATION_ERROR"),
    (errors.UnsupportedOperation, "VALIDATION_ERROR"),
    (errors.TaskNotFound, "TASK_NOT_FOUND"),
    (errors.MethodNotFound, "NOT_FOUND"),
    (errors.InsufficientCredits, "INSUFFICIENT_CREDITS"),
    (errors.TrustTooLow, "TRUST_THRESHOLD_NOT_MET"),
    (errors.AgentOffline, "AGENT_OFFLINE"),
    (errors.Unauthenticated, "UNAUTHORIZED"),
    (errors.PermissionDenied, "FORBIDDEN"),
    (errors.RateLimited, "RATE_LIMIT_EXCEEDED"),
    (errors.Overloaded, "UNAVAILABLE"),
    (errors.InvalidAgentResponse, "PROTOCOL_ERROR"),
    (errors.CallFailed, "PROTOCOL_ERROR"),
)
# Facts that are shown as numbers.
_NUMBERS = frozenset({"balance", "cost", "needed", "retryAfter", "score", "minTrust"})


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error."""

    code: Code
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Failure(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    error: Fault


class ApiRefused(Exception):
    """The request is answered with an error of this API, by its code."""

    def __init__(self, code: Code, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.details = details


def failure(error: A2AError | ApiRefused) -> tuple[int, Failure]:
    """Return the status and the body of an error."""
    if isinstance(error, ApiRefused):
        code, message, details = error.code, error.message, error.details
    else:
        code, message, details = code_of(error), error.public, _details(error)
    fault = Fault(code, message, details or msgspec.UNSET)
    return STATUSES[code], Failure(fault)


def code_of(error: A2AError) -> Code:
    """Return the code of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return "INTERNAL_ERROR"


def _details(error: A2AError) -> dict[str, Any]:
    details: dict[str, Any] = {
        name: _number(value) if name in _NUMBERS else value for name, value in error.facts.items()
    }
    if isinstance(error, RateLimited):
        details["retryAfter"] = error.retry_after
    if isinstance(error, InvalidParams) and error.field:
        details["field"] = error.field
    return details


def _number(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
