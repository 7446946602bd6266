"""A server whose standard streams are closed, or that no reader waits for, serves and ends as
any other."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from harness.processes import environment
from harness.waiting import WAIT, wait_until

AGENT = """
from dragoman import Agent

agent = Agent("Echo", "Says what you said.")


@agent.skill
async def say(text: str) -> str:
    return text
"""


def start(
    here: Path, *more: str, closed: str = "", stdout: int | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on a port of its own; return it and its address."""
    (here / "echo.py").write_text(AGENT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("serve", "echo.py", "--listen", f"127.0.0.1:{port}", "--store", "tasks.db", *more)
    command = shlex.join([sys.executable, "-m", "dragoman", *words])
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} {closed}"],
        cwd=here,
        env=environment(here),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )
    return process, f"http://127.0.0.1:{port}"


def is_served(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=WAIT, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def end(process: subprocess.Popen[bytes], url: str) -> int:
    """Have it end once it serves; return how it did."""
    try:
        wait_until(lambda: process.poll() is not None or is_served(url))
        assert process.poll() is None, "it ended before it was asked to"
        process.send_signal(signal.SIGTERM)
        return process.wait(WAIT)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams by a shell")
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_a_server_that_is_started_without_streams_serves(
    tmp_path: Path, closed: str, workers: str
) -> None:
    process, url = start(tmp_path, "--workers", workers, closed=closed)
    assert end(process, url) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_whose_record_has_no_reader_serves(tmp_path: Path, workers: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    process, url = start(tmp_path, "--workers", workers, stdout=theirs)
    os.close(theirs)
    assert end(process, url) == 0


def test_all_of_the_record_is_there_for_a_reader_of_its_first_line(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    process, url = start(tmp_path, stdout=theirs)
    os.close(theirs)
    record = os.read(ours, 65536)
    os.close(ours)
    assert record.startswith(b"Ready: ") and b"\nConsole: " in record
    assert end(process, url) == 0
