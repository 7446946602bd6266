"""The messages of a tunnel, and those that no peer sends."""

import struct

import pytest

from dragoman.tunnels.frames import (
    LARGEST,
    LARGEST_TEXT,
    WINDOW,
    FrameRefused,
    Hello,
    Kind,
    Welcome,
    credit_of,
    decode,
    encode,
    encode_credit,
    encode_text,
    read_text,
)


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.CLOSE])
def test_a_bare_message_comes_back_as_it_was_sent(kind: Kind) -> None:
    assert decode(encode(kind, 7)) == (kind, 7, b"")


def test_data_and_credit_come_back_as_they_were_sent() -> None:
    assert decode(encode(Kind.DATA, 2**32 - 1, b"x" * LARGEST)).payload == b"x" * LARGEST
    assert credit_of(decode(encode_credit(3, WINDOW)).payload) == WINDOW


def test_what_is_said_in_json_comes_back() -> None:
    hello = Hello("weather", "0123456789abcdef")
    assert read_text(decode(encode_text(Kind.HELLO, hello)).payload, Hello) == hello
    welcome = Welcome("weather", "1", ["1", "2"])
    assert read_text(decode(encode_text(Kind.WELCOME, welcome)).payload, Welcome) == welcome


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x03\0\0\0",
        encode(Kind.OPEN, 1)[:4],
        struct.pack("!BI", 0, 1),
        struct.pack("!BI", 8, 1),
        struct.pack("!BI", 255, 0),
        encode(Kind.OPEN, 0),
        encode(Kind.DATA, 0, b"x"),
        encode(Kind.CREDIT, 0, b"\0\0\0\1"),
        encode(Kind.HELLO, 1, b"{}"),
        encode(Kind.LEAVING, 1),
        encode(Kind.OPEN, 1, b"x"),
        encode(Kind.CLOSE, 1, b"x"),
        encode(Kind.LEAVING, 0, b"x"),
        encode(Kind.CREDIT, 1, b""),
        encode(Kind.CREDIT, 1, b"\0\0\0\0\1"),
        encode(Kind.DATA, 1, b"x" * (LARGEST + 1)),
        encode(Kind.HELLO, 0, b"x" * (LARGEST_TEXT + 1)),
    ],
)
def test_a_message_that_no_peer_sends_is_refused(message: bytes) -> None:
    with pytest.raises(FrameRefused):
        decode(message)


@pytest.mark.parametrize("count", [0, WINDOW + 1, 2**32 - 1])
def test_credit_is_for_some_bytes_and_no_more_than_a_window(count: int) -> None:
    with pytest.raises(FrameRefused):
        credit_of(struct.pack("!I", count))


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{}", b'{"name": 1}', b'{"name": "x"}', b"\xff", b"[" * 4000],
)
def test_a_text_of_another_shape_is_refused(text: bytes) -> None:
    with pytest.raises(FrameRefused):
        read_text(text, Hello)
