"""A proxy before PostgreSQL that takes answers away: what was sent is done, and the client is not
told."""

import asyncio
import random

from tests.stores.postgres.proxy import Proxy

# How many of the answers are taken away, also to what is submitted again.
_SHARE = 0.6
# How such an answer begins: a row with one value, which is empty.
_DONE = b"2\0\0\0\4D\0\0\0\x0a\0\1\0\0\0\0"


class CuttingProxy(Proxy):
    """Passes bytes on, and ends connections of a writer instead of passing its answers."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        # How many answers to groups are still to be taken away, and how many were.
        self.cuts_left = 0
        self._random = random.Random(7)
        self.cuts = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._parts.port)
        wire = _Wire()
        await self._until_one_ends(self._ask(reader, down, wire), self._answer(up, writer, wire))
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
