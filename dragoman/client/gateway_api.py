"""One request of a gateway's REST API, and what its envelope holds.

Answers are `{"data": …}` or `{"error": {"code", "message", "details"?}}`. What is made of a
refusal, whether it is asked again, and what is told to whom is for those who call.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from dragoman.client.http import Http, read_all
from dragoman.errors import ParseFailed
from dragoman.security.json_values import check_document

# Bytes of an answer.
LARGEST = 16 * 1024 * 1024
# What the keys of gateways begin with.
KEYS = ("dgm_", "nxk_")


class GatewayResponse(NamedTuple):
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class GatewayRefused(Exception):
    """The gateway answered with an error, or with something that is no answer of a gateway: then
    there is neither a code nor a message."""

    def __init__(self, status: int, error: Mapping[str, Any], *, is_json: bool = True) -> None:
        self.status = status
        self.code = str(error.get("code") or "")
        self.word = str(error.get("status") or "")
        self.message = str(error.get("message") or "")
        self.details: Any = error.get("details")
        self.is_json = is_json
        super().__init__(self.message or f"HTTP {status}")


def credential(token: str) -> dict[str, str]:
    """Return the header that shows a token or an API key."""
    if not token:
        return {}
    if token.startswith(KEYS):
        return {"x-api-key": token}
    return {"authorization": f"Bearer {token}"}


async def exchange(
    http: Http,
    verb: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: Any = None,
    largest: int = LARGEST,
) -> GatewayResponse:
    """Send a request and return its answer; raises `EgressError`."""
    sent = {"accept": "application/json", **headers}
    content = None
    if body is not None:
        sent["content-type"] = "application/json"
        content = msgspec.json.encode(body)
    async with http.open(verb, url, headers=sent, body=content) as answer:
        found, _ = await read_all(answer, largest)
        return GatewayResponse(answer.status, answer.headers, found)


def data_of(status: int, body: bytes) -> Any:
    """Return what an answer holds, None where it has no content; raises `GatewayRefused`."""
    if status < 400 and not body:
        return None
    fields = _fields(status, body)
    if status < 400 and "data" in fields:
        return fields["data"]
    raise _refused(status, fields)


def bare_of(status: int, body: bytes) -> bytes:
    """Return an answer of the operator API, which has no envelope; raises `GatewayRefused`."""
    if status < 400 and body.startswith(b"{"):
        return body
    refused = _refused(status, _fields(status, body))
    # The operator API has the number of the HTTP status as the code, and a word beside it.
    refused.code = refused.word
    raise refused


def _fields(status: int, body: bytes) -> dict[str, Any]:
    try:
        check_document(body)
        found: Any = msgspec.json.decode(body)
    except (ParseFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GatewayRefused(status, {}, is_json=False)
    return cast("dict[str, Any]", found)


def _refused(status: int, fields: dict[str, Any]) -> GatewayRefused:
    error = fields.get("error")
    return GatewayRefused(status, cast("dict[str, Any]", error) if isinstance(error, dict) else {})
