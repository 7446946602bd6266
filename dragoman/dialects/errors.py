"""The table of errors: what each is called on every wire, and the way back for clients.

One row per class of `dragoman.errors`. Clients tell a class by its reason, then by its JSON-RPC
code, then by its HTTP status, and accept the statuses of both 1.0.0 and 1.0.1.
"""

from typing import Literal, NamedTuple

import msgspec

from dragoman import errors
from dragoman.dialects.reading import Object, Value, elements, members
from dragoman.dialects.v0_3_shapes import STATE_NAMES
from dragoman.errors import A2AError, InvalidParams

DOMAIN = "a2a-protocol.org"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"

Table = Literal["1.0.1", "1.0.0"]
# Facts have the words of 1.0; these are those of 0.x for the same.
_WORDS_0_X = {state.value: name for state, name in STATE_NAMES.items()}


class ErrorRow(msgspec.Struct, frozen=True):
    """One error on every wire."""

    error: type[A2AError]
    code: int
    http: int
    grpc: str
    reason: str
    # Where 1.0.0 differs from 1.0.1.
    http_1_0_0: int = 0
    grpc_1_0_0: str = ""
    # Where 0.x differs from 1.0, because it has no such error.
    code_0_x: int = 0
    # What servers of 0.3 answer over REST, where it differs from 1.0.1.
    http_0_x: int = 0


# Of rows that share a code, a reason or a status, the first is what a client reads it as.
ROWS = (
    ErrorRow(errors.InvalidRequest, -32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
    ErrorRow(errors.ParseFailed, -32700, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
    ErrorRow(errors.BodyTooLarge, -32600, 413, "RESOURCE_EXHAUSTED", "INVALID_REQUEST"),
    ErrorRow(errors.TaskNotFound, -32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
    # The protocol has one error for both; the words tell them apart.
    ErrorRow(errors.PushConfigNotFound, -32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
    ErrorRow(errors.MethodNotFound, -32601, 404, "UNIMPLEMENTED", "METHOD_NOT_FOUND"),
    ErrorRow(errors.InvalidParams, -32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS", http_0_x=422),
    ErrorRow(
        errors.NoAgentAvailable, -32602, 400, "INVALID_ARGUMENT", "NO_AGENT_AVAILABLE", http_0_x=422
    ),
    ErrorRow(errors.InternalError, -32603, 500, "INTERNAL", "INTERNAL_ERROR"),
    ErrorRow(
        errors.TaskNotCancelable,
        -32002,
        400,
        "FAILED_PRECONDITION",
        "TASK_NOT_CANCELABLE",
        http_1_0_0=409,
        http_0_x=409,
    ),
    ErrorRow(
        errors.PushNotSupported,
        -32003,
        400,
        "FAILED_PRECONDITION",
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
        grpc_1_0_0="UNIMPLEMENTED",
        http_0_x=501,
    ),
    ErrorRow(
        errors.UnsupportedOperation,
        -32004,
        400,
        "FAILED_PRECONDITION",
        "UNSUPPORTED_OPERATION",
        grpc_1_0_0="UNIMPLEMENTED",
        http_0_x=501,
    ),
    ErrorRow(
        errors.ContentTypeNotSupported,
        -32005,
        400,
        "INVALID_ARGUMENT",
        "CONTENT_TYPE_NOT_SUPPORTED",
        http_1_0_0=415,
        http_0_x=415,
    ),
    ErrorRow(
        errors.InvalidAgentResponse,
        -32006,
        500,
        "INTERNAL",
        "INVALID_AGENT_RESPONSE",
        http_1_0_0=502,
        http_0_x=502,
    ),
    ErrorRow(
        errors.ExtendedCardNotConfigured,
        -32007,
        400,
        "FAILED_PRECONDITION",
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        http_0_x=404,
    ),
    ErrorRow(
        errors.ExtensionRequired,
        -32008,
        400,
        "FAILED_PRECONDITION",
        "EXTENSION_SUPPORT_REQUIRED",
        code_0_x=-32602,
    ),
    ErrorRow(
        errors.VersionNotSupported,
        -32009,
        400,
        "FAILED_PRECONDITION",
        "VERSION_NOT_SUPPORTED",
        grpc_1_0_0="UNIMPLEMENTED",
        code_0_x=-32600,
    ),
    # Of gateways; our own codes are documented, and above those of the protocol.
    ErrorRow(
        errors.InsufficientCredits, -32055, 402, "FAILED_PRECONDITION", "INSUFFICIENT_CREDITS"
    ),
    ErrorRow(errors.TrustTooLow, -32056, 403, "FAILED_PRECONDITION", "TRUST_THRESHOLD_NOT_MET"),
    ErrorRow(errors.AgentOffline, -32057, 503, "UNAVAILABLE", "AGENT_OFFLINE"),
    ErrorRow(errors.HopLimit, -32058, 400, "FAILED_PRECONDITION", "HOP_LIMIT"),
    # The protocol leaves these to HTTP; the code serves only where a JSON-RPC body is wanted.
    ErrorRow(errors.Unauthenticated, -32603, 401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    ErrorRow(errors.PermissionDenied, -32603, 403, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    ErrorRow(errors.Overloaded, -32603, 503, "UNAVAILABLE", "UNAVAILABLE"),
    ErrorRow(errors.RateLimited, -32603, 429, "RESOURCE_EXHAUSTED", "RATE_LIMITED"),
)

# What 0.x says for each code, word for word; a detail follows after a colon.
STANDARD_MESSAGES = {
    -32700: "Invalid JSON payload",
    -32600: "Request payload validation error",
    -32601: "Method not found",
    -32602: "Invalid parameters",
    -32603: "Internal error",
    -32001: "Task not found",
    -32002: "Task cannot be canceled",
    -32003: "Push Notification is not supported",
    -32004: "This operation is not supported",
    -32005: "Incompatible content types",
    -32006: "Invalid agent response",
    -32007: "Authenticated Extended Card is not configured",
}

# Codes of our own, which no version has words for, have those of their errors.
STANDARD_MESSAGES.update(
    (row.code, (row.error.__doc__ or "").strip()) for row in ROWS if -32099 <= row.code <= -32050
)

_INTERNAL = -32603
_BY_CLASS = {row.error: row for row in ROWS}
_BY_CODE: dict[int, ErrorRow] = {}
_BY_REASON: dict[str, ErrorRow] = {}
# Statuses peers answer without saying more; 0.3 servers use those of the last line.
_BY_STATUS: dict[int, type[A2AError]] = {
    403: errors.PermissionDenied,
    503: errors.Overloaded,
    409: errors.TaskNotCancelable,
    415: errors.ContentTypeNotSupported,
    502: errors.InvalidAgentResponse,
    422: errors.InvalidParams,
    501: errors.UnsupportedOperation,
}
# Statuses of rpcs whose peers say no more.
_BY_GRPC: dict[str, type[A2AError]] = {
    "NOT_FOUND": errors.TaskNotFound,
    "INVALID_ARGUMENT": errors.InvalidParams,
    "FAILED_PRECONDITION": errors.UnsupportedOperation,
    "UNIMPLEMENTED": errors.UnsupportedOperation,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "RESOURCE_EXHAUSTED": errors.RateLimited,
    "UNAVAILABLE": errors.Overloaded,
}
for _row in ROWS:
    _BY_CODE.setdefault(_row.code, _row)
    _BY_REASON.setdefault(_row.reason, _row)
    _BY_STATUS.setdefault(_row.http, _row.error)


def row_of(error: A2AError) -> ErrorRow:
    """Return the row of an error; a class without one is an internal error to peers."""
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            return _BY_CLASS[kind]
    return _BY_CLASS[errors.InternalError]


def http_status(error: A2AError, table: Table = "1.0.1") -> int:
    """Return the HTTP status of an error."""
    row = row_of(error)
    return row.http_1_0_0 or row.http if table == "1.0.0" else row.http


def jsonrpc(error: A2AError, version: str) -> Object:
    """Return the `error` member of a JSON-RPC answer."""
    row = row_of(error)
    if version == "1.0":
        return {"code": row.code, "message": error.public, "data": _details(error, row)}
    code = row.code_0_x or row.code
    body: Object = {"code": code, "message": _message_0_x(error, row, code)}
    data: Object = {name: _WORDS_0_X.get(fact, fact) for name, fact in error.facts.items()}
    if isinstance(error, InvalidParams) and error.field:
        data |= {"field": error.field, "description": error.description}
    if _BY_CODE[code] is not row and _BY_REASON[row.reason] is row:
        data["reason"] = row.reason
    # An object or nothing: clients of 0.x choke on the list that 1.0 has here.
    return body | {"data": data} if data else body


class RestError(NamedTuple):
    """The HTTP status and the body of a REST answer."""

    status: int
    body: Object


def rest(error: A2AError, table: Table = "1.0.1") -> RestError:
    """Return the HTTP status and the body of a REST answer."""
    row = row_of(error)
    status = http_status(error, table)
    name = row.grpc_1_0_0 or row.grpc if table == "1.0.0" else row.grpc
    details = _details(error, row)
    inner = {"code": status, "status": name, "message": error.public, "details": details}
    return RestError(status, {"error": inner})


class GrpcError(NamedTuple):
    """The status of an rpc by its name, what it says, and details as JSON has them."""

    status: str
    message: str
    details: list[Object]


def grpc(error: A2AError, version: str, table: Table = "1.0.1") -> GrpcError:
    """Return what ends an rpc. Clients of 0.3 go by the name of the error before its words."""
    row = row_of(error)
    status = row.grpc_1_0_0 or row.grpc if table == "1.0.0" else row.grpc
    message = error.public if version == "1.0" else f"{_name(row)}: {error.public}"
    return GrpcError(status, message, _details(error, row))


def decode_grpc(status: str, message: str, details: list[Object]) -> A2AError:
    """Return the error that a peer's rpc ended with: by its reason, the name before its words, or
    its status alone."""
    told = _details_of(details)
    row = _BY_REASON.get(_text(told.info.get("reason")))
    if row is not None:
        same = (one for one in ROWS if one.reason == row.reason and one.grpc == status)
        return _decoded(next(same, row).error, message.removeprefix(f"{_name(row)}: "), told)
    name, _, words = message.partition(": ")
    for one in ROWS:
        if name == _name(one):
            return _decoded(one.error, words, told)
    return _decoded(_BY_GRPC.get(status, errors.InternalError), message, told)


def _name(row: ErrorRow) -> str:
    """Return what the libraries of 0.3 call an error: `TaskNotFoundError`."""
    words = "".join(word.capitalize() for word in row.reason.split("_"))
    return f"{words.removesuffix('Error')}Error"


def rest_0_x(error: A2AError) -> RestError:
    """Return the HTTP status and the body of a REST answer of 0.x, which fixes neither.

    Some clients go by the name of the error alone, in the form of `TaskNotFoundError`.
    """
    row = row_of(error)
    body = jsonrpc(error, "0.3") | {"type": _name(row)}
    return RestError(row.http_0_x or row.http, body)


def decode_jsonrpc(value: Value) -> A2AError:
    """Return the error in the `error` member of a peer's answer, of either generation."""
    body = members(value)
    code, data = body.get("code"), body.get("data")
    message = _text(body.get("message"))
    if type(data) is not list:
        message = _without_standard(message, code)
    details = _details_of(data)
    row = _BY_CODE.get(code) if type(code) is int else None
    reason = _text(details.info.get("reason"))
    if row is None or row.reason != reason:
        row = _BY_REASON.get(reason, row)
    if row is None:
        return _error(errors.InternalError, message, {"code": str(code)})
    # A widespread 0.3 and 1.0 server says so of tasks that ended.
    if row.error is InvalidParams and not details.violations and "terminal state" in message:
        row = _BY_CLASS[errors.UnsupportedOperation]
    return _decoded(row.error, message, details)


def decode_rest(status: int, value: Value) -> A2AError:
    """Return the error in a peer's REST answer: ours, an older one's, or a bare status."""
    body = members(value)
    inner = body.get("error")
    if type(inner) is dict:
        return _decode_status(status, members(inner))
    if type(body.get("code")) is int and body["code"] < 0:
        return decode_jsonrpc(body)
    message = _text(body.get("detail")) or _text(body.get("message")) or _text(body.get("title"))
    # Of corvid's, the error is the sentence.
    message = message or _text(inner)
    # RFC 9457, as examples of 1.0 show it: the type's last segment names the error.
    name = _text(body.get("type")).rpartition("/")[2].upper().replace("-", "_")
    if name in _BY_REASON:
        versions = elements(body.get("supportedVersions"))
        facts = {"supportedVersions": ",".join(map(str, versions))} if versions else {}
        return _error(_BY_REASON[name].error, message, facts)
    return _error(_BY_STATUS.get(status, errors.InternalError), message, {})


def by_words(value: Value) -> A2AError | None:
    """Return the error of a REST answer that has nothing but the specification's words for it: so
    answers the official Python library of 0.3. Other servers say other things in this shape."""
    body = members(value)
    message = _text(body.get("message"))
    if not message or not body.keys() <= {"message", "data"}:
        return None
    found = (row.error for row in ROWS if message.startswith((row.error.__doc__ or "-").strip()))
    return next((_error(error, message, {}) for error in found), None)


class _Details(msgspec.Struct, frozen=True):
    info: Object = {}
    violations: list[Object] = []


def _details(error: A2AError, row: ErrorRow) -> list[Object]:
    info: Object = {"@type": ERROR_INFO, "reason": row.reason, "domain": DOMAIN}
    if error.facts:
        info["metadata"] = error.facts
    if isinstance(error, InvalidParams) and error.field:
        violation = {"field": error.field, "description": error.description}
        return [info, {"@type": BAD_REQUEST, "fieldViolations": [violation]}]
    return [info]


def _details_of(data: Value) -> _Details:
    """Return what a peer tells of an error, from the list of 1.0 or the object of 0.x."""
    if type(data) is dict:
        plain = members(data)
        facts = {
            name: item
            for name, item in plain.items()
            if name not in ("reason", "field", "description")
        }
        violations = [plain] if "field" in plain and "description" in plain else []
        return _Details({"reason": plain.get("reason"), "metadata": facts}, violations)
    entries = [members(entry) for entry in elements(data)]
    infos = [entry for entry in entries if entry.get("@type") == ERROR_INFO]
    violations = [
        members(violation)
        for entry in entries
        if entry.get("@type") == BAD_REQUEST
        for violation in elements(entry.get("fieldViolations"))
    ]
    return _Details(infos[0] if infos else {}, violations)


def _decode_status(status: int, body: Object) -> A2AError:
    """Return the error of a `google.rpc.Status` in JSON."""
    details = _details_of(body.get("details"))
    reason = _text(details.info.get("reason"))
    candidates = [row for row in ROWS if row.reason == reason and status == row.http]
    row = candidates[0] if candidates else _BY_REASON.get(reason)
    kind = row.error if row else _BY_STATUS.get(status, errors.InternalError)
    return _decoded(kind, _text(body.get("message")), details)


def _decoded(kind: type[A2AError], message: str, details: _Details) -> A2AError:
    if kind is InvalidParams and details.violations:
        first = details.violations[0]
        error = InvalidParams(_text(first.get("description")), field=_text(first.get("field")))
        error.is_quoted = True
        return error
    facts = members(details.info.get("metadata"))
    return _error(kind, message, {str(name): str(fact) for name, fact in facts.items()})


def _error(kind: type[A2AError], message: str, facts: dict[str, str]) -> A2AError:
    error = kind(message)
    error.is_quoted = bool(message)
    # Not through the constructor: a peer may name a fact like one of its parameters.
    error.facts = facts
    return error


def _message_0_x(error: A2AError, row: ErrorRow, code: int) -> str:
    if code == _INTERNAL and row.error is not errors.InternalError:
        # It has this code for want of one; nothing went wrong with us.
        return error.public
    standard = STANDARD_MESSAGES[code]
    if error.public == standard or error.public.startswith(f"{standard}: "):
        return error.public
    if row.error is errors.PushConfigNotFound:
        # The standard words would say that the task is gone.
        return error.public
    return f"{standard}: {error.public}"


def _without_standard(message: str, code: Value) -> str:
    standard = STANDARD_MESSAGES.get(code, "") if type(code) is int else ""
    return message.removeprefix(f"{standard}: ") if standard else message


def _text(value: Value) -> str:
    return value if type(value) is str else ""
