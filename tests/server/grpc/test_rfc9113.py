"""What RFC 9113 and RFC 7541 say a server must do, by section: the cases of the public suites for
HTTP/2, of which none is in a registry."""

import asyncio
import struct
from collections.abc import Iterator
from typing import NamedTuple

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
    connected,
    frame,
    head,
    next_frame,
)
from harness.rpcs import talking

from dragoman.http.grpc.front import PREFACE
from dragoman.testing.processes import ServerProcess

pytestmark = pytest.mark.usefixtures("one_loop")

PRIORITY, PUSH, CONTINUATION = 2, 5, 9
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 0x20
PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, COMPRESSION = 1, 3, 5, 6, 7, 9
ASKED = head("ListTasks")
# An rpc that is not answered before the test has said what it has to say: its body is missing.
OPEN = frame(HEADERS, END_HEADERS, 1, ASKED)
# One that is answered, and waited for.
DONE = OPEN + frame(DATA, END_STREAM, 1, bytes(5))
# A literal header that is not put into a table.
PSEUDO = {":method": "POST", ":scheme": "http", ":path": "/x"}


def literal(*headers: tuple[str, str]) -> bytes:
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers
    )


def headed(*more: tuple[str, str], **changed: str) -> bytes:
    """Return the headers of a request, some of them changed or left out."""
    pseudo = {name: changed.get(name[1:], value) for name, value in PSEUDO.items()}
    kept = [(name, value) for name, value in pseudo.items() if value != "-"]
    return literal(*kept, ("content-type", "application/grpc"), *more)


def setting(name: int, value: int) -> bytes:
    return frame(SETTINGS_KIND, 0, 0, struct.pack(">HI", name, value))


class Case(NamedTuple):
    """What a caller says, and the code that it gets."""

    said: bytes
    code: int
    # Whether the connection ends, or its first stream alone.
    ends_all: bool = True
    # What is said before, and answered with the end of a stream.
    first: bytes = b""


def only(said: bytes, code: int) -> Case:
    return Case(said, code, ends_all=False)


CASES = {
    "3.4 the first frame is no settings": Case(b"", PROTOCOL),
    "4.2 a frame of more than was offered": Case(OPEN + frame(DATA, 0, 1, bytes(16_385)), SIZE),
    "4.3 a header block that cannot be read": Case(frame(HEADERS, 5, 1, b"\xff" * 5), COMPRESSION),
    "4.3 a priority within headers": Case(
        frame(HEADERS, 0, 1, ASKED) + frame(PRIORITY, 0, 1, bytes(5)), PROTOCOL
    ),
    "4.3 headers of another stream within headers": Case(
        frame(HEADERS, 0, 1, ASKED) + frame(HEADERS, 4, 3, ASKED), PROTOCOL
    ),
    "5.1 idle: data": Case(frame(DATA, 1, 1, b"x"), PROTOCOL),
    "5.1 idle: a reset": Case(frame(RESET, 0, 1, bytes(4)), PROTOCOL),
    "5.1 idle: a window": Case(frame(WINDOW, 0, 1, b"\0\0\0\1"), PROTOCOL),
    "5.1 idle: a continuation": Case(frame(CONTINUATION, 4, 1, ASKED), PROTOCOL),
    "5.1 half closed: data": only(
        frame(HEADERS, 5, 1, head("SubscribeToTask")) + frame(DATA, 1, 1, b"x"), CLOSED
    ),
    "5.1 half closed: headers": only(
        frame(HEADERS, 5, 1, head("SubscribeToTask")) + frame(HEADERS, 5, 1, ASKED), CLOSED
    ),
    "5.1 half closed: a continuation": Case(
        frame(HEADERS, 5, 1, ASKED) + frame(CONTINUATION, 4, 1, ASKED), PROTOCOL
    ),
    "5.1 reset: data": Case(OPEN + frame(RESET, 0, 1, bytes(4)) + frame(DATA, 1, 1, b"x"), CLOSED),
    "5.1 reset: headers": Case(
        OPEN + frame(RESET, 0, 1, bytes(4)) + frame(HEADERS, 5, 1, ASKED), CLOSED
    ),
    "5.1 closed: data": Case(frame(DATA, 1, 1, b"x"), CLOSED, first=DONE),
    "5.1 closed: headers": Case(frame(HEADERS, 5, 1, ASKED), CLOSED, first=DONE),
    "5.1 closed: a continuation": Case(frame(CONTINUATION, 4, 1, ASKED), PROTOCOL, first=DONE),
    "5.1.1 an even stream": Case(frame(HEADERS, 5, 2, ASKED), PROTOCOL),
    "5.1.1 a stream before the last": Case(
        frame(HEADERS, 4, 5, ASKED) + frame(HEADERS, 4, 3, ASKED), PROTOCOL
    ),
    "5.5 a frame of no kind within headers": Case(
        frame(HEADERS, 0, 1, ASKED) + frame(0xEE, 0, 0, bytes(8)), PROTOCOL
    ),
    "6.1 data of no stream": Case(frame(DATA, 1, 0, b"x"), PROTOCOL),
    "6.1 data with more padding than data": Case(OPEN + frame(DATA, PADDED, 1, b"\x05x"), PROTOCOL),
    "6.2 headers of no stream": Case(frame(HEADERS, 5, 0, ASKED), PROTOCOL),
    "6.2 headers with more padding than headers": Case(
        frame(HEADERS, 5 | PADDED, 1, b"\xff" + ASKED), PROTOCOL
    ),
    "6.2 headers whose priority is missing": Case(frame(HEADERS, 5 | HAS_PRIORITY, 1, b"x"), SIZE),
    "6.3 a priority of no stream": Case(frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "6.3 a priority of another length": Case(OPEN + frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "6.4 a reset of no stream": Case(frame(RESET, 0, 0, bytes(4)), PROTOCOL),
    "6.4 a reset of another length": Case(OPEN + frame(RESET, 0, 1, bytes(3)), SIZE),
    "6.5 an answer to settings with a body": Case(frame(SETTINGS_KIND, 1, 0, bytes(6)), SIZE),
    "6.5 settings of a stream": Case(frame(SETTINGS_KIND, 0, 1), PROTOCOL),
    "6.5 settings of another length": Case(frame(SETTINGS_KIND, 0, 0, bytes(5)), SIZE),
    "6.5.2 promises neither taken nor not": Case(setting(2, 2), PROTOCOL),
    "6.5.2 a window too large": Case(setting(4, 2**31), FLOW),
    "6.5.2 frames too small": Case(setting(5, 16_383), PROTOCOL),
    "6.5.2 frames too large": Case(setting(5, 2**24), PROTOCOL),
    "6.6 a promise": Case(OPEN + frame(PUSH, 4, 1, bytes(4)), PROTOCOL),
    "6.7 a ping of a stream": Case(frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "6.7 a ping of another length": Case(frame(PING, 0, 0, bytes(6)), SIZE),
    "6.8 a farewell of a stream": Case(frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "6.8 a farewell that is too short": Case(frame(GOAWAY, 0, 0, bytes(7)), SIZE),
    "6.9 a window by nothing": Case(frame(WINDOW, 0, 0, bytes(4)), PROTOCOL),
    "6.9 a window of a stream by nothing": only(OPEN + frame(WINDOW, 0, 1, bytes(4)), PROTOCOL),
    "6.9 a window of another length": Case(frame(WINDOW, 0, 0, bytes(3)), SIZE),
    "6.9.1 a window too large": Case(frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2, FLOW),
    "6.9.1 a window of a stream too large": only(
        OPEN + frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff") * 2, FLOW
    ),
    "6.9.2 settings that make a window too large": Case(
        OPEN + frame(WINDOW, 0, 1, b"\x7f\xff\x00\x00") + setting(4, 2**31 - 1), FLOW
    ),
    "6.10 a continuation of another stream": Case(
        frame(HEADERS, 0, 1, ASKED) + frame(CONTINUATION, 4, 3, b""), PROTOCOL
    ),
    "6.10 a continuation of no stream": Case(
        frame(HEADERS, 0, 1, ASKED) + frame(CONTINUATION, 4, 0, b""), PROTOCOL
    ),
    "6.10 a continuation behind the last": Case(OPEN + frame(CONTINUATION, 4, 1, b""), PROTOCOL),
    "8.1 trailers that do not end": only(
        OPEN + frame(HEADERS, 4, 1, literal(("a", "b"))), PROTOCOL
    ),
    "8.1.1 a length that is not that of the body": only(
        frame(HEADERS, 4, 1, ASKED + literal(("content-length", "1"))) + frame(DATA, 1, 1, b"xyz"),
        PROTOCOL,
    ),
    "8.1.1 a length that is no number": only(
        frame(HEADERS, 4, 1, ASKED + literal(("content-length", "-5"))) + frame(DATA, 1, 1, b""),
        PROTOCOL,
    ),
    "8.1.1 trailers that begin a request": only(
        OPEN + frame(HEADERS, 5, 1, literal((":method", "POST"))), PROTOCOL
    ),
    "8.2.1 a name with capitals": only(frame(HEADERS, 5, 1, headed(("X-Test", "a"))), PROTOCOL),
    "8.2.1 a value with an end of line": only(frame(HEADERS, 5, 1, headed(("x", "a\n"))), PROTOCOL),
    "8.2.2 a header about the connection": only(
        frame(HEADERS, 5, 1, headed(("connection", "keep-alive"))), PROTOCOL
    ),
    "8.2.2 a te that is not trailers": only(
        frame(HEADERS, 5, 1, headed(("te", "trailers, deflate"))), PROTOCOL
    ),
    "8.3 a pseudo header of no request": only(
        frame(HEADERS, 5, 1, literal((":test", "x")) + headed()), PROTOCOL
    ),
    "8.3 a pseudo header of answers": only(
        frame(HEADERS, 5, 1, literal((":status", "200")) + headed()), PROTOCOL
    ),
    "8.3 a pseudo header behind others": only(
        frame(HEADERS, 5, 1, headed((":authority", "x"))), PROTOCOL
    ),
    "8.3.1 an empty path": only(frame(HEADERS, 5, 1, headed(path="")), PROTOCOL),
    "8.3.1 no method": only(frame(HEADERS, 5, 1, headed(method="-")), PROTOCOL),
    "8.3.1 no scheme": only(frame(HEADERS, 5, 1, headed(scheme="-")), PROTOCOL),
    "8.3.1 no path": only(frame(HEADERS, 5, 1, headed(path="-")), PROTOCOL),
    "8.3.1 two methods": only(
        frame(HEADERS, 5, 1, literal((":method", "POST")) + headed()), PROTOCOL
    ),
    "HPACK 2.3.3 an index of no field": Case(frame(HEADERS, 5, 1, ASKED + b"\xc6"), COMPRESSION),
    "HPACK 4.2 a table that changes behind a field": Case(
        frame(HEADERS, 5, 1, ASKED + b"\x20"), COMPRESSION
    ),
    # The block that names the field has been read before, and means nothing now.
    "HPACK 4.3 a field that a smaller table no longer has": Case(
        frame(HEADERS, 5, 3, ASKED + b"\xbe")
        + frame(HEADERS, 5, 5, b"\x20" + ASKED)
        + frame(HEADERS, 5, 7, ASKED + b"\xbe"),
        COMPRESSION,
        first=frame(HEADERS, 4, 1, ASKED + b"\x40\x01a\x01b")
        + frame(DATA, END_STREAM, 1, bytes(5)),
    ),
    "HPACK 5.2 padding of more than a byte": Case(
        frame(HEADERS, 5, 1, ASKED + b"\x00\x85\xf2\xb2\x4a\x87\xff\xff\x01a"), COMPRESSION
    ),
    "HPACK 5.2 padding of zeros": Case(
        frame(HEADERS, 5, 1, ASKED + b"\x00\x83\xf2\xb2\x40\x01a"), COMPRESSION
    ),
    "HPACK 5.2 the end of a text within it": Case(
        frame(HEADERS, 5, 1, ASKED + b"\x00\x85\xff\xff\xff\xff\xf2\x01a"), COMPRESSION
    ),
    "HPACK 6.1 the index of nothing": Case(frame(HEADERS, 5, 1, ASKED + b"\x80"), COMPRESSION),
    "HPACK 6.3 a table larger than was offered": Case(
        frame(HEADERS, 5, 1, b"\x3f\xe1\x5f" + ASKED), COMPRESSION
    ),
}  # fmt: skip
GREETED_LATE = "3.4 the first frame is no settings"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with talking(tmp_path_factory.mktemp("server"), "--quiet") as process:
        process.ready()
        yield process


async def ended(reader: asyncio.StreamReader) -> Frame:
    """Return the frame that ends the first stream, or the connection."""
    while True:
        one = await next_frame(reader)
        if one.kind in (GOAWAY, RESET) or (one.kind == HEADERS and one.flags & END_STREAM):
            return one


@pytest.mark.parametrize("case", CASES)
async def test_what_is_not_allowed_has_its_code(server: ServerProcess, case: str) -> None:
    said, code, ends_all, first = CASES[case]
    reader, writer = await connected(server.port)
    begin = frame(PING, 0, 0, bytes(8)) if case == GREETED_LATE else SETTINGS
    writer.write(PREFACE + begin + first)
    if first:
        assert (await ended(reader)).kind == HEADERS
    writer.write(said)
    found = await ended(reader)
    if ends_all:
        assert (found.kind, found.body[7]) == (GOAWAY, code)
        assert await reader.read() == b""
    else:
        assert (found.kind, found.stream, found.body[3]) == (RESET, 1, code)
        # The connection goes on.
        writer.write(DONE.replace(b"\0\0\0\1", b"\0\0\0\3"))
        while (one := await ended(reader)).stream != 3:
            assert one.kind != GOAWAY
        assert b"grpc-status\x010" in one.body
    writer.close()


ALLOWED = {
    "4.2 a frame of the most bytes": frame(DATA, 0, 1, bytes(16_384)),
    "5.1 a priority of an idle stream": frame(PRIORITY, 0, 99, bytes(5)),
    "5.5 a frame of no kind": frame(0xEE, 0xFF, 0, bytes(8)),
    "6.1 data with padding": frame(DATA, PADDED, 1, b"\x03" + bytes(3)),
    "6.4 a code that is not known": frame(HEADERS, 4, 3, ASKED) + frame(RESET, 0, 3, b"\xff" * 4),
    "6.5 a setting that is not known": setting(0xFF, 1),
    "6.5.3 one setting twice": frame(SETTINGS_KIND, 0, 0, struct.pack(">HIHI", 4, 100, 4, 1)),
    "6.7 an answer to no ping": frame(PING, 1, 0, bytes(8)),
    "6.8 a farewell": frame(GOAWAY, 0, 0, bytes(8)),
    "6.10 headers in many frames": frame(HEADERS, 0, 3, ASKED[:7])
    + frame(CONTINUATION, 0, 3, ASKED[7:20])
    + frame(CONTINUATION, 0, 3)
    + frame(CONTINUATION, 4, 3, ASKED[20:]),
    "8.1 trailers": frame(HEADERS, 4, 3, ASKED) + frame(HEADERS, 5, 3, literal(("a", "b"))),
}


@pytest.mark.parametrize("case", ALLOWED)
async def test_what_is_allowed_is_no_reason_to_end(server: ServerProcess, case: str) -> None:
    reader, writer = await connected(server.port)
    writer.write(PREFACE + SETTINGS + OPEN + ALLOWED[case] + frame(PING, 0, 0, b"12345678"))
    while (one := await next_frame(reader)).kind != PING or not one.flags & 1:
        assert one.kind != GOAWAY
    assert one.body == b"12345678"
    writer.close()


async def test_what_was_on_its_way_to_a_stream_that_we_ended_is_dropped(
    server: ServerProcess,
) -> None:
    reader, writer = await connected(server.port)
    # An rpc that there is not is answered before its body has come.
    writer.write(PREFACE + SETTINGS + frame(HEADERS, 4, 1, head("NoSuchRpc")))
    assert (await ended(reader)).kind == HEADERS
    writer.write(frame(DATA, 0, 1, bytes(100)) * 3 + frame(HEADERS, 5, 1, literal(("a", "b"))))
    writer.write(frame(PING, 0, 0, bytes(8)))
    while (one := await next_frame(reader)).kind != PING:
        assert one.kind != GOAWAY
    writer.close()


async def test_an_answer_waits_for_the_window_byte_by_byte(server: ServerProcess) -> None:
    """6.9.2: windows may become less than nothing, and data waits until they are more again."""
    reader, writer = await connected(server.port)
    writer.write(PREFACE + frame(SETTINGS_KIND, 0, 0, struct.pack(">HI", 4, 3)) + DONE)
    while (one := await next_frame(reader)).kind != DATA:
        pass
    assert len(one.body) == 3
    writer.write(setting(4, 1) + frame(WINDOW, 0, 1, b"\0\0\0\x02") + frame(PING, 0, 0, bytes(8)))
    while (one := await next_frame(reader)).kind != PING:
        assert one.kind != DATA, "the window is empty"
    writer.write(frame(WINDOW, 0, 1, b"\0\0\0\x01"))
    while (one := await next_frame(reader)).kind != DATA:
        pass
    assert len(one.body) == 1
    writer.close()
