"""Errors as what ends an rpc: a status, its words, and a `google.rpc.Status` in the trailers."""

from typing import Any, NamedTuple

from dragoman.dialects import errors
from dragoman.dialects.errors import BAD_REQUEST, ERROR_INFO, Table
from dragoman.dialects.reading import Object
from dragoman.errors import A2AError, Overloaded, ParseFailed, retry_after
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of

# The trailer that holds the details.
DETAILS = "grpc-status-details-bin"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
# The numbers of statuses, by their names.
CODES = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
# What is read of the details of a peer.
_MOST_DETAILS = 16
_STATUS = shape_of(tables.STATUS, "Status")
_SHAPES = {
    ERROR_INFO: shape_of(tables.STATUS, "ErrorInfo"),
    BAD_REQUEST: shape_of(tables.STATUS, "BadRequest"),
    RETRY_INFO: shape_of(tables.STATUS, "RetryInfo"),
}


class RpcStatus(NamedTuple):
    """What ends an rpc."""

    name: str
    message: str
    # The details; empty: there are none.
    details: bytes


def encode(error: A2AError, version: str, table: Table = "1.0.1") -> RpcStatus:
    """Return what an error is to the caller of an rpc."""
    name, message, details = errors.grpc(error, version, table)
    listed = list(details)
    if isinstance(error, Overloaded) or "retryAfter" in error.facts:
        listed.append({"@type": RETRY_INFO, "retryDelay": retry_after(error)})
    body: Object = {
        "code": CODES[name],
        "message": message,
        "details": [(one["@type"], _SHAPES[one["@type"]].encode(one)) for one in listed],
    }
    return RpcStatus(name, message, _STATUS.encode(body))


def decode(name: str, message: str, details: bytes) -> A2AError:
    """Return the error that a peer's rpc ended with. Details that cannot be read are none."""
    found: list[Object] = []
    seconds = 0
    try:
        status: Any = _STATUS.parse(details)
        for one in status.details[:_MOST_DETAILS]:
            shape = _SHAPES.get(one.type_url)
            if shape is None:
                continue
            inner = shape.parse(one.value)
            if one.type_url == RETRY_INFO:
                seconds = inner.retry_delay.seconds
            else:
                found.append({"@type": one.type_url, **shape.values(inner)})
    except ParseFailed:
        found = []
    error = errors.decode_grpc(name, message, found)
    if seconds > 0:
        error.facts.setdefault("retryAfter", str(min(seconds, 99_999)))
    return error
