"""Replacements in the running product, by which a guard is removed from it for a while."""

from collections.abc import Callable
from typing import Any, cast


class Patches:
    """Replacements in the running product, and how to take them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by what is made of it; raises if there is none."""
        original = cast("dict[str, Any]", vars(owner))[name]
        self._before.append((owner, name, original))
        setattr(owner, name, make(original))

    def take_back(self) -> None:
        """Put everything back as it was."""
        while self._before:
            setattr(*self._before.pop())


Removal = Callable[[Patches], None]


def edited(text: str, old: str, new: str) -> str:
    """Return a text without what stood in it; raises if it did not."""
    if old not in text:
        raise LookupError(f"there is no {old!r} to remove")
    return text.replace(old, new)
