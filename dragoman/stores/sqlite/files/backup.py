"""A copy of a store's file, made while servers write to it.

The copy is the file at one moment: every write that was acknowledged before is in it, whole. It has
the original's keys and secret but none of its workers, so the process that opens it takes over what
is unfinished in good order. Nothing has the target's name before it is complete, checked and on
disk.
"""

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from dragoman.errors import ConfigError, StoreRefused, StoreUnavailable
from dragoman.stores.at_once import at_once
from dragoman.stores.sqlite.files.generations import renew_generation
from dragoman.stores.sqlite.inspection import Inspection, open_to_read
from dragoman.stores.sqlite.schema import queries, run, transaction

# Copied between two calls of `progress`.
_PAGES = 2048

# As if every worker had left in good order: no task has lost an attempt.
_RELEASE = ("release_workers", "release_tasks", "release_pushes")
_SQL = queries("files/files.sql")

Progress = Callable[[int, int], None]


class Copy(NamedTuple):
    """What was made."""

    path: Path
    size: int
    tasks: int
    # The process that opens the copy goes on with these.
    unfinished: int


def back_up(
    source: Path, target: Path, *, force: bool = False, progress: Progress | None = None
) -> Copy:
    """Copy a store; `force` replaces an earlier copy.

    Raises ConfigError for a source or target that cannot be meant, StoreRefused if it went wrong;
    the target is then as it was.
    """
    _check_target(source, target, force=force)
    original = open_to_read(source)
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        _fill(part, original, progress)
        tasks, unfinished = _release(part)
        size = _sync(part)
        # Again: another process may have made it meanwhile.
        _check_target(source, target, force=force)
        part.replace(target)
        _sync(target.parent)
    except (apsw.Error, OSError) as error:
        raise StoreUnavailable(f"{target}: {error}") from error
    finally:
        original.close()
        for left in (part, *_beside(part)):
            with contextlib.suppress(OSError):
                left.unlink()
    return Copy(target, size, tasks, unfinished)


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    if not target.parent.is_dir():
        raise ConfigError(
            f"{target.parent}: there is no such folder",
            remedy=f"mkdir -p {shlex.quote(str(target.parent))}",
        )
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name a file")
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError(f"{target}: is the store itself")
    if target.exists() and not force:
        raise ConfigError(f"{target}: exists; --force replaces it", remedy="--force")
    # SQLite would take these for the copy's own and apply them to it.
    for found in _beside(target):
        if not found.name.endswith("-shm") and found.exists() and found.stat().st_size:
            raise ConfigError(f"{found}: exists, so {target.name} is in use or was not closed")


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


def _fill(part: Path, original: apsw.Connection, progress: Progress | None) -> None:
    copy = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # Half a copy is thrown away and a whole one is synced at the end.
        run(copy, "PRAGMA synchronous = off")
        run(copy, "PRAGMA journal_mode = off")
        # What is read from here on is of one moment, however long the copying takes; otherwise
        # each write of a server would make it begin again.
        run(original, "BEGIN")
        run(original, _SQL["tables"])
        with copy.backup("main", original, "main") as copying:
            while not copying.step(_PAGES):
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)
        run(original, "COMMIT")
    finally:
        copy.close()


def _release(part: Path) -> tuple[int, int]:
    """Take the workers out of a copy and check it; return how many tasks it has."""
    copy = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        look = Inspection(copy, part, lease=0)
        with transaction(copy):
            for name in _RELEASE if look.is_shared else ():
                run(copy, _SQL[name])
            # Another file than the original: the log of neither is for the other.
            renew_generation(copy)
        found = [str(line) for (line,) in run(copy, "PRAGMA integrity_check(5)")]
        if found != ["ok"]:
            raise StoreRefused(f"the copy is damaged, so the store may be: {found[0]}")
        # The file is to be whole by itself.
        run(copy, "PRAGMA wal_checkpoint(truncate)")
        unfinished = run(copy, _SQL["unfinished"])[0][0]
        return at_once(look.tasks()), int(unfinished)
    finally:
        copy.close()


def _sync(path: Path) -> int:
    """Have a file or a folder on disk; return its size."""
    if path.is_dir() and os.name == "nt":
        return 0
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        return os.fstat(file).st_size
    finally:
        os.close(file)
