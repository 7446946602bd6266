"""A proxy before PostgreSQL that takes answers away: what was sent is done, and the client is not
told."""

import asyncio
import random
from urllib.parse import urlsplit, urlunsplit

# How many of the answers are taken away, also to what is submitted again.
_SHARE = 0.6
# How such an answer begins: a row with one value, which is empty.
_DONE = b"2\0\0\0\4D\0\0\0\x0a\0\1\0\0\0\0"


class CuttingProxy:
    """Passes bytes on, and ends connections of a writer instead of passing its answers."""

    def __init__(self, upstream: str) -> None:
        self._parts = urlsplit(upstream)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Future[None]] = set()
        # How many answers to groups are still to be taken away, and how many were.
        self.cuts_left = 0
        self._random = random.Random(7)
        self.cuts = 0

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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._parts.port)
        wire = _Wire()
        ways = [
            asyncio.ensure_future(self._ask(reader, down, wire)),
            asyncio.ensure_future(self._answer(up, writer, wire)),
        ]
        self._ways.update(ways)
        # Cancelled ways end here too.
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        self._ways.difference_update(ways)
        for side in (writer, down):
            side.close()

    async def _ask(
        self, reader: asyncio.StreamReader, down: asyncio.StreamWriter, wire: "_Wire"
    ) -> None:
        while data := await reader.read(65536):
            wire.is_writer = wire.is_writer or b"write_group(" in data
            down.write(data)
            await down.drain()

    async def _answer(
        self, up: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: "_Wire"
    ) -> None:
        while data := await up.read(65536):
            # The answer to a statement that was prepared comes in one piece, after the commit.
            is_answer = self.cuts_left and wire.is_writer and data.startswith(_DONE)
            if is_answer and self._random.random() < _SHARE:
                self.cuts_left -= 1
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()


class _Wire:
    is_writer = False
