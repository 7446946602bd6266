"""Environments that are made beside the other tests, by a program in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_RUNNING = pytest.StashKey[dict[Path, subprocess.Popen[bytes]]]()


def begin(session: pytest.Session, program: Path, *, is_wanted: bool) -> None:
    """Begin to make the environments, if a test of the run needs them."""
    if is_wanted and not session.config.option.collectonly:
        session.config.stash.setdefault(_RUNNING, {})[program] = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A failure is told by the test that needs the environment.
            stderr=subprocess.DEVNULL,
            # A group of its own: an installer ends with it.
            start_new_session=True,
        )


def end(session: pytest.Session, program: Path) -> None:
    """End what a run that was broken off left."""
    preparing = session.config.stash.get(_RUNNING, {}).get(program)
    if preparing is not None:
        if preparing.poll() is None:
            os.killpg(preparing.pid, signal.SIGTERM)
        preparing.wait(60.0)
