"""What no peer of a tunnel may say, as the bytes of a WebSocket: each is answered with a close and
a reason. The same for both ends, but for what one of them may say."""

import struct
from typing import NamedTuple

from websockets.frames import Frame, Opcode

from dragoman.tunnels.frames import LARGEST, LARGEST_TEXT, WINDOW, Kind, encode, encode_credit

_FAR = (3, 9, 1000, 2**16, 2**31, 2**32 - 1)


class Hostile(NamedTuple):
    """One of them."""

    name: str
    data: bytes
    # Whether it is the first word, or comes behind a HELLO or WELCOME that is right.
    is_first: bool = False


def corpus(*, of_agent: bool) -> list[Hostile]:
    """Return what an agent, or a gateway, may not say."""
    own, other = (Kind.HELLO, Kind.WELCOME) if of_agent else (Kind.WELCOME, Kind.HELLO)
    right = b'{"name":"hostile","instance":"0123456789abcdef","agent":"x","worker":"1"}'
    messages = {
        **{f"{size} bytes": bytes(size) for size in range(5)},
        **{
            f"kind {kind} of stream {stream}": struct.pack("!BI", kind, stream)
            for kind in (0, *range(8, 40), 99, 127, 128, 200, 254, 255)
            for stream in (0, 1)
        },
        **{
            f"{kind.name} of no stream": encode(kind, 0)
            for kind in (Kind.OPEN, Kind.DATA, Kind.CREDIT, Kind.CLOSE)
        },
        **{
            f"{kind.name} of stream {stream}": encode(kind, stream)
            for kind in (Kind.HELLO, Kind.WELCOME, Kind.LEAVING)
            for stream in (1, 2, 2**32 - 1)
        },
        **{
            f"{kind.name} with {size} bytes": encode(kind, number, bytes(size))
            for kind, number in ((Kind.OPEN, 1), (Kind.CLOSE, 1), (Kind.LEAVING, 0))
            for size in (1, 100, LARGEST)
        },
        **{f"credit of {size} bytes": encode(Kind.CREDIT, 1, bytes(size)) for size in (0, 1, 3, 5)},
        **{
            f"credit of {count} for stream {stream}": encode_credit(stream, count)
            for count in (0, 1, WINDOW, WINDOW + 1, 2**32 - 1)
            for stream in (*_FAR, *([1] if of_agent else []))
        },
        **{
            f"{kind.name} of stream {stream}, which never was": encode(kind, stream)
            for kind in (Kind.DATA, Kind.CLOSE)
            for stream in _FAR
        },
        **{f"OPEN of stream {stream}": encode(Kind.OPEN, stream) for stream in _FAR},
        "the other's first word": encode(other, 0, right),
        "its first word again": encode(own, 0, right),
    }
    texts = {
        "no JSON": b"hello",
        "nothing": b"",
        "half of a text": right[:-5],
        "two texts": right + right,
        "no text": right.replace(b"hostile", b"\xff\xfe").replace(b'"x"', b'"\xff"'),
        "a list": b"[1, 2, 3]",
        "a number": b"7",
        "no members": b"{}",
        "one of two members": b'{"name": "hostile", "agent": "x"}',
        "numbers for names": b'{"name": 1, "instance": 2, "agent": 3, "worker": 4}',
        "null for names": b'{"name": null, "instance": null, "agent": null, "worker": null}',
        "a deep text": b"[" * 2000,
        "a long text": right + b" " * LARGEST_TEXT,
    }
    if of_agent:
        for name in ("Hostile", "../etc", "a.b", "", "-x", "x" * 64, "caf\u00e9", "a b", "x\n"):
            text = right.replace(b"hostile", name.encode().replace(b"\n", b"\\n"))
            texts[f"the name {name!r}"] = text
        for instance in ("", "0123", "evil.example", "G" * 16, "0" * 41):
            text = right.replace(b"0123456789abcdef", instance.encode())
            texts[f"the instance {instance!r}"] = text
        texts["another version"] = right[:-1] + b',"version":2}'
    binary = [
        *(Hostile(name, _frame(message, of_agent)) for name, message in messages.items()),
        *(
            Hostile(f"a first word of {name}", _frame(encode(own, 0, text), of_agent), True)
            for name, text in texts.items()
        ),
        Hostile("data as the first word", _frame(encode(Kind.DATA, 1, b"x"), of_agent), True),
        Hostile("a close as the first word", _frame(encode(Kind.CLOSE, 1), of_agent), True),
    ]
    return [*binary, *_websockets(of_agent)]


def _websockets(mask: bool) -> list[Hostile]:
    """Return what no WebSocket has."""
    bit = 0x80 if mask else 0
    key = b"\0\0\0\0" if mask else b""
    found = {
        **{
            f"the opcode {opcode}": bytes([0x80 | opcode, bit]) + key
            for opcode in (*range(3, 8), *range(11, 16))
        },
        **{
            f"the reserved bit {number}": bytes([0x82 | number, bit]) + key
            for number in (0x40, 0x20, 0x10, 0x70)
        },
        "text": Frame(Opcode.TEXT, b"hello").serialize(mask=mask),
        "text that is none": Frame(Opcode.TEXT, b"\xff\xfe").serialize(mask=mask),
        "a piece of nothing": Frame(Opcode.CONT, b"x").serialize(mask=mask),
        "two beginnings": Frame(Opcode.BINARY, b"x", fin=False).serialize(mask=mask) * 2,
        "a ping in pieces": bytes([Opcode.PING, bit]) + key,
        "a long ping": bytes([0x80 | Opcode.PING, bit | 126, 0, 126]) + key + bytes(126),
        "a long pong": bytes([0x80 | Opcode.PONG, bit | 126, 0, 126]) + key + bytes(126),
        "a close of one byte": bytes([0x80 | Opcode.CLOSE, bit | 1]) + key + b"\x03",
        "a close with no code": bytes([0x80 | Opcode.CLOSE, bit | 2]) + key + b"\0\x07",
        "a close with no text": bytes([0x80 | Opcode.CLOSE, bit | 4]) + key + b"\x03\xe8\xff\xff",
        "more than a message": bytes([0x82, bit | 127]) + struct.pack("!Q", 2**20) + key,
        "more than there is": bytes([0x82, bit | 127]) + struct.pack("!Q", 2**62) + key,
        "pieces that add up": Frame(Opcode.BINARY, bytes(LARGEST), fin=False).serialize(mask=mask)
        + bytes([Opcode.CONT, bit | 126, 0x10, 0])
        + key,
        "the wrong mask": Frame(Opcode.BINARY, encode(Kind.LEAVING)).serialize(mask=not mask),
    }
    return [
        Hostile(f"{name}{', first' if is_first else ''}", data, is_first)
        for name, data in found.items()
        for is_first in (False, True)
    ]


def _frame(message: bytes, mask: bool) -> bytes:
    return Frame(Opcode.BINARY, message).serialize(mask=mask)
