"""The environments of the frameworks: made beside the other tests, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PREPARING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to make the environments while other tests run."""
    is_wanted = any(
        {"frameworks", "crew"}.intersection(getattr(item, "fixturenames", ()))
        for item in session.items
    )
    if not is_wanted or session.config.option.collectonly:
        return
    session.config.stash[PREPARING] = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "frameworks.py")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A failure is told by the test that needs the environment.
        stderr=subprocess.DEVNULL,
        # A group of its own: an installer ends with it.
        start_new_session=True,
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what a run that was broken off left."""
    preparing = session.config.stash.get(PREPARING, None)
    if preparing is not None:
        if preparing.poll() is None:
            os.killpg(preparing.pid, signal.SIGTERM)
        preparing.wait(60.0)
