"""The messages of a tunnel: a kind, the number of a stream, and what it carries. Pure.

| kind | who sends it | carries |
|---|---|---|
| HELLO | the agent, first | JSON: who it is |
| WELCOME | the gateway, in answer | JSON: what it is called there, and which process this is |
| OPEN | the gateway | nothing: a new stream, with the next number |
| DATA | both | bytes of a stream |
| CREDIT | both | how many more bytes of a stream the other may send |
| CLOSE | both | nothing: the stream is over for both |
| LEAVING | both | nothing: no new stream is opened, those that are open go on |
"""

import enum
import struct
from typing import Any, NamedTuple

import msgspec

# Bytes that one message may carry.
LARGEST = 64 * 1024
# Bytes of a stream that may be under way before the other has taken any.
WINDOW = 256 * 1024
# The longest HELLO or WELCOME.
LARGEST_TEXT = 4 * 1024

_HEAD = struct.Struct("!BI")
_CREDIT = struct.Struct("!I")
MOST_BYTES = LARGEST + _HEAD.size


class Kind(enum.IntEnum):
    """What a message is."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    DATA = 4
    CREDIT = 5
    CLOSE = 6
    LEAVING = 7


# Those that are about a stream, and those that are about the tunnel.
_OF_STREAMS = (Kind.OPEN, Kind.DATA, Kind.CREDIT, Kind.CLOSE)
_BARE = (Kind.OPEN, Kind.CLOSE, Kind.LEAVING)
_KINDS = {kind.value: kind for kind in Kind}


class FrameRefused(Exception):
    """A message that no peer of this version sends; the tunnel ends with this reason."""


class Frame(NamedTuple):
    """One message."""

    kind: Kind
    stream: int
    payload: bytes


class Hello(msgspec.Struct, frozen=True):
    """Who an agent is."""

    # Its name, and the place where it keeps its tasks: processes that share one replace each other.
    name: str
    instance: str
    version: int = 1


class Welcome(msgspec.Struct, frozen=True):
    """How an agent is known to the gateway."""

    # Its name in addresses.
    agent: str
    # The process of the gateway that answers here, and all that there are.
    worker: str
    workers: list[str] = []


def encode(kind: Kind, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    return _HEAD.pack(kind, stream) + payload


def encode_credit(stream: int, count: int) -> bytes:
    """Return the message that lets the other send more bytes of a stream."""
    return encode(Kind.CREDIT, stream, _CREDIT.pack(count))


def encode_text(kind: Kind, value: Hello | Welcome) -> bytes:
    """Return a message that carries JSON."""
    return encode(kind, 0, msgspec.json.encode(value))


def decode(message: bytes) -> Frame:
    """Return a message; raises `FrameRefused`."""
    if len(message) < _HEAD.size:
        raise FrameRefused("a message is too short")
    if len(message) > MOST_BYTES:
        raise FrameRefused("a message is too long")
    number, stream = _HEAD.unpack_from(message)
    kind = _KINDS.get(number)
    if kind is None:
        raise FrameRefused(f"there is no message of kind {number}")
    if (kind in _OF_STREAMS) != bool(stream):
        raise FrameRefused(f"{kind.name} has the wrong number of a stream")
    payload = message[_HEAD.size :]
    if kind in _BARE and payload:
        raise FrameRefused(f"{kind.name} carries nothing")
    if kind is Kind.CREDIT and len(payload) != _CREDIT.size:
        raise FrameRefused("CREDIT carries one number")
    if kind in (Kind.HELLO, Kind.WELCOME) and len(payload) > LARGEST_TEXT:
        raise FrameRefused(f"{kind.name} is too long")
    return Frame(kind, stream, payload)


def credit_of(payload: bytes) -> int:
    """Return how many more bytes may be sent; raises `FrameRefused`."""
    (count,) = _CREDIT.unpack(payload)
    if not 0 < count <= WINDOW:
        raise FrameRefused("CREDIT is for some bytes, and no more than were sent")
    return count


def read_text(payload: bytes, shape: type[Any]) -> Any:
    """Return what a message says in JSON; raises `FrameRefused`."""
    try:
        return msgspec.json.decode(payload, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FrameRefused(f"this is no {shape.__name__}") from None
