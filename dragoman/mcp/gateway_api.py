"""A running gateway, asked by its REST API."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from dragoman.client.http import Http, read_all
from dragoman.errors import A2AError, CallFailed, PermissionDenied, Unauthenticated, Unreachable
from dragoman.security.egress import EgressError

# Seconds.
_ANSWER_WITHIN = 30.0
_LARGEST = 16 * 1024 * 1024


class NotFound(CallFailed):
    """There is no such thing"""


class GatewayApi:
    """One gateway. `headers` show it who asks."""

    def __init__(self, url: str, http: Http, headers: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = http
        self._headers = {"accept": "application/json", **(headers or {})}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def ask(
        self, verb: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Return what the gateway answers; raises `A2AError`."""
        url = f"{self._url}/api{path}" + (f"?{urlencode(query)}" if query else "")
        headers, content = self._headers, None
        if body is not None:
            headers = {**headers, "content-type": "application/json"}
            content = msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(_ANSWER_WITHIN),
                self._http.open(verb, url, headers=headers, body=content) as exchange,
            ):
                answer, _ = await read_all(exchange, _LARGEST)
                return _data(exchange.status, answer)
        except (EgressError, TimeoutError):
            raise Unreachable("The gateway could not be reached") from None


def _data(status: int, answer: bytes) -> Any:
    try:
        found: Any = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if status < 400 and "data" in fields:
        return fields["data"]
    error = fields.get("error")
    facts = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    message = str(facts.get("message") or f"The gateway answered with HTTP {status}")
    kinds: dict[int, type[A2AError]] = {
        401: Unauthenticated,
        403: PermissionDenied,
        404: NotFound,
    }
    raise kinds.get(status, CallFailed)(message)
