"""The JSON-RPC 2.0 envelope, taken off by servers and put on by clients, and the way back."""

from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec

from dragoman.dialects.errors import decode_jsonrpc
from dragoman.errors import InvalidAgentResponse, InvalidRequest

# A request's id as it came, to be echoed; None where it could not be read.
Id = str | int | None

_encode = msgspec.json.Encoder().encode
_ID_TYPES = (int, str, type(None))
_ID_RULE = "id must be a string, an integer or null"


class Envelope(msgspec.Struct, frozen=True):
    """A request with its envelope off."""

    id: Id
    method: str
    # As they came: whether the method exists is said before what is wrong with its parameters.
    params: Any
    has_id: ClassVar[bool] = True


class _Notification(Envelope, frozen=True):
    """A request that wants no answer."""

    has_id: ClassVar[bool] = False


class _PlainRequest(Envelope, frozen=True):
    """A request as most are: whatever else it has is of no interest."""

    id: str | int
    method: Annotated[str, msgspec.Meta(min_length=1)]
    params: dict[str, Any]
    jsonrpc: Literal["2.0"]


def request_id(value: Any) -> Id:
    """Return the id to answer with, whatever else is wrong with a request."""
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value).get("id")
    return found if type(found) in (str, int) else None


def method_name(value: Any) -> str:
    """Return the method, if it can be read: it tells in which shape to refuse the request."""
    if not isinstance(value, dict):
        return ""
    found = cast("dict[str, Any]", value).get("method")
    return found if type(found) is str else ""


def parse(value: Any) -> Envelope:
    """Open the envelope; raises `InvalidRequest`. A request without an id is refused as
    `unanswerable`, after its method and its parameters are judged."""
    try:
        return msgspec.convert(value, _PlainRequest)
    except msgspec.ValidationError:
        return _parse(value)


def _parse(value: Any) -> Envelope:
    """Open an envelope that is not as plain; raises `InvalidRequest`."""
    if type(value) is not dict:
        raise InvalidRequest("must be one request object")
    request = cast("dict[str, Any]", value)
    if request.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc must be "2.0"')
    method = request.get("method")
    if type(method) is not str or not method:
        raise InvalidRequest("method must be a name")
    id = request.get("id")
    if type(id) not in _ID_TYPES:
        raise InvalidRequest(_ID_RULE)
    params = request.get("params")
    kind = Envelope if id is not None or "id" in request else _Notification
    return kind(id, method, {} if params is None else params)


def unanswerable() -> InvalidRequest:
    """Return why a notification is refused: every operation has an answer."""
    return InvalidRequest(_ID_RULE)


def success(id: Id, result: bytes) -> bytes:
    """Put a result in its envelope."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(id), result)


def success_frame(id: Id) -> tuple[bytes, bytes]:
    """Return what stands before and after each result of a stream."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % _encode(id), b"}"


def failure(id: Id, error: dict[str, Any]) -> bytes:
    """Put an error in its envelope."""
    return _encode({"jsonrpc": "2.0", "id": id, "error": error})


def request(id: Id, method: str, params: dict[str, Any]) -> bytes:
    """Put an operation in its envelope."""
    return _encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def result_of(value: Any, id: Id) -> Any:
    """Return what a peer answered; raises the error it answered with.

    Some peers of 0.3 stream their events without an envelope: these are taken as they are.
    """
    if not isinstance(value, dict):
        raise InvalidAgentResponse("the answer is not an object")
    answer = cast("dict[str, Any]", value)
    if "error" in answer and answer["error"] is not None:
        if answer.get("result") is not None:
            raise InvalidAgentResponse("the answer has both a result and an error")
        error = decode_jsonrpc(answer["error"])
        code = code_of(answer["error"])
        # One without a code that can be read is the peer's all the same.
        error.code = "none" if code is None else code
        raise error
    if "jsonrpc" not in answer and "result" not in answer:
        return answer
    if answer.get("id") != id:
        raise InvalidAgentResponse("the answer is to another request")
    # A widespread server leaves out a result that is null.
    return answer.get("result")


def code_of(error: Any) -> int | None:
    """Return the code a peer gave to an error, if it is one."""
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return code if type(code) is int else None
