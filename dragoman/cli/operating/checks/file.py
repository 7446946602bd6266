"""What `dragoman doctor` looks at where the store is a SQLite file, and at the machine's SQLite."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.operating.checks.findings import (
    CheckedInstallation,
    CheckResult,
    count,
    ok,
    problem,
    warning,
)

if TYPE_CHECKING:
    # Heavy: loaded when a check needs it.
    from dragoman.stores.sqlite.inspection import Inspection

# Earlier ones may damage a file that several connections write (the WAL-reset bug).
_SQLITE = (3, 51, 3)
_PYTHON = (3, 11)
# SQLite's number for `synchronous=FULL`.
_FULL = 2
_LITTLE_SPACE = 512 * 1024 * 1024
_NO_SPACE = 32 * 1024 * 1024
# Reading a file of this size takes long enough to say so.
_LARGE = 512 * 1024 * 1024
_RESTORE = "stop the servers, keep a copy of the file, start from the last backup"


@contextmanager
def looking(subject: CheckedInstallation) -> "Generator[None]":
    """Look into the file; raises `ConfigError` where there is none, or none of ours."""
    from dragoman.stores.at_once import at_once
    from dragoman.stores.sqlite.inspection import inspecting

    with inspecting(subject.path, lease=subject.settings.engine.lease) as found:
        subject.open_inspection, subject.wait = found, at_once
        try:
            yield
        finally:
            subject.open_inspection = None


def _file(subject: CheckedInstallation) -> "Inspection":
    from dragoman.stores.sqlite.inspection import Inspection

    assert isinstance(subject.open_inspection, Inspection), "only for checks of a file"
    return subject.open_inspection


def is_shared(subject: CheckedInstallation) -> bool:
    """Tell whether the file knows of workers; one of an early release does not."""
    return _file(subject).is_shared


def is_present(subject: CheckedInstallation) -> bool:
    """Tell whether a server has nothing to migrate."""
    return _file(subject).is_present


def _install(subject: CheckedInstallation) -> CheckResult:
    import platform

    from dragoman.stores.sqlite.schema import library_versions

    driver, library = library_versions()
    about = f"Python {platform.python_version()}, apsw {driver}, SQLite {library}"
    if sys.version_info < _PYTHON:
        return problem(f"{about}: this Python is too old", "install Python 3.11 or later")
    if tuple(map(int, library.split(".")[:3])) < _SQLITE:
        least = ".".join(map(str, _SQLITE))
        return problem(
            f"{about}: SQLite before {least} can damage a store that is written from several sides",
            "pip install --upgrade apsw",
        )
    return ok(about)


def _durability(subject: CheckedInstallation) -> CheckResult:
    """How safe our connections are: SQLite keeps this per connection and not in the file."""
    import tempfile

    from dragoman.stores.sqlite.schema import durability_of

    if subject.is_postgres:
        return ok("as PostgreSQL is set: see database")
    if subject.settings.stores.location == "memory:":
        return warning(
            "tasks are kept in memory and are gone when the server ends", "--store FILE keeps them"
        )
    level = subject.settings.stores.synchronous
    if level != "full":
        lost = f"with synchronous {level}, a power cut loses acknowledged tasks"
        hint = "leave DRAGOMAN_SYNCHRONOUS unset"
        if subject.settings.stores.accept_data_loss:
            return warning(f"{lost}, which was accepted", hint)
        return problem(f"{lost}, so no server starts", hint)
    with tempfile.TemporaryDirectory(prefix="dragoman-doctor-") as folder:
        number, journal = durability_of(str(Path(folder) / "probe.db"))
    if number < _FULL or journal != "wal":
        return problem(
            f"commits are not safe against a power cut (synchronous {number}, journal {journal})",
            "a store needs synchronous FULL and a write-ahead log; undo what changed that",
        )
    return ok("a commit is on disk before anyone hears of it (synchronous FULL, WAL)")


def _store(subject: CheckedInstallation) -> CheckResult:
    """The file itself; called with a look, so it can be opened and is ours."""
    look = _file(subject)
    about = f"{subject.path}: {count(subject.wait(look.tasks()), 'task')}, schema {look.schema}"
    if not look.is_present:
        return warning(f"{about}, of an earlier release", "the next server to start migrates it")
    return ok(about)


def no_store(subject: CheckedInstallation, refusal: str) -> CheckResult:
    """Say why there is nothing to look into."""
    if subject.settings.stores.location == "memory:":
        return ok("there is no file: tasks are kept in memory")
    from dragoman.stores.sqlite.files.leftovers import leftovers

    is_there = os.path.exists(subject.path)
    if not is_there and not subject.is_named and not leftovers(subject.path):
        return ok(f"{subject.path} does not exist yet; the first server makes it")
    if not is_there:
        return problem(refusal, "--store names the file; `dragoman serve` makes one")
    return problem(refusal, "name another file by --store, or restore a backup")


def _integrity(subject: CheckedInstallation) -> CheckResult:
    size = subject.path.stat().st_size
    if size > _LARGE:
        subject.run.out.note("Progress", f"reading {size / 1e9:.1f} GB")
    if damage := _file(subject).damage():
        # The line before says only which file.
        return problem(f"the file is damaged: {damage.splitlines()[-1]}", _RESTORE)
    return ok("the file is sound")


def _journal(subject: CheckedInstallation) -> CheckResult:
    mode = _file(subject).journal()
    if mode != "wal":
        return warning(
            f"the journal mode is {mode}, so readers and writers wait for each other",
            "another program changed it; the next server to start turns it back",
        )
    return ok("write-ahead log")


def _permissions(subject: CheckedInstallation) -> CheckResult:
    if os.name == "nt":
        return ok("not checked on this system")
    files = [subject.path.with_name(subject.path.name + end) for end in ("", "-wal", "-shm")]
    modes = [path.stat().st_mode for path in files if path.exists()]
    hint = f"chmod 600 {subject.path}*"
    if any(mode & 0o007 for mode in modes):
        return problem("everyone on this machine can open the file", hint)
    if any(mode & 0o070 for mode in modes):
        return warning("the file's group can open it", hint)
    return ok("the file is its owner's alone")


def _space(subject: CheckedInstallation) -> CheckResult:
    import shutil

    free = shutil.disk_usage(subject.path.parent).free
    about = f"{free / 1e9:.1f} GB are free beside the file"
    if free < _NO_SPACE:
        return problem(about, "make room: without it every write is refused")
    return warning(about, "make room before it is full") if free < _LITTLE_SPACE else ok(about)


def failed(error: Exception) -> CheckResult | None:
    """Return what an error of a check says about the file; None: it is another error."""
    from dragoman.stores.sqlite.schema import DAMAGE, FILE_ERRORS

    if isinstance(error, DAMAGE):
        return problem("cannot be checked: the file is damaged", _RESTORE)
    if isinstance(error, (*FILE_ERRORS, OSError)):
        return problem(f"cannot be checked: {error}", "run it as the user that runs the server")
    return None


Check = Callable[[CheckedInstallation], CheckResult]

OF_THE_MACHINE: dict[str, Check] = {"install": _install}
DURABILITY: dict[str, Check] = {"durability": _durability}
OF_THE_FILE: dict[str, Check] = {
    "store": _store,
    "integrity": _integrity,
    "journal": _journal,
    "permissions": _permissions,
    "space": _space,
}
