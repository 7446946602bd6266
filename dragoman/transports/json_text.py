"""Untrusted JSON text to plain values, more strictly than the standard library.

Refused: anything but UTF-8, a byte order mark, duplicate members, NaN and infinities, numbers that
are too long, lone surrogates, documents that are nested too deep or have too many values, and
objects that are too wide. Values are counted before any of them is made: one takes up to a hundred
times the bytes that it has in the text.
"""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.errors import ParseFailed
from dragoman.security.json_values import (
    AS_DIGITS,
    MAX_VALUES,
    SPACE,
    check_values,
    has_long_number,
    has_names,
)
from dragoman.service import off_loop, reserve

MAX_DEPTH = 64
MAX_MEMBERS = 1_000
MAX_NUMBER_LENGTH = 64
# Larger documents are read in a thread, so that one of them does not hold up all other callers.
READ_IN_LINE_BYTES = 64 * 1024
# Bytes that a large document takes for each of its own: a text with one rare character takes four
# for each, and is there twice.
_MEMORY = 9
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
    size = len(body)
    if size <= most_values and size <= READ_IN_LINE_BYTES:
        if (value := _compact(body)) is not UNSET:
            return value
    else:
        check_values(body, most_values)
        if size > READ_IN_LINE_BYTES:
            reserve(_MEMORY * size)
    try:
        value = _read(body)
    except RecursionError:
        raise ParseFailed(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError:
        # Covers malformed text, bad UTF-8 and lone surrogates; the details are of no use outside.
        raise ParseFailed from None
    _check(value, body)
    return value


def _check(value: Any, body: bytes) -> None:
    """Raise `ParseFailed` for a document that breaks a limit, or has a member twice. The reader is
    one call that nothing can interrupt, so it is the fastest there is, and its work is looked at
    afterwards."""
    if has_long_number(body, MAX_NUMBER_LENGTH):
        raise ParseFailed(f"a number is longer than {MAX_NUMBER_LENGTH} characters")
    members = 0
    for depth, level in enumerate(_levels(value)):
        if depth >= MAX_DEPTH and any(isinstance(item, dict | list) for item in level):
            raise ParseFailed(f"nested deeper than {MAX_DEPTH}")
        for item in level:
            if isinstance(item, dict):
                found = len(cast("dict[str, Any]", item))
                if found > MAX_MEMBERS:
                    raise ParseFailed(f"an object has more than {MAX_MEMBERS} members")
                members += found
    if not has_names(body, members):
        raise ParseFailed("an object has a member twice")


def _compact(body: bytes) -> Any:
    """Return the value of a small document that is beyond doubt, in a fraction of the time.

    Text that is, but for space, what we would write ourselves has no duplicate members, no odd
    numbers and no bad characters; with few brackets and few members it breaks no limit either.
    """
    if (
        body.count(b"{") + body.count(b"[") > MAX_DEPTH
        or body.count(b":") > MAX_MEMBERS
        or _LONG_NUMBER in body.translate(AS_DIGITS)
    ):
        return UNSET
    try:
        value = _read(body)
        written = _write(value)
        # Also without the space in strings, which is as good.
        if written == body or written.translate(None, SPACE) == body.translate(None, SPACE):
            return value
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError, ValueError):
        pass
    return UNSET


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
