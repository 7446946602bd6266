"""HTTP/2 of our own: what a caller may make a server do in vain, and readers that stop reading."""

import asyncio
import itertools
import struct
from collections.abc import Iterator

import pytest
from harness.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    RESET,
    SETTINGS,
    SETTINGS_KIND,
    WINDOW,
    Frame,
    asking,
    frame,
    greeted,
    head,
    next_frame,
)
from harness.rpcs import memory_of, message, rpcs_to, talking
from harness.serving import serving
from harness.waiting import eventually, within

from dragoman import Agent
from dragoman.http.grpc import http2, penalties, purse, rpc, streams
from dragoman.http.grpc.front import PREFACE
from dragoman.http.grpc.http2 import MOST_STREAMS
from dragoman.http.grpc.purse import FULL as PURSE
from dragoman.model.card import RESUME_URI
from dragoman.testing.processes import ServerProcess

pytestmark = pytest.mark.usefixtures("one_loop")

CALM = 11
MEGABYTE = 1024 * 1024
POURED = 24
STREAM = "SendStreamingMessage"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with talking(tmp_path_factory.mktemp("server"), "--quiet") as process:
        process.ready()
        yield process


async def until_end(reader: asyncio.StreamReader) -> list[Frame]:
    """Return all frames until the server hangs up."""
    found: list[Frame] = []
    try:
        while True:
            found.append(await next_frame(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        return found


# What is asked in vain


FLOODS = {
    "pings": [frame(PING, 0, 0, bytes(8))] * 20_000,
    "settings": [SETTINGS] * 20_000,
    "updates of windows": [frame(WINDOW, 0, 0, b"\0\0\0\1")] * 20_000,
    "frames of no kind": [frame(0xEE, 0, 0, b"x")] * 20_000,
    "empty data": [frame(HEADERS, 4, 1, head("ListTasks")), *[frame(DATA, 0, 1)] * 20_000],
    "rapid resets": [
        frame(HEADERS, 4, 2 * n + 1, head("ListTasks"))
        + frame(DATA, 1, 2 * n + 1, bytes(5))
        + frame(RESET, 0, 2 * n + 1, bytes([0, 0, 0, 8]))
        for n in range(5_000)
    ],
    "large headers": [
        frame(HEADERS, 4, 2 * n + 1, head("ListTasks") + b"\x00\x01a\x01b" * 2_000)
        for n in range(200)
    ],
    "many settings in one frame": [frame(SETTINGS_KIND, 0, 0, struct.pack(">HI", 4, 0) * 2_700)]
    * 8,
    "data in crumbs": [
        frame(HEADERS, 4, 1, head("ListTasks")),
        *[frame(DATA, 0, 1, b"\0")] * 20_000,
    ],
    "rpcs that there are not": [
        frame(HEADERS, 5, 2 * n + 1, head("NoSuchRpc")) for n in range(5_000)
    ],
    "no gRPC": [
        frame(HEADERS, 5, 2 * n + 1, b"\x82" + head("ListTasks")[1:]) for n in range(5_000)
    ],
    "malformed headers": [
        frame(HEADERS, 5, 2 * n + 1, head("ListTasks") + b"\x00\x01A\x01b") for n in range(5_000)
    ],
    "compressed messages": [
        frame(HEADERS, 4, 2 * n + 1, head("ListTasks")) + frame(DATA, 1, 2 * n + 1, b"\1\0\0\0\0")
        for n in range(5_000)
    ],
    # Rapid resets again, but the server is made to do them.
    "streams that the server has to reset": [
        frame(HEADERS, 4, 2 * n + 1, head("ListTasks"))
        + frame(DATA, 1, 2 * n + 1, bytes(5))
        + frame(WINDOW, 0, 2 * n + 1, bytes(4))
        for n in range(5_000)
    ],
    "trailers that do not end": [
        frame(HEADERS, 4, 2 * n + 1, head("ListTasks")) + frame(HEADERS, 4, 2 * n + 1, b"\0\1a\1b")
        for n in range(5_000)
    ],
}


# One field of four kilobytes that is put into the table, and named as often as a block has room.
LARGE_FIELD = frame(HEADERS, 5, 1, head("ListTasks") + b"\x40\x01b\x7f\xa1\x1e" + b"x" * 4_000)
BOMBS = {
    "large fields": LARGE_FIELD + frame(HEADERS, 5, 3, head("ListTasks") + b"\xbe" * 100),
    "many fields": frame(HEADERS, 5, 1, head("ListTasks") + b"\x90" * 4_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_block_that_grows_by_naming_ends_the_connection(
    server: ServerProcess, bomb: str
) -> None:
    reader, writer = await greeted(server.port)
    writer.write(BOMBS[bomb])
    answered = await until_end(reader)
    writer.close()
    assert (answered[-1].kind, answered[-1].body[7]) == (GOAWAY, CALM)


@pytest.mark.parametrize("flood", FLOODS)
async def test_what_brings_nothing_is_done_so_often_and_no_more(
    server: ServerProcess, flood: str
) -> None:
    reader, writer = await greeted(server.port)
    writer.write(b"".join(FLOODS[flood]))
    answered = await until_end(reader)
    writer.close()
    (end,) = [one for one in answered if one.kind == GOAWAY]
    last, code = struct.unpack(">II", end.body)
    assert code == CALM
    # Some more for the time that it takes.
    assert len(answered) < 2 * PURSE
    assert last < 2 * PURSE


async def test_an_address_that_floods_is_not_read_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So slowly is it forgiven that it is not, here.
    monkeypatch.setattr(penalties, "_PER_SECOND", 0.001)
    monkeypatch.setattr(penalties, "LONGEST", 3_600.0)
    async with serving(text_agent(), transport="jsonrpc,grpc") as site:
        port = int(site.url.rpartition(":")[2])
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE + SETTINGS + b"".join(FLOODS["pings"]))
            await until_end(reader)
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + SETTINGS)
        greeting = asyncio.create_task(next_frame(reader))
        # Another address is answered meanwhile.
        other, its_writer = await greeted(port)
        its_writer.write(asking(1, "much", "beside"))
        while (await next_frame(other)).kind != HEADERS:
            pass
        assert not greeting.done()
        greeting.cancel()
        writer.close()
        its_writer.close()


async def test_a_caller_that_pings_now_and_then_is_answered(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    for n in range(3):
        writer.write(frame(PING, 0, 0, bytes([n] * 8)) * int(PURSE // 4))
        # What it asks for is answered, too.
        writer.write(frame(HEADERS, 4, 2 * n + 1, head("ListTasks")))
        writer.write(frame(DATA, 1, 2 * n + 1, bytes(5)))
        while (one := await next_frame(reader)).kind != HEADERS or not one.flags & 1:
            assert one.kind != GOAWAY
        assert b"grpc-status\x010" in one.body
    writer.close()


async def test_no_more_streams_are_open_than_were_offered(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    many = MOST_STREAMS + 20
    writer.write(
        b"".join(frame(HEADERS, 4, 2 * n + 1, head("ListTasks")) for n in range(many))
        + frame(PING, 0, 0, bytes(8))
    )
    refused: list[Frame] = []
    while (one := await next_frame(reader)).kind != PING:
        refused += [one] if one.kind == RESET else []
    writer.close()
    # Not taken, so it may be sent again.
    assert [one.body[3] for one in refused] == [7] * 20


async def test_an_rpc_is_refused_once_its_caller_has_said_more(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    writer.write(frame(HEADERS, 4, 1, head("NoSuchRpc")) + frame(PING, 0, 0, b"answered"))
    first = await of_kinds(reader, HEADERS, PING)
    writer.write(frame(DATA, 0, 1, bytes(5)))
    second = await of_kinds(reader, HEADERS, PING)
    assert (first.kind, second.kind, second.stream) == (PING, HEADERS, 1)
    # One that says no more is not waited for.
    writer.write(frame(HEADERS, 4, 3, head("NoSuchRpc")))
    assert (await of_kinds(reader, HEADERS)).stream == 3
    writer.close()


async def of_kinds(reader: asyncio.StreamReader, *kinds: int) -> Frame:
    """Return the next frame that is of some kinds."""
    while (found := await next_frame(reader)).kind not in kinds:
        pass
    return found


@pytest.mark.parametrize(
    "wrong",
    {
        "a stream of ours": frame(HEADERS, 4, 2, head("ListTasks")),
        "a promise": frame(5, 4, 1, bytes(4)),
        "data of no stream": frame(DATA, 0, 9, b"x"),
        "a ping of another length": frame(PING, 0, 0, bytes(7)),
        "a frame that is too long": b"\xff\xff\xff\x00\x00" + bytes(4),
        "a window too far": frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
        "padding without an end": frame(HEADERS, 4 | 8, 1, b"\xff" + head("ListTasks")),
        "an index of no header": frame(HEADERS, 4, 1, b"\xff\xff\x7f"),
        "a number without an end": frame(HEADERS, 4, 1, b"\x0f" + b"\xff" * 40),
        "headers within headers": frame(HEADERS, 0, 1, b"\x83") + frame(DATA, 0, 1, b"x"),
    }.items(),
    ids=lambda one: one[0],
)
async def test_what_http2_does_not_allow_ends_the_connection(
    server: ServerProcess, wrong: tuple[str, bytes]
) -> None:
    reader, writer = await greeted(server.port)
    writer.write(wrong[1])
    answered = await until_end(reader)
    writer.close()
    assert answered[-1].kind == GOAWAY and answered[-1].body[7]


async def test_a_caller_that_compresses_is_told_what_is_taken(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    said = head("ListTasks", **{"grpc-encoding": "gzip"})
    writer.write(frame(HEADERS, 4, 1, said) + frame(DATA, 1, 1, b"\1\0\0\0\1x"))
    while (one := await next_frame(reader)).kind != HEADERS:
        pass
    writer.close()
    assert one.flags & 1 and b"grpc-status\x0212" in one.body
    assert b"\x14grpc-accept-encoding\x08identity" in one.body


async def test_headers_that_are_malformed_end_their_stream_alone(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    for stream, bad in ((1, b"\x00\x01A\x01b"), (3, b"\x00\x01a\x02b\n")):
        writer.write(frame(HEADERS, 5, stream, head("ListTasks") + bad))
    writer.write(frame(HEADERS, 4, 5, b"\x82" + head("ListTasks")[1:]))
    writer.write(frame(HEADERS, 4, 7, head("ListTasks")) + frame(DATA, 1, 7, bytes(5)))
    found: dict[int, Frame] = {}
    while 7 not in found:
        one = await next_frame(reader)
        if one.kind == RESET or (one.kind == HEADERS and one.flags & 1):
            found.setdefault(one.stream, one)
    writer.close()
    assert [found[stream].kind for stream in (1, 3)] == [RESET, RESET]
    # Not gRPC: said in words of HTTP.
    assert b"415" in found[5].body
    assert b"grpc-status\x010" in found[7].body


# Readers that stop


SMALL = struct.pack(">HI", 4, 50_000)
LARGE = struct.pack(">HI", 4, 2**31 - 1)


@pytest.mark.parametrize("window", [SMALL, LARGE], ids=["its window is full", "it does not read"])
async def test_a_reader_that_stops_costs_a_position(server: ServerProcess, window: bytes) -> None:
    async with rpcs_to(f"127.0.0.1:{server.port}") as rpcs:
        async for _ in rpcs.stream(
            "SendStreamingMessage", message(f"pour {POURED}", f"warm-{window.hex()}")
        ):
            pass
        before = memory_of(server)
        reader, writer = await greeted(server.port, window)
        writer.write(frame(WINDOW, 0, 0, struct.pack(">I", 2**31 - 65_536)))
        writer.write(
            asking(1, f"pour {POURED}", f"poured-{window.hex()}", STREAM, a2a_extensions=RESUME_URI)
        )
        data, task_id = b"", ""
        while not task_id:
            one = await next_frame(reader)
            data += one.body if one.kind == DATA else b""
            if events := whole(data):
                task_id = rpcs.event(events[0])["task"]["id"]
        most = 0

        async def is_completed() -> bool:
            nonlocal most
            found = await rpcs.call("ListTasks", {"pageSize": 1, "historyLength": 0})
            most = max(most, server.memory() or 0)
            return found["tasks"][0]["status"]["state"] == "TASK_STATE_COMPLETED"

        # The agent was done although nobody read, and what it said is not in memory.
        await eventually(is_completed)
        assert most - before < POURED * MEGABYTE / 2
        # What was on its way is all that comes, and the rest comes by position.
        last = rpcs.event(whole(data)[-1]).get("position", 0)
        assert 0 < last < POURED * 256
        writer.close()
        metadata = (("a2a-extensions", RESUME_URI), ("last-event-id", str(last)))
        rest = [
            rpcs.event(one)
            async for one in rpcs.stream("SubscribeToTask", {"id": task_id}, metadata)
        ]
        # A stream begins with the task as it was where its reader goes on.
        seen = [one["position"] for one in rest if "task" not in one]
        assert seen == list(range(last + 1, last + 1 + len(seen))) and seen[-1] > POURED * 256


def whole(data: bytes) -> list[bytes]:
    """Return the whole messages among framed ones."""
    found: list[bytes] = []
    at = 0
    while at + 5 <= len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        if end > len(data):
            break
        found.append(data[at + 5 : end])
        at = end
    return found


async def test_a_caller_that_asks_and_does_not_read_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it does is paid for, however much it is.
    monkeypatch.setattr(purse, "_PER_SECOND", 10.0**9)
    async with serving(text_agent(), transport="jsonrpc,grpc") as site:
        _, writer = await greeted(int(site.url.rpartition(":")[2]))
        writer.transport.set_write_buffer_limits(0)
        # What is refused is answered with headers alone, which no window bounds.
        asked = itertools.count(1, 2)
        with pytest.raises(ConnectionError):
            # More than the buffers of any kernel hold.
            for _ in range(10_000):
                refused = [frame(HEADERS, 5, next(asked), head("NoSuchRpc")) for _ in range(250)]
                writer.write(b"".join(refused))
                await within(writer.drain())
                # The reader of this end is not asked for anything, and stops by itself.
        writer.close()


async def test_answers_wait_for_the_window_of_their_connection() -> None:
    async with serving(text_agent(), transport="jsonrpc,grpc") as site:
        reader, writer = await greeted(int(site.url.rpartition(":")[2]), LARGE)
        writer.write(asking(1, "much", "first") + asking(3, "much", "second"))
        size = 0
        while size < 65_535:
            one = await next_frame(reader)
            size += len(one.body) if one.kind == DATA else 0
        # Twice, so that one of both finds a window that is not empty.
        writer.write(frame(WINDOW, 0, 0, b"\0\0\0\1") + frame(WINDOW, 0, 0, b"\0\x7f\0\0"))
        ended: set[int] = set()
        while ended != {1, 3}:
            one = await next_frame(reader)
            if one.kind == HEADERS and one.flags & 1:
                ended.add(one.stream)
        writer.close()


# Requests that are not whole


def begun(stream: int) -> bytes:
    """Return most of a request of the largest length."""
    data = [frame(DATA, 0, stream, bytes(15_000)) for _ in range(6)]
    return frame(HEADERS, 4, stream, head("ListTasks")) + b"".join(data)


async def status_of(reader: asyncio.StreamReader, stream: int) -> int:
    while (one := await next_frame(reader)).kind != HEADERS or not one.flags & 1:
        pass
    assert one.stream == stream
    said = one.body.partition(b"grpc-status")[2]
    return int(said[1 : 1 + said[0]])


async def test_requests_that_are_not_whole_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(text_agent(), transport="jsonrpc,grpc", max_body_bytes=100_000) as site:
        port = int(site.url.rpartition(":")[2])
        first, to_first = await greeted(port)
        to_first.write(b"".join(begun(stream) for stream in (1, 3, 5, 7, 9)))
        # Four of the largest, on one connection.
        assert await status_of(first, 9) == 8
        monkeypatch.setattr(rpc, "_LARGEST_OF_ALL", 3)
        second, to_second = await greeted(port, LARGE)
        to_second.write(frame(WINDOW, 0, 0, b"\0\x7f\0\0") + begun(1))
        assert await status_of(second, 1) == 8
        # Small ones have room.
        to_second.write(asking(3, "much", "small"))
        assert await status_of(second, 3) == 0
        # So have large ones, once the first caller has given up.
        given_up = frame(RESET, 0, 3, bytes(4)) + frame(RESET, 0, 5, bytes(4))
        to_first.write(given_up + frame(PING, 0, 0, bytes(8)))
        while (await next_frame(first)).kind != PING:
            pass
        to_second.write(begun(5) + frame(DATA, 1, 5))
        # It was read, and is no message.
        assert await status_of(second, 5) == 3
        to_first.close()
        to_second.close()


# Callers that are late


def text_agent() -> Agent:
    agent = Agent("Long", "Says much.")

    @agent.skill
    async def much(text: str) -> str:
        return "x" * 300_000

    return agent


LATE = {
    "settings": ("HANDSHAKE_SECONDS", b"", GOAWAY),
    "headers": ("HEAD_SECONDS", SETTINGS + frame(HEADERS, 0, 1, b"\x83"), GOAWAY),
    "a body": ("BODY_SECONDS", SETTINGS + frame(HEADERS, 4, 1, head("ListTasks")), RESET),
    "taking an answer": ("WRITE_SECONDS", SETTINGS + asking(1, "much", "late"), RESET),
    "another rpc": ("IDLE_SECONDS", SETTINGS, GOAWAY),
    "the answer to a ping": ("_ANSWER_WITHIN", SETTINGS, PING),
}


async def test_a_deadline_ends_an_rpc_whose_caller_does_not(server: ServerProcess) -> None:
    reader, writer = await greeted(server.port)
    writer.write(asking(1, "hold", "late-deadline", STREAM, grpc_timeout="300m"))
    while (one := await next_frame(reader)).kind != HEADERS or not one.flags & 1:
        pass
    assert b"grpc-status\x014" in one.body
    writer.close()


@pytest.mark.parametrize("what", LATE)
async def test_a_caller_that_is_late_is_not_waited_for(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, said, ends_with = LATE[what]
    monkeypatch.setattr(streams if hasattr(streams, name) else http2, name, 0.0)
    monkeypatch.setattr(streams, "BYTES_PER_SECOND", 10.0**9)
    monkeypatch.setattr(http2, "_LOOK_EVERY", 0.05)
    if what == "the answer to a ping":
        monkeypatch.setattr(http2, "_ASK_AFTER", 0.0)
    async with serving(text_agent(), transport="jsonrpc,grpc") as site:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + said)
        found: list[Frame] = []
        while not found or found[-1].kind != ends_with:
            found.append(await next_frame(reader))
        if ends_with != RESET:
            # Nothing more comes.
            assert await until_end(reader) == []
        writer.close()
