"""Adapts an httpx transport to our client, for callers that pass one, such as
`httpx.ASGITransport`. httpx is installed with the transport."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dragoman.egress.errors import EgressFailed


class HttpxTransport:
    """Sends requests by a transport of httpx, which its owner closes."""

    def __init__(self, transport: Any, timeout: float | None) -> None:
        try:
            import httpx
        except ImportError:
            raise ImportError("A transport needs the package httpx: pip install httpx") from None
        self._httpx = httpx
        self._transport = transport
        self._timeout = timeout
        # Another transport may reach another agent at the same address.
        self.identity = secrets.token_hex(8)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AsyncGenerator["_Exchange"]:
        """Send a request and wait for the head of its answer."""
        request = self._httpx.Request(
            method,
            url,
            headers=dict(headers),
            content=body,
            extensions={"timeout": self._httpx.Timeout(self._timeout).as_dict()},
        )
        try:
            response = await self._transport.handle_async_request(request)
        except self._httpx.ConnectError as error:
            raise EgressFailed(_reason(error), is_sent=False) from None
        except self._httpx.TransportError as error:
            raise EgressFailed(_reason(error)) from None
        try:
            yield _Exchange(response, self._httpx.TransportError)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """The owner of the transport closes it."""


class _Exchange:
    """An answer after its head."""

    def __init__(self, response: Any, broken: type[Exception]) -> None:
        self.status: int = response.status_code
        self.headers: dict[str, str] = {}
        for name, value in response.headers.items():
            self.headers.setdefault(name.lower(), value)
        self._response = response
        self._broken = broken

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body piece by piece."""
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except self._broken as error:
            raise EgressFailed(_reason(error)) from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
