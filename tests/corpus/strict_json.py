"""What legal JSON text is for us, written independently of the server's parser.

The generators use it to prove that a mutated text is really illegal before they expect a refusal.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_NUMBER = 64

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STRUCTURE = re.compile(r"[\[\]{}]")


def is_legal(body: bytes) -> bool:
    """Say whether the bytes are one JSON value within our limits of depth and number length."""
    try:
        text = body.decode("utf-8")
        if text.startswith("\ufeff") or _depth(text) > MAX_DEPTH:
            return False
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_int=_integer,
            parse_float=_real,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return False
    return True


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _STRUCTURE.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            break
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER:
        raise ValueError("number too long")
    return int(digits)


def _real(digits: str) -> str:
    # Kept as text: the value may be beyond a double, which is another matter than its legality.
    if len(digits) > MAX_NUMBER:
        raise ValueError("number too long")
    return digits
