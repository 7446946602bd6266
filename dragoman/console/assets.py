"""Styles and modules of the console: read once, compressed once, and cached by browsers for good.

Their folder has a digest of all of them in its name, so that modules that import each other are
always of one release.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "static"
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


class Asset(NamedTuple):
    """One file, plain and compressed."""

    kind: bytes
    plain: bytes
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files by name."""
    return {
        path.name: Asset(_KINDS[path.suffix], path.read_bytes(), gzip.compress(path.read_bytes()))
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _KINDS
    }


@cache
def digest() -> str:
    """Return what names this release's files."""
    found = hashlib.sha256()
    for name, asset in assets().items():
        found.update(name.encode() + b"\0" + asset.plain)
    return found.hexdigest()[:12]
