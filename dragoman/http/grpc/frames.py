"""Frames of HTTP/2 (RFC 9113): their kinds, flags and codes, and how one is written."""

import struct

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

# Codes of errors.
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = range(5, 10)
ENHANCE_YOUR_CALM = 11

# Settings.
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(2, 6)
MAX_HEADER_LIST_SIZE = 6

HEAD_BYTES = 9
# What a frame may hold, unless its reader allows more, and what a window is, unless it says so.
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535
LARGEST_WINDOW = 2**31 - 1

# The length of a frame takes three bytes, its kind the fourth.
_HEAD = struct.Struct(">IBI")
read_head = _HEAD.unpack_from
pack_head = _HEAD.pack
pack_number = struct.Struct(">I").pack
SETTING = struct.Struct(">HI")


class ConnectionFault(Exception):
    """What ends a connection: one of the codes of HTTP/2."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return pack_head(len(body) << 8 | kind, flags, stream) + body


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame that holds one number: a reset, or an update of a window."""
    return pack_head(4 << 8 | kind, 0, stream) + pack_number(number)


def settings_frame(values: dict[int, int]) -> bytes:
    """Return the frame that tells settings."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*one) for one in values.items()))
