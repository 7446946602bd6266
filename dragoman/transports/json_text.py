"""Untrusted JSON text to plain values, more strictly than the standard library.

Refused: anything but UTF-8, a byte order mark, duplicate members, NaN and infinities, numbers that
are too long, lone surrogates, documents that are nested too deep or have too many values, and
objects that are too wide. Values are counted before any of them is made: one takes up to a hundred
times the bytes that it has in the text.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET

from dragoman.errors import ParseFailed
from dragoman.security.json_values import MAX_VALUES, check_values
from dragoman.service import off_loop, reserve

MAX_DEPTH = 64
MAX_MEMBERS = 1_000
MAX_NUMBER_LENGTH = 64
# Larger documents are read in a thread, so that one of them does not hold up everybody else.
READ_IN_LINE_BYTES = 64 * 1024
# Bytes that a large document takes for each of its own: a text with one rare character takes four
# for each, and is there twice.
_MEMORY = 9
# Every digit as one and the same, so that a long number is found as a plain text.
_AS_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * MAX_NUMBER_LENGTH
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


async def read(body: bytes, most_values: int = MAX_VALUES) -> Any:
    """Return the value of a document, without holding up the loop; raises `ParseFailed`."""
    if len(body) <= READ_IN_LINE_BYTES:
        return parse(body, most_values)
    return await off_loop(parse, body, most_values)


def parse(body: bytes, most_values: int = MAX_VALUES) -> Any:
    """Return the value of a document; raises `ParseFailed`."""
    if len(body) > READ_IN_LINE_BYTES:
        check_values(body, most_values)
        reserve(_MEMORY * len(body))
        return _carefully(body)
    if len(body) > most_values:
        check_values(body, most_values)
    value = _compact(body)
    return _carefully(body) if value is UNSET else value


def _carefully(body: bytes) -> Any:
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        # Few brackets cannot nest deep: most documents need no walk.
        if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
            _check_depth(value)
        # Only an escape can smuggle in half of a surrogate pair.
        if b"\\ud" in body or b"\\uD" in body:
            _check_texts(value)
    except RecursionError:
        raise ParseFailed(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError:
        # Covers malformed text, bad UTF-8 and lone surrogates; the details are of no use outside.
        raise ParseFailed from None
    return value


def _compact(body: bytes) -> Any:
    """Return the value of a small document that is beyond doubt, in a fraction of the time.

    Text that is exactly what we would write ourselves has no duplicate members, no odd numbers and
    no bad characters; with few brackets and few members it breaks no limit either.
    """
    if (
        body.count(b"{") + body.count(b"[") > MAX_DEPTH
        or body.count(b":") > MAX_MEMBERS
        or _LONG_NUMBER in body.translate(_AS_DIGITS)
    ):
        return UNSET
    try:
        value = _read(body)
        return value if _write(value) == body else UNSET
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError, ValueError):
        return UNSET


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseFailed("an object has a member twice")
    if len(pairs) > MAX_MEMBERS:
        raise ParseFailed(f"an object has more than {MAX_MEMBERS} members")
    return members


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_LENGTH:
        raise ParseFailed(f"a number is longer than {MAX_NUMBER_LENGTH} characters")
    return int(text)


def _fraction(text: str) -> float:
    if len(text) > MAX_NUMBER_LENGTH or not math.isfinite(value := float(text)):
        raise ParseFailed("a number is too long or too large")
    return value


def _constant(text: str) -> NoReturn:
    raise ParseFailed(f"{text} is not JSON")


def _check_depth(value: Any) -> None:
    for depth, level in enumerate(_levels(value)):
        if depth >= MAX_DEPTH and any(isinstance(item, dict | list) for item in level):
            raise ParseFailed(f"nested deeper than {MAX_DEPTH}")


def _check_texts(value: Any) -> None:
    """Raise `ValueError` for a text that has half of a surrogate pair."""
    for level in _levels(value):
        for item in level:
            if isinstance(item, str):
                item.encode()
            elif isinstance(item, dict):
                for name in cast("dict[str, Any]", item):
                    name.encode()


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values that are as deep as each other, the outermost first."""
    level = [value]
    while level:
        yield level
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
        level = below


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)
