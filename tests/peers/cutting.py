"""A TCP proxy that cuts event streams: each after so many bytes, until the cuts are used up.

Everything else passes: cards, single answers, and streams once no cut is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from harness.stub_servers import listening

STREAM = b"text/event-stream"
PIECE = 4096


class Cutting:
    """The proxy in front of one server."""

    def __init__(self, target: str, cuts: Sequence[int], *, cuts_all: bool = False) -> None:
        split = urlsplit(target)
        self.host, self.port = split.hostname, split.port
        # How many bytes of its stream each connection still to be cut may pass.
        self.cuts = list(cuts)
        self.address = ""
        # Whether every connection is cut: streams of gRPC cannot be told from other rpcs.
        self.cuts_all = cuts_all

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection(self.host, self.port)
        sending = asyncio.ensure_future(self.forward(reader, to_them))
        try:
            await self.answer(theirs, writer)
        finally:
            sending.cancel()
            for end in (writer, to_them):
                end.close()
            await asyncio.gather(sending, return_exceptions=True)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass what the server says, up to the cut if it is a stream and one is left."""
        left = self.cuts.pop(0) if self.cuts_all and self.cuts else None
        with suppress(OSError):
            while data := await reader.read(PIECE):
                if left is None and self.cuts and STREAM in data:
                    left = self.cuts.pop(0) + data.index(STREAM)
                if left is not None and len(data) >= left:
                    writer.write(data[:left])
                    await writer.drain()
                    return
                if left is not None:
                    left -= len(data)
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def cutting(
    target: str, cuts: Sequence[int], *, cuts_all: bool = False
) -> AsyncIterator[Cutting]:
    """Run the proxy; its `address` stands for the target's."""
    proxy = Cutting(target, cuts, cuts_all=cuts_all)
    async with listening(proxy.relay) as port:
        proxy.address = f"http://127.0.0.1:{port}"
        yield proxy
