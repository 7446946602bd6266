"""Compares two answers: what they are made of, and how far their contents are apart. Pure, and in
time linear in what is looked at: an answer may be made to be slow to compare.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.model.message import Json, Part
from dragoman.model.task import Task

# Characters of an answer that are compared, and how deep and wide data is looked at.
LONGEST = 32 * 1024
_DEEPEST = 12
_MOST_MEMBERS = 200
_canonical = msgspec.json.Encoder(order="deterministic").encode


class AnswerDifference(msgspec.Struct, frozen=True):
    """How two answers differ."""

    # Whether both are made of the same: artifacts, kinds of parts, members and types of data.
    same_structure: bool
    # Of what they say: 0 is the same, 1 has nothing in common.
    distance: float


def compare(before: Task, after: Task) -> AnswerDifference:
    """Return how the answer of a new version differs from that of the old one."""
    return AnswerDifference(
        _structure(before) == _structure(after), distance(content(before), content(after))
    )


def answer_parts(task: Task) -> list[list[Part]]:
    """Return what a task answered: the parts of each artifact, or of its last message."""
    found = [artifact.parts for artifact in task.artifacts]
    message = task.status.message
    return found or ([message.parts] if message is not None else [])


def content(task: Task) -> str:
    """Return what a task answered as a text, up to what is compared."""
    pieces: list[str] = []
    left = LONGEST
    for part in (part for parts in answer_parts(task) for part in parts):
        piece = _text(part)[:left]
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            break
    return "\n".join(pieces)


def distance(before: str, after: str) -> float:
    """Return how far two texts are apart, from 0 to 1: by the runs of three characters that both
    have (Dice)."""
    if before == after:
        return 0.0
    one, other = _runs(before), _runs(after)
    both = sum((one & other).values())
    return round(1 - 2 * both / (one.total() + other.total()), 4)


def _runs(text: str) -> Counter[str]:
    padded = f"\0\0{text}\0\0"
    return Counter(padded[at : at + 3] for at in range(len(padded) - 2))


def _text(part: Part) -> str:
    if isinstance(part.text, str):
        return part.text
    if isinstance(part.raw, bytes):
        return hashlib.sha256(part.raw).hexdigest()
    if isinstance(part.url, str):
        return part.url
    return _canonical(part.data).decode()


def _structure(task: Task) -> Any:
    return [_kinds(parts) for parts in answer_parts(task)]


def _kinds(parts: Iterable[Part]) -> list[Any]:
    """Return the kinds of parts. Texts that follow each other are one: how an agent cuts its words
    says nothing."""
    found: list[Any] = []
    for part in parts:
        is_text = isinstance(part.text, str)
        kind: Any = "text" if is_text else part.type
        if part.data is not UNSET:
            kind = _shape(part.data, 0)
        if not (is_text and found and found[-1] == "text"):
            found.append(kind)
    return found


def _shape(value: Json, depth: int) -> Any:
    """Return the members and types of data; of a list, those that its items have."""
    if depth > _DEEPEST:
        return "deep"
    if isinstance(value, Mapping):
        members = list(cast("Mapping[str, Json]", value).items())[:_MOST_MEMBERS]
        return {name: _shape(one, depth + 1) for name, one in members}
    if isinstance(value, list):
        items = cast("list[Json]", value)[:_MOST_MEMBERS]
        shapes = {_canonical(_shape(one, depth + 1)) for one in items}
        return sorted(shape.decode() for shape in shapes)
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    # 1 and 1.0 are one kind of number in JSON.
    return "number" if isinstance(value, int | float) else "string"
