"""Control characters: those that terminals interpret, that change the direction of text, or that
some programs take for the end of a line."""

import re

# C1 and DEL; marks, embeddings, overrides and isolates of direction; the separators of lines and
# paragraphs; halves of characters.
_HIGH = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# With C0.
ALL = re.compile(f"[\x00-\x1f{_HIGH}]")
# Without tabs and newlines.
BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{_HIGH}]")
_HIGH_ONLY = re.compile(f"[{_HIGH}]")


def json_escaped(text: str) -> str:
    """Return equivalent JSON without control characters: C0 controls are always escaped in JSON,
    and the others occur in strings only."""
    return _HIGH_ONLY.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
