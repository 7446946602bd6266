"""The REST API of a running gateway, for the tools."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dragoman.client.gateway_api import GatewayRefused, data_of, exchange
from dragoman.client.http import Http
from dragoman.egress.errors import EgressError
from dragoman.errors import A2AError, CallFailed, PermissionDenied, Unauthenticated, Unreachable

# Seconds.
_ANSWER_WITHIN = 30.0


class NotFound(CallFailed):
    """There is no such thing"""


_KINDS: Mapping[int, type[A2AError]] = {
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
}


class McpGatewayApi:
    """One gateway. `headers` hold our credential."""

    def __init__(self, url: str, http: Http, headers: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = http
        self._headers = headers or {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def ask(
        self, verb: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Return what the gateway answers; raises `A2AError`."""
        url = f"{self._url}/api{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                answer = await exchange(self._http, verb, url, headers=self._headers, body=body)
            return data_of(answer.status, answer.body)
        except (EgressError, TimeoutError):
            raise Unreachable("The gateway could not be reached") from None
        except GatewayRefused as refused:
            reason = refused.message or f"The gateway answered with HTTP {refused.status}"
            raise _KINDS.get(refused.status, CallFailed)(reason) from None
