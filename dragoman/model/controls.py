"""Characters that are obeyed instead of shown: by terminals, by what draws a line in the order of
its letters' direction, and by whatever takes more than a newline for the end of a line."""

import re

# C1 and DEL; marks, embeddings, overrides and isolates of direction; the separators of lines and
# paragraphs; halves of characters.
_HIGH = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# With C0.
ALL = re.compile(f"[\x00-\x1f{_HIGH}]")
# Where tabs and newlines are as they should be.
BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{_HIGH}]")
_HIGH_ONLY = re.compile(f"[{_HIGH}]")


def json_escaped(text: str) -> str:
    """Return JSON that means the same and has none of them: what is below a space has no place in
    JSON but as an escape, and the others stand in strings alone."""
    return _HIGH_ONLY.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
