"""How many values are in a JSON text, and how deep they are, counted before any of them is made.

A value takes up to a hundred times the bytes that it has in the text, so the length of a text says
little about what it costs. How deep a reader goes depends on the release of Python: 990 levels in
3.11, 65,000 in 3.14, where a function of ours that calls itself for each level would fail. Whether
the text is JSON at all is not looked at: a reader that stops at a mistake has made no more values
than were counted before it.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.errors import ParseFailed

# Values of one document, and names of members, where no setting says otherwise.
MAX_VALUES = 200_000
# Levels of one document. Messages have fewer; an answer of a gateway has them inside of others.
_MAX_LEVELS = 128
# What is looked at in one call: the interpreter does nothing else meanwhile, in any thread.
_SLICE_BYTES = 256 * 1024
SPACE = b" \t\r\n"
# Arrays and objects alike, and what is neither.
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
# What begins another value, or the name of a member.
_STARTS = (b",", b"[", b"{", b":")
_STRUCTURE = b',[]{}:"'
# What is no structure, as one and the same.
_AS_SCALARS = bytes(byte if byte in _STRUCTURE else ord("v") for byte in range(256))
# Every digit as one and the same, so that a long number is found as a plain text.
AS_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)


def check_document(body: bytes) -> None:
    """Raise `ParseFailed` for a text that has more values than a message may have, or is nested too
    deep: for readers that do not look at what they made."""
    check_values(body)
    check_levels(body)


def check_values(body: bytes, most: int = MAX_VALUES) -> None:
    """Raise `ParseFailed` for a text that has more values than are allowed, names of members among
    them."""
    # Each takes a byte, so most texts need no look.
    if len(body) <= most:
        return
    # Those in strings included, which is quickly counted.
    if sum(body.count(start) for start in _STARTS) < most:
        return
    count, last = 1, b""
    for outside in _outline(body):
        joined = last + outside
        count += sum(outside.count(start) for start in _STARTS)
        # A pair of brackets with nothing in it has no first value.
        count -= joined.count(b"[]") + joined.count(b"{}")
        last = joined[-1:]
        # Of a bracket at the end of a slice the next one tells whether it has a first value.
        if count > most + 1:
            break
    if count > most:
        raise ParseFailed(f"more than {most} values")


def check_levels(body: bytes) -> None:
    """Raise `ParseFailed` for a text whose values are too deep, or whose brackets are not in pairs
    and too many."""
    # Those in strings included, which is quickly counted.
    if body.count(b"[") + body.count(b"{") <= _MAX_LEVELS:
        return
    left = b"".join(outside.translate(_AS_BRACKETS, _NO_BRACKETS) for outside in _outline(body))
    for _ in range(_MAX_LEVELS):
        # The innermost level of each part.
        left, before = left.replace(b"[]", b""), left
        if len(left) == len(before):
            break
    if left:
        raise ParseFailed(f"nested deeper than {_MAX_LEVELS}")


def value_in_text(text: str) -> Any:
    """Return the value that a text is, where a person wrote it as JSON; the text itself if it is
    none, has more values than a message may have, or is nested too deep."""
    try:
        check_document(text.encode())
        return msgspec.json.decode(text)
    except (ParseFailed, msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def has_names(body: bytes, count: int) -> bool:
    """Tell whether a text that is JSON has so many names of members."""
    # Those of strings included, which is quickly counted: most texts have none there.
    return body.count(b":") == count or sum(one.count(b":") for one in _outline(body)) == count


def has_long_number(body: bytes, longest: int) -> bool:
    """Tell whether a text that is JSON has a number of more characters."""
    # Of a long number the whole part, the fraction or the exponent is long.
    digits = b"0" * (longest // 4)
    slices = range(0, len(body), _SLICE_BYTES)
    if not any(digits in body[n : n + _SLICE_BYTES + longest].translate(AS_DIGITS) for n in slices):
        return False
    run, last = b"v" * (longest + 1), b""
    for outside in _outline(body):
        joined = last + outside
        if run in joined:
            return True
        last = joined[-longest:]
    return False


def _outline(body: bytes) -> Iterator[bytes]:
    """Yield what is left of each slice of a text: its structure, and a letter for each character of
    its numbers and words, and for each string."""
    begin, is_inside = 0, False
    while begin < len(body):
        end = begin + _SLICE_BYTES
        piece = body[begin:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The last backslash escapes what follows it.
            end += 1
            piece = body[begin:end]
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = plain.translate(_AS_SCALARS, SPACE).split(b'"')
        # Where a string was, of whatever slice, there is a value.
        yield b"v".join([b"", *pieces[1::2]] if is_inside else pieces[::2])
        is_inside ^= len(pieces) % 2 == 0
        begin = end
