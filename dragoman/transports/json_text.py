"""Untrusted JSON text to plain values, more strictly than the standard library.

Refused: anything but UTF-8, a byte order mark, duplicate members, NaN and infinities, numbers that
are too long, lone surrogates, and documents that are nested too deep or objects that are too wide.
"""

import json
import math
import re
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET

from dragoman.errors import ParseFailed

MAX_DEPTH = 64
MAX_MEMBERS = 1_000
MAX_NUMBER_LENGTH = 64
_LONG_NUMBER = re.compile(rb"-[0-9]{64}|[0-9]{65}")
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def parse(body: bytes) -> Any:
    """Return the value of a document; raises `ParseFailed`."""
    value = _compact(body)
    if value is not UNSET:
        return value
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        # Few brackets cannot nest deep: most documents need no walk.
        if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
            _check_depth(value)
        # Only an escape can smuggle in half of a surrogate pair.
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ParseFailed(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError:
        # Covers malformed text, bad UTF-8 and lone surrogates; the details are of no use outside.
        raise ParseFailed from None
    return value


def _compact(body: bytes) -> Any:
    """Return the value of a document that is beyond doubt, in a fraction of the time.

    Text that is exactly what we would write ourselves has no duplicate members, no odd numbers and
    no bad characters; with few brackets and few members it breaks no limit either.
    """
    if (
        body.count(b"{") + body.count(b"[") > MAX_DEPTH
        or body.count(b":") > MAX_MEMBERS
        or _LONG_NUMBER.search(body)
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
    value = float(text)
    if len(text) > MAX_NUMBER_LENGTH or not math.isfinite(value):
        raise ParseFailed("a number is too long or too large")
    return value


def _constant(text: str) -> NoReturn:
    raise ParseFailed(f"{text} is not JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    depth = 0
    while any(isinstance(item, dict | list) for item in level):
        depth += 1
        if depth > MAX_DEPTH:
            raise ParseFailed(f"nested deeper than {MAX_DEPTH}")
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
