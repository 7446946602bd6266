"""What a client needs of HTTP: ask once, and read the answer as it comes.

The egress client has this shape, and so has an ASGI app that is called without a socket.
"""

import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, runtime_checkable


class HttpExchange(Protocol):
    """An answer whose head has come. The names of headers are in lower case."""

    @property
    def status(self) -> int:
        """The status of the answer."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, each name once."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the body piece by piece; raises `EgressFailed` when it breaks off."""
        ...


class Http(Protocol):
    """Something that carries requests; no redirect is ever followed by itself."""

    @property
    def identity(self) -> str:
        """What a peer may know us by before a credential is shown, such as a certificate.

        It is a key for caches, and empty where anybody would get the same answers.
        """
        ...

    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AbstractAsyncContextManager[HttpExchange]:
        """Send a request and wait for the head of its answer.

        With `reuse` a POST too may go on a connection that was used before.

        Raises `EgressRefused` where we do not go, `EgressFailed` where no answer comes; the latter
        has `is_sent` true once the request may have arrived. There is no limit of time but that
        of connecting: a caller that wants one brings its own.
        """
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


@runtime_checkable
class RpcHttp(Protocol):
    """Something that carries rpcs of gRPC, too."""

    def open_rpc(
        self, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[HttpExchange]:
        """Begin an rpc of gRPC, whose path is that of the URL. Each chunk of its answer is a
        message; an error of the peer's is raised as `RpcFailed` where the answer ends.

        Raises what `open` does.
        """
        ...


def wish(headers: Mapping[str, str]) -> dict[str, str]:
    """Return for how many seconds a peer wants to be left alone, as a fact of an error. It may say
    so in seconds, or by a date."""
    wait = headers.get("retry-after", "")
    if not wait:
        return {}
    if not wait.isascii() or not wait.isdigit():
        # Few say a date, and this takes a while to load.
        from email.utils import parsedate_to_datetime

        try:
            left = parsedate_to_datetime(wait).timestamp() - time.time()
        except (ValueError, OverflowError):
            return {}
        wait = str(max(0, math.ceil(left)))
    return {"retryAfter": wait} if len(wait) < 6 else {}


class ReadBody(NamedTuple):
    """A body up to a size, and whether there was more."""

    content: bytes
    is_cut: bool


async def read_all(exchange: HttpExchange, most: int) -> ReadBody:
    """Return a body up to a size."""
    body = bytearray()
    async for chunk in exchange.chunks():
        body += chunk
        if len(body) > most:
            return ReadBody(bytes(body[:most]), True)
    return ReadBody(bytes(body), False)
