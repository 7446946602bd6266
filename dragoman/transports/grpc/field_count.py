"""How many fields are in the bytes of a message, counted before any of them is made.

A field of two bytes becomes an object of a hundred, so the length of a message says little about
what it costs. Whether the bytes are the message is not looked at: a parser that stops at a mistake
has made no more fields than were counted before it.
"""

from typing import Any

from google.protobuf.message import Message

from dragoman.errors import ParseFailed
from dragoman.transports.grpc.varints import read_varint

# Descriptors have two types, by what protobuf was built with: hence `Any` below.
# By the name of a message: the numbers of its fields that are messages, with the name of each.
_inner: dict[str, dict[int, str]] = {}


def check_fields(data: bytes, kind: type[Message], most: int) -> None:
    """Raise `ParseFailed` for bytes that have more fields than are allowed."""
    # Each takes two bytes, so most messages need no look.
    if len(data) > 2 * most and _count(data, kind.DESCRIPTOR, most) > most:
        raise ParseFailed(f"more than {most} values")


def _count(data: bytes, kind: Any, most: int) -> int:
    if kind.full_name not in _inner:
        _learn(kind)
    count = 0
    # Spans that are still to be looked at: each was counted, so there are no more than `most`.
    spans = [(0, len(data), kind.full_name)]
    while spans:
        at, end, name = spans.pop()
        messages = _inner[name]
        while at < end:
            count += 1
            if count > most:
                return count
            key, at = read_varint(data, at, end)
            match key & 7:
                case 0:
                    _, at = read_varint(data, at, end)
                case 1:
                    at += 8
                case 2:
                    length, at = read_varint(data, at, end)
                    if (inner := messages.get(key >> 3)) is not None:
                        spans.append((at, min(at + length, end), inner))
                    at += length
                case 5:
                    at += 4
                case _:
                    # No parser of proto3 goes on here.
                    return count
    return count


def _learn(kind: Any) -> None:
    """Remember which fields of a message, and of those inside it, are messages."""
    found = _inner[kind.full_name] = {}
    for field in kind.fields:
        if (inner := field.message_type) is not None:
            found[field.number] = inner.full_name
            if inner.full_name not in _inner:
                _learn(inner)
