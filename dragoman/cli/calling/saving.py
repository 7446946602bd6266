"""A file that a command writes where the user says: whole or not at all, and in place of another
only if that was asked for."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dragoman.cli.failures import usage


def save_whole(path: Path, content: bytes, force: bool) -> None:
    """Write a file that everybody may read."""
    if path.exists() and not force:
        raise usage(f"{path} exists; --force replaces it", remedy="--force")
    if not path.parent.is_dir():
        raise usage(f"{path.parent} is not a folder")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
