"""Regular expressions that are compiled when they are first used: compiling them all takes as long
as importing a twentieth of a server. And control characters: those that terminals interpret, that
change the direction of text, or that some programs take for the end of a line."""

import re
from typing import Any, AnyStr, cast


class _LatePattern:
    """Has the methods of a pattern, each from when it is first used."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is not compiled yet."""
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))


# C1 and DEL; marks, embeddings, overrides and isolates of direction; the separators of lines and
# paragraphs; halves of characters.
_HIGH = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# With C0.
CONTROLS = late_pattern(f"[\x00-\x1f{_HIGH}]")
# Without tabs and newlines.
CONTROLS_BUT_LAYOUT = late_pattern(f"[\x00-\x08\x0b-\x1f{_HIGH}]")
_HIGH_ONLY = late_pattern(f"[{_HIGH}]")


def json_escaped(text: str) -> str:
    """Return equivalent JSON without control characters: C0 controls are always escaped in JSON,
    and the others occur in strings only."""
    return _HIGH_ONLY.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
