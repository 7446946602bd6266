"""What a downloaded file is called: a name of our own making, never a path from an agent."""

import mimetypes
import re
import unicodedata

_LONGEST = 200
_BAD = set(':*?"<>|')
# Names that Windows keeps for devices, whatever follows the first dot.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}
    | {f"{device}{number}" for device in ("com", "lpt") for number in "0123456789¹²³"}
)
# The usual names, where the system's table has several or none.
_ENDINGS = {
    "text/plain": ".txt",
    "text/markdown": ".md",
    "application/json": ".json",
    "image/jpeg": ".jpg",
    "application/octet-stream": ".bin",
}


def file_name(suggested: str, media_type: str) -> str:
    """Return one component that is safe everywhere; empty: nothing is left of the suggestion."""
    # Twice: composing characters may make one that is not wanted.
    name = _reduced(unicodedata.normalize("NFC", _reduced(suggested)))
    if not name:
        return ""
    if "." not in name:
        name = _short(name, _LONGEST - 16) + ending(media_type)
    stem = name.split(".")[0].strip()
    if stem.lower() in _DEVICES:
        name = f"_{name}"
    return _short(name, _LONGEST)


def _reduced(text: str) -> str:
    last = re.split(r"[/\\]", text)[-1]
    safe = "".join(
        c
        for c in last
        if unicodedata.category(c)[0] != "C" and c not in _BAD and c not in "\u2028\u2029"
    )
    return safe.lstrip(". ").rstrip(". ")


def ending(media_type: str) -> str:
    """Return the extension of a media type."""
    plain = media_type.split(";")[0].strip().lower()
    return _ENDINGS.get(plain) or mimetypes.guess_extension(plain, strict=False) or ""


def _short(name: str, most: int) -> str:
    """Return a name of at most so many bytes that keeps its extension."""
    if len(name.encode()) <= most:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = f"{dot}{extension}" if dot and stem and len(extension.encode()) < 20 else ""
    head = (stem if tail else name).encode()[: most - len(tail.encode())]
    return head.decode("utf-8", "ignore").rstrip(". ") + tail


def numbered(name: str, number: int) -> str:
    """Return the name of the second, third and so on of that name."""
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem:
        return f"{_short(name, _LONGEST - 8)}-{number}"
    return f"{_short(stem, _LONGEST - 8 - len(extension.encode()))}-{number}.{extension}"
