"""HTTP/2 of our own against bytes that chance made: headers read as `hpack` reads them, and frames
after which a connection is whole or closed."""

import asyncio
import random
import tracemalloc
from typing import Any, cast

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.exceptions import OversizedHeaderListError

from dragoman.http.grpc import frames, http2
from dragoman.http.grpc.frames import ConnectionFault
from dragoman.http.grpc.front import TakenConnection
from dragoman.http.grpc.header_blocks import HeaderBlock, HeaderReader
from dragoman.http.grpc.http2 import MOST_STREAMS, Http2Connection
from dragoman.http.grpc.streams import Http2Stream

SEED = 20261118
NAMES = [b":path", b":method", b"te", b"content-type", b"a2a-version", b"authorization", b"x"]


def headers(chance: random.Random) -> list[tuple[bytes, bytes]]:
    return [
        (chance.choice(NAMES), chance.randbytes(chance.choice([0, 1, 5, 30, 200, 3_000])))
        for _ in range(chance.randrange(6))
    ]


def by_oracle(decoder: Decoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return what `hpack` reads; None: it is an error."""
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except OversizedHeaderListError:
        raise
    except (HPACKError, UnicodeError):
        return None


def by_us(reader: HeaderReader, block: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return list(reader.read(block).headers)
    except ConnectionFault:
        return None


@pytest.mark.parametrize("turn", range(3))
def test_headers_are_read_as_another_library_reads_them(turn: int) -> None:
    chance = random.Random(SEED + turn)
    encoder, oracle, ours = Encoder(), Decoder(), HeaderReader()
    for _ in range(100):
        if not chance.randrange(8):
            # Told by the next block, before its first field.
            encoder.header_table_size = chance.choice([0, 100, 4_096])
        block = encoder.encode(headers(chance), huffman=chance.random() < 0.5)
        assert by_us(ours, block) == by_oracle(oracle, block)


@pytest.mark.parametrize("turn", range(3))
def test_broken_headers_are_errors_to_both(turn: int) -> None:
    chance = random.Random(SEED + 100 + turn)
    for _ in range(40):
        encoder, oracle, ours = Encoder(), Decoder(), HeaderReader()
        first = encoder.encode(headers(chance))
        assert by_us(ours, first) == by_oracle(oracle, first)
        block = bytearray(encoder.encode(headers(chance)) or b"\x82")
        for _ in range(chance.randrange(1, 4)):
            block[chance.randrange(len(block))] = chance.randrange(256)
        assert by_us(ours, bytes(block)) == by_oracle(oracle, bytes(block)), block.hex()


@pytest.mark.parametrize("turn", range(3))
def test_headers_that_were_read_before_are_read_as_the_table_now_is(turn: int) -> None:
    chance = random.Random(SEED + 200 + turn)
    oracle, ours = Decoder(), HeaderReader()
    literal, added = b"\0\1x\1%c", b"\x40\1y\1%c"
    for _ in range(300):
        letter = chance.choice(b"abc")
        # Most name the newest field of the table, or none; some put one before it, or empty it.
        block = chance.choice([literal % letter, b"\xbe", literal % letter + b"\xbe"])
        if not chance.randrange(4):
            block = chance.choice([added % letter, b"\x20\x3f\xe1\x1f" + added % letter])
        if oracle.header_table.dynamic_entries or b"\xbe" not in block:
            assert by_us(ours, block) == by_oracle(oracle, block)


def test_headers_that_are_remembered_have_a_bound() -> None:
    reader = HeaderReader()
    tracemalloc.start()
    try:
        for number in range(1_000):
            reader.read(b"\0\1x\x7f\x81\x1e%04d" % number + b"v" * 3_964)
            reader.read(b"\0\1x\4%04d" % number)
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


class PipeEnd:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unread

    unread = 0


class Taken:
    """The connection below."""

    def __init__(self) -> None:
        self.transport = PipeEnd()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""


class Answerer:
    """Reads a stream, and answers some."""

    def __init__(self, stream: Http2Stream, chance: random.Random) -> None:
        self._stream = stream
        self._chance = chance
        self.is_over = False

    def take(self, data: bytes) -> None:
        assert not self.is_over

    def end(self) -> None:
        assert not self.is_over
        if self._chance.random() < 0.5:
            self._stream.send_headers(b"\x88", ends=True)

    def lose(self) -> None:
        self.is_over = True


def some_frame(chance: random.Random, block: bytes) -> bytes:
    kind = chance.choice([*range(10), 0, 1, 1, 1, 8])
    stream = chance.choice([0, 1, 3, 5, 7, 2 * chance.randrange(500) + 1, chance.randrange(2**32)])
    sizes = {frames.PING: 8, frames.RST_STREAM: 4, frames.WINDOW_UPDATE: 4, frames.PRIORITY: 5}
    size = sizes.get(kind, chance.choice([0, 6, 12, 100, 2_000]))
    body = block if kind == frames.HEADERS else chance.randbytes(size)
    if kind in (frames.SETTINGS, frames.PING, frames.GOAWAY):
        stream = 0
    if not chance.randrange(50):
        body += b"x"
    flags = chance.choice([0, 1, 4, 5, 5, 5, 8, 32, chance.randrange(256)])
    return frames.pack_head(len(body) << 8 | kind, flags, stream) + body


@pytest.mark.parametrize("turn", range(5))
async def test_whatever_frames_come_a_connection_is_whole_or_closed(turn: int) -> None:
    chance = random.Random(SEED + 200 + turn)
    block = Encoder().encode([(b":method", b"POST"), (b":path", b"/x"), (b"te", b"trailers")])
    for _ in range(50):
        taken = Taken()
        transport = taken.transport
        opened: list[Http2Stream] = []

        def open_stream(stream: Http2Stream, _: HeaderBlock, to: Any = opened) -> Answerer:
            to.append(stream)
            return Answerer(stream, chance)

        connection = Http2Connection(
            cast("TakenConnection", taken), open_stream, lambda: None, lambda _: None
        )
        said = frames.frame(frames.SETTINGS, 0, 0)
        said += b"".join(some_frame(chance, block) for _ in range(60))
        while said:
            size = chance.choice([1, 8, 9, 100, len(said)])
            connection.data_received(said[:size])
            said = said[size:]
        assert connection.open_rpcs <= MOST_STREAMS
        # Streams that are known to be over are not held, and those that are held are not over.
        live = [one for one in opened if not one.is_gone]
        assert connection.open_rpcs == len(live)
        connection.connection_lost(None)
        assert connection.open_rpcs == 0
        assert all(one.is_gone for one in opened)
        assert _are_whole(bytes(transport.written))


async def test_a_caller_that_does_not_read_is_dropped_whatever_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "_LOOK_EVERY", 0.0)
    taken = Taken()
    connection = Http2Connection(
        cast("TakenConnection", taken), cast("Any", None), lambda: None, lambda _: None
    )
    transport = taken.transport
    # Answers to pings are neither headers nor of a stream.
    connection.data_received(frames.frame(frames.SETTINGS, 0, 0))
    connection.pause_writing()
    transport.unread = http2.MOST_UNTAKEN
    for _ in range(3):
        await asyncio.sleep(0)
    assert not transport.is_closed
    transport.unread += 1
    for _ in range(3):
        await asyncio.sleep(0)
    assert transport.is_closed
    connection.connection_lost(None)


def _are_whole(data: bytes) -> bool:
    """Tell whether bytes are whole frames."""
    at = 0
    while at < len(data):
        at += frames.HEAD_BYTES + (int.from_bytes(data[at : at + 3]))
    return at == len(data)
