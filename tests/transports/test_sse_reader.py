"""The reader of event streams: however the bytes are cut, the events are the same, and no peer can
make it hold more than one event of the size it takes."""

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.transports.sse import ServerSentEvent, SseReader, TooLong

MOST = 1 << 20


def read(*chunks: bytes, most: int = MOST) -> list[ServerSentEvent]:
    reader = SseReader(most)
    return [sent for chunk in chunks for sent in reader.feed(chunk)]


def by_the_book(stream: bytes) -> list[ServerSentEvent]:
    """The rules of the HTML standard, one after another."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    *lines, _ = re.split(rb"\r\n|\n|\r", stream)
    found: list[ServerSentEvent] = []
    data: list[bytes] = []
    kind, id = "", None
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if not line:
            if data:
                found.append(ServerSentEvent(b"\n".join(data), id, kind))
            data, kind = [], ""
        elif colon and not name:
            continue
        elif name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            id = value.decode("utf-8", "replace")
    return found


ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
LINES = st.one_of(
    st.sampled_from(
        [
            b"",
            b"data",
            b"data:",
            b"data: {}",
            b"data:  two",
            b"id: 7",
            b"id",
            b"id: a\0b",
            b"event: error",
            b"event",
            b": a comment",
            b":",
            b"retry: 1e99",
            b"Data: not this",
            b"data : nor this",
            b"\xff\xfe",
            b"id: \xff",
            b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c\x1c\x1d\x1e",
        ]
    ),
    st.binary(max_size=12).map(lambda raw: re.sub(rb"[\r\n]", b"", raw)),
)


@given(
    st.booleans(),
    st.lists(st.tuples(LINES, ENDS), max_size=14),
    st.binary(max_size=6),
    st.lists(st.integers(0, 200), max_size=6),
)
@settings(max_examples=400)
def test_events_are_the_same_however_the_bytes_are_cut(
    has_mark: bool, lines: list[tuple[bytes, bytes]], tail: bytes, cuts: list[int]
) -> None:
    stream = (b"\xef\xbb\xbf" if has_mark else b"") + b"".join(a + b for a, b in lines) + tail
    # A CR whose LF has not come is the end of a line all the same.
    expected = by_the_book(stream)
    assert read(stream) == expected
    assert read(*(stream[n : n + 1] for n in range(len(stream)))) == expected
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*pieces) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_there_as_soon_as_its_last_line_has_ended(end: bytes) -> None:
    assert read(b"data: 1" + end + end) == [ServerSentEvent(b"1")]


def test_a_line_end_of_two_characters_that_is_cut_in_half_is_one() -> None:
    assert read(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [ServerSentEvent(b"1\n2")]


@pytest.mark.parametrize("name", [b"data: ", b": ", b"id: ", b"event: ", b""])
def test_a_line_that_never_ends_is_given_up_and_not_kept(name: bytes) -> None:
    reader = SseReader(MOST)
    piece = b"x" * 65536
    reader.feed(name)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            for _ in range(100 * 1024 * 1024 // len(piece)):
                reader.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line", [b"data\n", b"data: xy\n"])
def test_an_event_of_endless_short_lines_costs_no_more_than_its_size(line: bytes) -> None:
    reader = SseReader(MOST // 4)
    piece = line * 100
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            for _ in range(100 * 1024 * 1024 // len(piece)):
                reader.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_comments_without_end_leave_nothing_behind() -> None:
    reader = SseReader(1000)
    for _ in range(10_000):
        assert reader.feed(b": junk\n") == []
    assert reader.feed(b"data: 1\n\n") == [ServerSentEvent(b"1")]


@pytest.mark.requirement("2.10-client")
def test_an_event_of_exactly_the_size_is_read_and_a_larger_one_is_not() -> None:
    assert read(b"data: " + b"x" * 99 + b"\n\n", most=106) != []
    with pytest.raises(TooLong):
        read(b"data: " + b"x" * 200 + b"\n\n", most=106)
