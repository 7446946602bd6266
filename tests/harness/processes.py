"""The `dragoman` command as a process, the way a user types it."""

import itertools
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.testing.processes import ServerProcess, clean_environment
from harness import nursery
from harness.nursery import ROOT
from harness.waiting import WAIT

START_WITHIN = 60.0
AS_MODULE = ("-m", "dragoman")
# A shell that finds `dragoman`, and one that does not.
ACTIVE = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
INACTIVE = {"PATH": os.defpath}
_numbers = itertools.count(1)


@contextmanager
def running(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    command: tuple[str, ...] = (),
) -> Generator[ServerProcess]:
    """Run `dragoman` with arguments in a folder that also holds its data.

    It need not load itself first; where a test looks at what a process has loaded, or needs
    another program, `command` is what Python is given.
    """
    with ServerProcess(
        [sys.executable, *(command or AS_MODULE), *arguments],
        log=cwd / f"log-{next(_numbers)}",
        cwd=cwd,
        environment=environment(cwd) | dict(env or {}),
        popen=subprocess.Popen if command else None,
    ) as process:
        yield process


def run(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `dragoman` to its end, in a process that need not load it first."""
    words = list(map(str, arguments))
    given = environment(cwd) | dict(env or {})
    code, out, err = nursery.run(words, cwd, given, None, WAIT)
    return subprocess.CompletedProcess(words, code, out.decode(), err.decode())


def environment(folder: Path) -> dict[str, str]:
    """Return an environment that knows no setting of the user's and writes only to a folder."""
    return clean_environment() | {
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPATH": str(ROOT),
    }


def check(*command: str, cwd: Path) -> None:
    """Run a tool of this Python; fail with what it said unless it finds nothing wrong."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        # The notice of a later pyright asks the network and says nothing about this code.
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)
