"""What stands between a store and PostgreSQL in a test."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit, urlunsplit

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Proxy:
    """Listens at a port of its own for clients of a database."""

    def __init__(self, upstream: str) -> None:
        self._parts = urlsplit(upstream)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Future[None]] = set()

    async def start(self) -> str:
        """Return the address of the database behind the proxy."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in list(self._ways):
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        raise NotImplementedError

    async def _until_one_ends(self, *both: Coroutine[Any, Any, None]) -> None:
        """Run the two ways of a connection until one of them ends."""
        ways = [asyncio.ensure_future(way) for way in both]
        self._ways.update(ways)
        # Cancelled ways end here too.
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        self._ways.difference_update(ways)
