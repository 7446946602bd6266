"""What a store that was here left behind: signs that a missing or empty file is no beginning.

A store's file has something in it before any file beside it is made, so one of these beside an
empty file means that the file was lost. A new one takes its place only if the operator says so.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.stores.sqlite.files.opening import check_path

try:
    import fcntl
except ImportError:  # no such locks on this system: no process is known to live
    fcntl = None

_LOGS = ("-wal", "-shm")
_WORKER = ".worker-"
# The audit log is none: `dragoman keys` makes one before there is a store.
_SIGNS = (*_LOGS, ".lock", ".key")


def check_leftovers(path: Path, *, is_new: bool = False) -> None:
    """Refuse a file that is gone or empty while others tell that a store was here.

    `is_new`: the operator wants an empty store all the same; a log is then set aside.
    """
    check_path(path)
    # Before the file: they are made after it, so a store that begins just now is not refused.
    found = leftovers(path)
    at = check_path(path)
    if not found or (at is not None and at.st_size):
        return
    if is_served(path):
        raise ConfigError(
            f"{path}: is gone, and a server that had it open still runs; stop every server on it, "
            "then restore a backup"
        )
    if not is_new:
        what = "is gone" if at is None else "is empty"
        raise ConfigError(
            f"{path}: {what}, but a store was here ({', '.join(found)}); put the file back or copy "
            "a backup to this name, or begin anew without its tasks (dragoman serve --new-store)"
        )
    _set_aside(path)


def leftovers(path: Path) -> list[str]:
    """Return the names of files that a store left beside its own."""
    real = Path(os.path.realpath(path))
    beside = [f"{real.name}{end}" for end in _SIGNS if Path(f"{real}{end}").exists()]
    return beside + sorted(file.name for file in _worker_files(real))


def is_served(path: Path) -> bool:
    """Tell whether a process that opened the store is alive for certain."""
    return any(_is_held(file) for file in _worker_files(Path(os.path.realpath(path))))


def is_served_without_log(path: Path) -> bool:
    """Tell whether a log was taken from a process that still writes it."""
    real = os.path.realpath(path)
    return is_served(path) and not all(os.path.exists(f"{real}{end}") for end in _LOGS)


def _worker_files(real: Path) -> list[Path]:
    prefix = f"{real.name}{_WORKER}"
    try:
        names = os.listdir(real.parent)
    except OSError:
        return []
    return [
        real.parent / name
        for name in names
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    ]


def _is_held(file: Path) -> bool:
    if fcntl is None:
        return False
    try:
        lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _set_aside(path: Path) -> None:
    """Rename the log of the store that was here: SQLite would take it for the new one's."""
    real = os.path.realpath(path)
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for end in _LOGS:
        if os.path.exists(f"{real}{end}"):
            os.rename(f"{real}{end}", f"{real}{end}.old-{at}")
