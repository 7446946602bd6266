"""The cutting proxy cuts streams where it is told to, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.stub_servers import listening

from tests.peers.cutting import cutting

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b"1" * 9000
STREAM = HEAD + b"data: 1\n\n" * 1000
BEFORE = HEAD.index(b"text/event-stream")


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(body)

    async with listening(connected) as port:
        yield f"http://127.0.0.1:{port}"


async def read(address: str) -> bytes:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[-1]))
        writer.write(b"GET /\n")
        found = await reader.read(-1)
        writer.close()
        return found


@pytest.mark.parametrize("cut", [0, 1, 40, 5000])
async def test_a_stream_ends_after_as_many_bytes_as_it_may_pass(cut: int) -> None:
    async with answering(STREAM) as address, cutting(address, [cut]) as proxy:
        assert await read(proxy.address) == STREAM[: BEFORE + cut]
        # The cut is used up.
        assert await read(proxy.address) == STREAM


async def test_what_is_no_stream_passes() -> None:
    async with answering(PLAIN) as address, cutting(address, [10]) as proxy:
        assert await read(proxy.address) == PLAIN
        assert proxy.cuts == [10]
