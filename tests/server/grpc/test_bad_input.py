"""Bad input over gRPC: each request has a documented status, and nothing is made by it."""

import asyncio
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from harness.frames import HEAD, SETTINGS, connected, frame, head, next_frame
from harness.rpcs import Rpcs, memory_of, message, rpcs_to, talking
from harness.waiting import within

from dragoman.http.grpc.front import PREFACE
from dragoman.testing.processes import ServerProcess
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.varints import varint

pytestmark = pytest.mark.usefixtures("one_loop")

REQUESTS = 2_000
# What a request that is wrong may end with.
DOCUMENTED = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
GROWTH = 120 * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with talking(tmp_path_factory.mktemp("hurt"), "--quiet") as process:
        process.ready()
        yield process


def field(number: int, wire: int, body: bytes) -> bytes:
    return varint(number << 3 | wire) + body


def sized(number: int, body: bytes) -> bytes:
    return field(number, 2, varint(len(body)) + body)


def deep(levels: int) -> bytes:
    """Return a Value with lists inside each other."""
    value = sized(3, b"x")
    for _ in range(levels):
        value = sized(6, sized(1, value))
    return value


def part_with(body: bytes) -> bytes:
    said = sized(1, b"m") + field(4, 0, b"\x01") + sized(5, body)
    return sized(2, said)


def bad_messages(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield rpcs and requests that are wrong in one way or another."""
    good = shape_of(tables.V1_0, "SendMessageRequest").encode(message("x", "bad"))
    names = [name for name, rpc in tables.V1_0.rpcs.items() if name not in _HARMLESS]
    yield "SendMessage", part_with(sized(4, deep(31)))
    yield "SendMessage", part_with(sized(4, deep(200)))
    yield "SendMessage", part_with(sized(1, b"\xff\xfe"))
    yield "SendMessage", part_with(sized(4, field(2, 1, struct.pack("<d", float("nan")))))
    yield "SendMessage", part_with(b"")
    yield "SendMessage", sized(2, sized(1, b"m") + field(4, 0, b"\x00") + sized(5, sized(1, b"x")))
    yield "SendMessage", sized(2, sized(1, b"m") + field(4, 0, b"\x07") + sized(5, sized(1, b"x")))
    yield "SendMessage", sized(2, sized(1, b"\xc2\xa0") + field(4, 0, b"\x01"))
    yield "SendMessage", part_with(sized(1, b"x") * 2_000)
    while True:
        name = chance.choice(names)
        match chance.randrange(5):
            case 0:
                data = chance.randbytes(chance.randrange(1, 200))
            case 1:
                # Cut off within.
                data = good[: chance.randrange(1, len(good))]
            case 2:
                broken = bytearray(good)
                broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
                data = bytes(broken)
            case 3:
                wire = chance.choice([0, 1, 2, 5])
                data = field(chance.randrange(1, 9), wire, chance.randbytes(9))
            case _:
                data = sized(chance.randrange(1, 9), chance.randbytes(chance.randrange(60)))
        yield name, data


# Requests of these are right whatever they say, or nearly.
_HARMLESS = {"ListTasks", "GetExtendedAgentCard"}


async def test_no_request_that_is_wrong_makes_anything(server: ServerProcess) -> None:
    seen: Counter[str] = Counter()
    async with rpcs_to(f"127.0.0.1:{server.port}") as rpcs:
        await rpcs.call("ListTasks", {})
        before = memory_of(server)
        requests = bad_messages(random.Random(20))
        places = asyncio.Semaphore(40)

        async def one(name: str, data: bytes) -> None:
            async with places:
                seen[await ended(rpcs, name, data)] += 1

        await within(asyncio.gather(*(one(*next(requests)) for _ in range(REQUESTS))))
        answered = seen.pop("OK", 0)
        assert seen.keys() <= DOCUMENTED, seen
        # A bit that was flipped may leave a message good, and then it is one.
        made = (await rpcs.call("ListTasks", {}))["totalSize"]
        assert made <= answered < REQUESTS // 5
        assert (server.memory() or 0) - before < GROWTH


async def ended(rpcs: Rpcs, name: str, data: bytes) -> str:
    call = rpcs.channel.unary_stream(f"/{rpcs.schema.service}/{name}")(data, timeout=60)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        assert error.details() is None or "Traceback" not in (error.details() or "")
        return error.code().name
    return "OK"


ABUSES = {
    "rapid resets": b"".join(
        frame(1, 4, 2 * n + 1, HEAD) + frame(3, 0, 2 * n + 1, bytes([0, 0, 0, 8]))
        for n in range(2_000)
    ),
    "settings": SETTINGS * 5_000,
    "pings": b"".join(frame(6, 0, 0, bytes(8)) for _ in range(5_000)),
    "headers without an end": frame(1, 0, 1, HEAD)
    + b"".join(frame(9, 0, 1, b"\x00\x01a\x7f\x81\x02" + b"b" * 300) for _ in range(2_000)),
    "frames of no kind": b"".join(frame(0xEE, 0, 0, bytes(100)) for _ in range(2_000)),
    "no frames": random.Random(1).randbytes(100_000),
}


@pytest.mark.parametrize("abuse", ABUSES)
async def test_an_abuse_of_http2_harms_no_one_else(server: ServerProcess, abuse: str) -> None:
    async with rpcs_to(f"127.0.0.1:{server.port}") as rpcs:
        await rpcs.call("ListTasks", {})
        before = memory_of(server)
        for _ in range(3):
            reader, writer = await connected(server.port)
            writer.write(PREFACE + SETTINGS + ABUSES[abuse])
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(drained(reader))
                for n in range(10):
                    sent = message("hello", f"{abuse}-{n}".replace(" ", "-"))
                    found = await within(rpcs.call("SendMessage", sent))
                    assert found["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
                writer.close()
                reading.cancel()
        assert (server.memory() or 0) - before < GROWTH
    # What a caller sends is not for the log, least of all as often as it likes.
    assert server.log == ""


async def test_headers_that_do_not_end_end_the_connection(server: ServerProcess) -> None:
    reader, writer = await connected(server.port)
    writer.write(PREFACE + SETTINGS + ABUSES["headers without an end"])
    # The preface, and what is in one go with it, may be too much already.
    await within(drained(reader))
    writer.close()
    reader, writer = await connected(server.port)
    writer.write(PREFACE + SETTINGS + frame(1, 0, 1, HEAD))
    await within(reader.readexactly(9))
    with contextlib.suppress(OSError):
        for _ in range(400_000 // 9):
            # Without a byte of headers each.
            writer.write(frame(9, 0, 1))
            await writer.drain()
    await within(drained(reader))
    writer.close()


@pytest.mark.parametrize("step", [1, 7, 1_000])
async def test_frames_are_read_however_they_are_cut(server: ServerProcess, step: int) -> None:
    listing = head("ListTasks")
    request = frame(1, 4, 1, listing) + frame(0, 0, 1, bytes(3)) + frame(0, 1, 1, bytes(2))
    padded = frame(1, 4 | 8 | 32, 3, b"\x02" + bytes(5) + listing + bytes(2))
    data = PREFACE + SETTINGS + frame(0xEE, 0, 0, bytes(90)) + request + padded
    data += frame(0, 1 | 8, 3, b"\x04" + bytes(5) + bytes(4))
    reader, writer = await connected(server.port)
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await writer.drain()
    ended = 0
    while ended < 2:
        kind, flags, _, body = await next_frame(reader)
        if kind == 1 and flags & 1:
            assert b"grpc-status\x010" in body
            ended += 1
    writer.close()


async def drained(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65_536):
            pass
    except OSError:
        return
