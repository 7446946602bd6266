"""Files that others must not see, change or find half written.

A change is written beside the file and takes its place only once it is on the disk.
"""

import os
from pathlib import Path

from dragoman.errors import ConfigError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where one process at a time is the user's duty
    fcntl = None

_HAS_MODES = hasattr(os, "geteuid")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def beside(path: Path, ending: str) -> Path:
    """Return the file that has another's name and an ending."""
    return path.with_name(path.name + ending)


def replace(path: Path, body: bytes) -> None:
    """Put a file in place of another, whole or not at all. For a single writer: the
    draft has always the same name, so that a change that was cut off leaves no litter."""
    draft = write_draft(path, ".new", body)
    os.replace(draft, path)
    sync_folder(path.parent)


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file to write, made for its owner alone; never through a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | flags, 0o600)


def write_draft(path: Path, ending: str, body: bytes) -> Path:
    """Write what is to become a file, for its owner alone, and have it on the disk."""
    draft = beside(path, ending)
    file = open_private(draft, os.O_TRUNC)
    with os.fdopen(file, "wb") as stream:
        if hasattr(os, "fchmod"):
            os.fchmod(file, 0o600)
        hand_over(file, path)
        stream.write(body)
        stream.flush()
        os.fsync(file)
    return draft


def hand_over(file: int, path: Path) -> None:
    """As the administrator, give a file to the owner of another file or of its folder: the server
    that reads it is another user."""
    if _HAS_MODES and os.geteuid() == 0:
        found = os.stat(path if path.exists() else path.parent)
        os.fchown(file, found.st_uid, found.st_gid)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: without its name a file is lost in a power cut."""
    if os.name == "nt":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_mode(path: Path, mode: int, forbidden: int = 0o077) -> None:
    """Refuse a file on which others have rights that they must not have."""
    if _HAS_MODES and mode & forbidden:
        verb = "read" if mode & forbidden & 0o044 else "change"
        raise ConfigError(f"{path}: others may {verb} it; chmod 600 {path}")


def lock(file: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Take the lock of a file, which ends when the file is closed; False: another has it."""
    if fcntl is not None:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
