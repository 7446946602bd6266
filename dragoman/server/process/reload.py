"""Serve again whenever a file changes: a child process does the serving, this one watches."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

CHECK_EVERY = 0.5


def run_reloading(targets: Sequence[str]) -> None:
    """Run the same command without `--reload` in a child, and replace the child on changes."""
    # Ending by a signal must end the child too, and only an exception gets that far.
    signal.signal(signal.SIGTERM, _interrupt)
    words = [word for word in sys.argv[1:] if word.partition("=")[0] != "--reload"]
    command = [sys.executable, "-m", "dragoman", *words]
    folders = {_folder(target) for target in targets}
    try:
        while True:
            before = _stamps(folders)
            child = subprocess.Popen(command)
            try:
                _watch(child, folders, before)
            finally:
                child.terminate()
                child.wait()
            print("dragoman: files changed, starting again", file=sys.stderr)
    except _Stopped:
        return
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


class _Stopped(KeyboardInterrupt):
    """A signal asked for an orderly end."""


def _interrupt(*_: object) -> NoReturn:
    raise _Stopped


def _watch(child: subprocess.Popen[bytes], folders: set[Path], before: dict[Path, int]) -> None:
    """Return when a file changed, also if the child has ended before."""
    while _stamps(folders) == before:
        try:
            child.wait(CHECK_EVERY)
        except subprocess.TimeoutExpired:
            continue
        # The agent does not start as it is: wait until its author saves a file.
        time.sleep(CHECK_EVERY)


def _folder(target: str) -> Path:
    path = Path(target.partition(":")[0])
    return path.parent if path.suffix == ".py" else Path.cwd()


def _stamps(folders: set[Path]) -> dict[Path, int]:
    stamps: dict[Path, int] = {}
    for folder in folders:
        for file in folder.rglob("*.py"):
            if not any(part.startswith(".") for part in file.relative_to(folder).parts):
                # Editors replace files: one may be gone before it is looked at.
                with contextlib.suppress(FileNotFoundError):
                    stamps[file] = file.stat().st_mtime_ns
    return stamps
