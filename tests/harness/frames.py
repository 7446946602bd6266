"""Frames of HTTP/2 as bytes, for tests that say what no client would."""

import asyncio
import secrets
import struct
from typing import NamedTuple

from dragoman.http.grpc.front import PREFACE
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from harness.rpcs import message
from harness.waiting import within

DATA, HEADERS, RESET, SETTINGS_KIND, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
SETTINGS = bytes(3) + b"\x04" + bytes(5)
# A request as HPACK has it, without a table: POST, a path, and what gRPC wants.
HEAD = b"\x83\x86\x04\x0a/lf.a2a.v1\x01\x01x\x0f\x10\x10application/grpc\x00\x02te\x08trailers"


class Frame(NamedTuple):
    """One frame of a server."""

    kind: int
    flags: int
    stream: int
    body: bytes


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def head(name: str, **metadata: str) -> bytes:
    """Return the headers of an rpc of 1.0."""
    path = f"/lf.a2a.v1.A2AService/{name}".encode()
    written = HEAD.replace(b"\x0a/lf.a2a.v1", bytes([len(path)]) + path)
    for key, value in metadata.items():
        name = key.replace("_", "-")
        written += bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return written


def asking(stream: int, text: str, id: str, rpc: str = "SendMessage", **metadata: str) -> bytes:
    """Return the frames of an rpc that sends a text."""
    request = shape_of(tables.V1_0, "SendMessageRequest").encode(message(text, id))
    data = b"\0" + struct.pack(">I", len(request)) + request
    begun = frame(HEADERS, 4, stream, head(rpc, **metadata))
    return begun + frame(DATA, 1, stream, data)


async def next_frame(reader: asyncio.StreamReader) -> Frame:
    """Return the next frame of a server."""
    begin = await within(reader.readexactly(9))
    body = await within(reader.readexactly(int.from_bytes(begin[:3])))
    return Frame(begin[3], begin[4], int.from_bytes(begin[5:]), body)


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from an address of its own: those that do wrong have to wait."""
    address = f"127.{secrets.randbelow(250) + 1}.{secrets.randbelow(250)}.7"
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def greeted(port: int, *settings: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and say these settings."""
    reader, writer = await connected(port)
    writer.write(PREFACE + frame(SETTINGS_KIND, 0, 0, b"".join(settings)))
    return reader, writer
