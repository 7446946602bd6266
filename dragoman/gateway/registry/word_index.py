"""An inverted index: a word, a tag or a skill leads to the places of the agents that have it.

A place is a bit of an integer, so that sets of thousands are intersected and united at once. A key
that few agents have is a list of places instead: so the index grows with the texts, not with the
number of agents times that of words.
"""

from collections.abc import Collection, Iterable
from itertools import chain

# A key that more agents have than this number, and than this part of all agents, is a set of bits.
_FEW, _PART = 32, 256
# With a hit in more than one of this many keys, a pass over all texts is faster than going from hit
# to hit.
_DENSE = 16
# Digits of a number in base two, as they are written, and as yes and no.
_DIGITS = bytes.maketrans(b"01", b"\x00\x01")
_NO, _YES = b"01"


class WordIndex:
    """The places of the agents that have a key."""

    def __init__(self) -> None:
        self._few: dict[str, list[int]] = {}
        self._many: dict[str, int] = {}

    def add(self, keys: Collection[str], place: int) -> None:
        """Add the keys of a place."""
        for key in keys:
            if key in self._many:
                self._many[key] |= 1 << place
            elif key in self._few:
                self._few[key].append(place)
            else:
                self._few[key] = [place]

    def drop(self, keys: Collection[str], place: int) -> None:
        """Remove the keys of a place."""
        for key in keys:
            if key in self._many:
                self._many[key] ^= 1 << place
                if not self._many[key]:
                    del self._many[key]
            else:
                self._few[key].remove(place)
                if not self._few[key]:
                    del self._few[key]

    def settle(self, keys: Collection[str], place: int, size: int) -> None:
        """After adding: turn keys of a place that many of `size` places have into sets."""
        most = max(_FEW, size // _PART)
        for key in keys:
            if len(having := self._few.get(key, ())) > most:
                self._many[key] = _bits(having, size)
                del self._few[key]

    def any(self, keys: Iterable[str], size: int) -> int:
        """Return the places that have one of these keys."""
        found, few = 0, list[list[int]]()
        for key in keys:
            if key in self._many:
                found |= self._many[key]
            elif key in self._few:
                few.append(self._few[key])
        return found | _bits(chain.from_iterable(few), size) if few else found


class Words(WordIndex):
    """Keys that are found by a part of them, too."""

    def __init__(self) -> None:
        super().__init__()
        # What few have, one a line: all of it, None if it changed since; and that of each place.
        self._text: str | None = None
        self._texts: list[str] = []

    def drop(self, keys: Collection[str], place: int) -> None:
        """Remove the keys of a place."""
        super().drop(keys, place)
        self._text, self._texts[place] = None, ""

    def settle(self, keys: Collection[str], place: int, size: int) -> None:
        """After adding: turn keys of a place that many of `size` places have into sets."""
        super().settle(keys, place, size)
        self._text = None
        self._texts += [""] * (size - len(self._texts))
        self._texts[place] = "\n".join(key for key in keys if key in self._few)

    def within(self, part: str, size: int, everywhere: int) -> int:
        """Return the places that have a key with this in it; all places are `everywhere`."""
        found = self._many.get(part, 0)
        if found != everywhere:
            for having in [having for key, having in self._many.items() if part in key]:
                found |= having
        return found if found == everywhere else found | self._within_few(part, size)

    def _within_few(self, part: str, size: int) -> int:
        if self._text is None:
            self._text = "\n".join(["", *self._few, ""])
        text = self._text
        hits = text.count(part)
        if hits * _DENSE > len(self._few):
            # Last first: so digits are written.
            texts = reversed(self._texts)
            return int(bytes([_YES if part in text else _NO for text in texts]), 2)
        found, at = list[list[int]](), 0
        while hits and (at := text.find(part, at)) >= 0:
            end = text.index("\n", at)
            found.append(self._few[text[text.rindex("\n", 0, at + 1) + 1 : end]])
            at = end
        return _bits(chain.from_iterable(found), size)


def _bits(places: Iterable[int], size: int) -> int:
    """Return a set of places, all below `size`."""
    digits = bytearray(b"0") * size
    for place in places:
        # The first place is the last digit.
        digits[~place] = _YES
    return int(digits, 2)


def flags(found: int, size: int) -> bytes:
    """Return for each place whether it is in a set: one or zero."""
    return f"{found:0{size}b}".encode().translate(_DIGITS)[::-1]


def members(found: int) -> list[int]:
    """Return the places that are in a small set."""
    digits, places, at = f"{found:b}"[::-1], list[int](), -1
    while (at := digits.find("1", at + 1)) >= 0:
        places.append(at)
    return places
