"""How much of an artifact was shown: all of it or, of a large one, only a digest.

A digest is as good as the parts for telling what of a peer's artifact is new, and takes no memory.
"""

import hashlib
from collections.abc import Sequence
from typing import Self

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.message import Part
from dragoman.model.record import encode


class _Digest:
    """Parts that are not held: how many, how much text, and what tells them from others. Of texts
    it does not matter where one part ends, since some peers join them."""

    def __init__(self) -> None:
        self.count = 0
        # Characters of text.
        self.length = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.count += 1
            if isinstance(part.text, str):
                self.length += len(part.text)
                self._hash.update(part.text.encode("utf-8", "surrogatepass"))
            else:
                self._hash.update(b"\0" + encode(part) + b"\0")

    def copy(self) -> "_Digest":
        other = _Digest()
        other.count, other.length, other._hash = self.count, self.length, self._hash.copy()
        return other

    def after(self, parts: list[Part]) -> list[Part] | None:
        if self._is_of(parts[: self.count]):
            return parts[self.count :]
        text = text_of(parts)
        if text is None or not self._is_of([Part(text=text[: self.length])]):
            return None
        rest = text[self.length :]
        return [Part(text=rest)] if rest else []

    def _is_of(self, parts: list[Part]) -> bool:
        same = _Digest()
        same.add(parts)
        return (same.length, same._hash.digest()) == (self.length, self._hash.digest())

    def is_longer_than(self, parts: list[Part]) -> bool:
        text = text_of(parts)
        return self.count > len(parts) if text is None else self.length > len(text)


class Extent:
    """One artifact as far as it was shown."""

    def __init__(self, artifact: Artifact, *, is_light: bool = False) -> None:
        self.artifact = msgspec.structs.replace(artifact, parts=[])
        # Empty once only the digest is left.
        self.parts = list(artifact.parts)
        self._digest: _Digest | None = None
        if is_light:
            self.lighten()

    def copy(self) -> Self:
        """Return another that goes its own way."""
        other = type(self)(self.artifact)
        other.parts = list(self.parts)
        other._digest = None if self._digest is None else self._digest.copy()
        return other

    def lighten(self) -> None:
        """Let go of the contents."""
        if self._digest is None:
            self._digest = _Digest()
            self._digest.add(self.parts)
            self.parts = []

    def extend(self, parts: Sequence[Part]) -> None:
        """Add what is shown."""
        if self._digest is None:
            self.parts.extend(parts)
        else:
            self._digest.add(parts)

    def after(self, parts: list[Part]) -> list[Part] | None:
        """Return what parts hold beyond those shown; None if they do not begin with them."""
        return _after(self.parts, parts) if self._digest is None else self._digest.after(parts)

    def is_ahead_of(self, parts: list[Part]) -> bool:
        """Tell whether more was shown than these parts, and they are the beginning of it; where
        only a digest is left, whether it was more."""
        if self.after(parts) is not None:
            return False
        if self._digest is not None:
            return self._digest.is_longer_than(parts)
        return bool(_after(parts, self.parts))


def _after(shown: list[Part], parts: list[Part]) -> list[Part] | None:
    """Return what parts hold beyond those shown; None if they do not begin with them.

    Some peers join the text of chunks, so that one part holds what came as many.
    """
    if parts[: len(shown)] == shown:
        return parts[len(shown) :]
    before, after = text_of(shown), text_of(parts)
    if before is None or after is None or not after.startswith(before):
        return None
    rest = after[len(before) :]
    return [Part(text=rest)] if rest else []


def text_of(parts: list[Part]) -> str | None:
    """Return the text of parts; None if they are not all text."""
    texts = [part.text for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if len(found) == len(texts) else None


def weight(parts: Sequence[Part]) -> int:
    """Return about how much memory parts take."""
    size = 0
    for part in parts:
        if isinstance(part.text, str):
            size += len(part.text)
        elif isinstance(part.raw, bytes):
            size += len(part.raw)
        else:
            size += len(encode(part))
    return size + _PART_BYTES * len(parts)


# What a part takes besides what it says.
_PART_BYTES = 200
