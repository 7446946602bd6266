"""Why a store cannot be opened: one sentence for each reason, whichever command opens it.

A sentence names the file, says what is wrong with it and what to do. Everything here is a
`ConfigError`; nothing is made or changed.
"""

import errno
import os
import shlex
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from dragoman.errors import ConfigError

_FULL = "the disk is full; make room and start again"
_ANOTHER = "name another file by --store"
# In bytes, of 255 that file systems have: the files beside it have longer names.
_LONGEST_NAME = 230
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_HAS_OWN_RIGHTS = os.access in os.supports_effective_ids


def absolute(path: str | Path) -> Path:
    """Return a path that stays the same wherever the process goes."""
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r}: no file has such a name; {_ANOTHER}")
    try:
        return Path(os.path.abspath(path))
    except OSError:
        raise ConfigError(
            f"{path}: the current folder is gone; name the store by its whole path"
        ) from None


def check_path(path: Path) -> os.stat_result | None:
    """Return what is at a path, None if nothing is; refuse what can be no store."""
    path = absolute(path)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ConfigError(f"{path}: the name is too long for the files beside it; {_ANOTHER}")
    try:
        found = path.stat()
    except FileNotFoundError:
        _check_absence(path)
        return None
    except NotADirectoryError:
        raise ConfigError(
            f"{path}: leads through a file as if it were a folder; {_ANOTHER}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used ({error.strerror}); {_ANOTHER}") from None
    if stat.S_ISDIR(found.st_mode):
        inside = path / "tasks.db"
        raise ConfigError(
            f"{path}: is a folder; name a file in it: --store {inside}",
            remedy=f"--store {shlex.quote(str(inside))}",
        )
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise ConfigError(f"{path}: is {kind}; {_ANOTHER}")
    return found


def _check_absence(path: Path) -> None:
    """Refuse a path where no file can be made."""
    if path.is_symlink():
        target = os.readlink(path)
        raise ConfigError(
            f"{path}: is a link to {target}, which is not there; put that file back, or {_ANOTHER}"
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path}: there is no folder {path.parent}; mount or make it, or {_ANOTHER}",
            remedy=f"mkdir -p {shlex.quote(str(path.parent))}",
        )


def check_present(path: Path) -> None:
    """Refuse a path without a file: no server ever ran on it."""
    if not path.parent.is_dir() or check_path(path) is None:
        raise ConfigError(
            f"{path}: there is no such file; name the store by --store, or start a server, which "
            "makes it",
            remedy="dragoman up",
        )


def check_writable(path: Path) -> None:
    """Refuse a file, or a place for one, that this process may not write."""
    folder = Path(os.path.realpath(path)).parent
    if _is_read_only(folder):
        raise ConfigError(
            f"{path}: its file system is read-only; mount it for writing, or {_ANOTHER}"
        )
    if not _may_write(folder):
        raise ConfigError(
            f"{path}: the folder {folder} cannot be written, where a store keeps its log; give "
            f"this user the right to, or {_ANOTHER}"
        )
    if path.exists() and not _may_write(path):
        raise ConfigError(
            f"{path}: cannot be written; give this user the right to (chmod u+w), or {_ANOTHER}"
        )


def _may_write(path: Path) -> bool:
    rights = os.W_OK | os.R_OK
    return os.access(path, rights, effective_ids=_HAS_OWN_RIGHTS)


def _is_read_only(folder: Path) -> bool:
    if not hasattr(os, "statvfs"):
        return False
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def of_another(path: str | Path) -> str:
    """Say that a file is a database, but none of ours."""
    return f"{path}: is the database of another program; {_ANOTHER}"


def later(path: str | Path, schema: int) -> str:
    """Say that a file is too new for us."""
    return (
        f"{path}: was written by a later release (schema {schema}); use that release, or restore a "
        "backup from before it"
    )


def no_store(path: str | Path) -> str:
    """Say that a database is not a store, where nothing is made into one."""
    return f"{path}: is not a store of tasks; {_ANOTHER}"


def without_log(path: str | Path) -> str:
    """Say that to open a file would damage it."""
    return (
        f"{path}: a server has it open whose log ({path}-wal or {path}-shm) was deleted; stop "
        "every server on it, then start again"
    )


@contextmanager
def explaining(path: str | Path) -> Generator[None]:
    """Say in our words why a file cannot be used."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise ConfigError(f"{path}: {_reason(Path(path), error)}") from None


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, apsw.FullError) or getattr(error, "errno", None) == errno.ENOSPC:
        return _FULL
    if isinstance(error, OSError):
        name = f" {error.filename}" if error.filename not in (None, str(path)) else ""
        return f"cannot be used{name and f', as{name} cannot'} ({error.strerror}); {_ANOTHER}"
    if isinstance(error, apsw.NotADBError):
        return f"is not a SQLite database; {_ANOTHER}, or restore a backup"
    if isinstance(error, apsw.CorruptError):
        return "is damaged; restore a backup (`dragoman doctor` says more)"
    if isinstance(error, apsw.ReadOnlyError):
        return f"cannot be written, or a file beside it; give this user the right to, or {_ANOTHER}"
    if _is_full(path):
        return _FULL
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return "another program holds it; end that one, then start again"
    if isinstance(error, apsw.CantOpenError):
        return "cannot be opened, or a file beside it; look at the rights of the files and folder"
    if isinstance(error, apsw.IOError):
        return f"the disk reports an error ({error}); look at the disk before you start again"
    return f"cannot be used ({error}); {_ANOTHER}"


def _is_full(path: Path) -> bool:
    """Tell whether there is no space: SQLite calls a log without room an error of the disk."""
    if not hasattr(os, "statvfs"):
        return False
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
