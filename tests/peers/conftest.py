"""Servers for all peers, and what the drivers of the selected ones reported about them."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from environments import ROOT
from libraries import Peer, Report, report

START_WITHIN = 30.0
STOP_WITHIN = 15.0

# Short streams keep the run short; what is off must be refused as each version says.
SWITCHES = {
    "CONFORMANCE_STREAM_SECONDS": "1",
    "CONFORMANCE_EXTENDED": "0",
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the conformance agent in a process of its own; the value is its address."""
    with serving(tmp_path_factory.mktemp("interop"), push="off") as address:
        yield address


@pytest.fixture(scope="session")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve it once more, with push to receivers on this machine."""
    with serving(tmp_path_factory.mktemp("interop"), "--allow-private", push="on") as address:
        yield address


@contextmanager
def serving(folder: Path, *more: str, push: str) -> Iterator[str]:
    target = str(ROOT / "examples" / "conformance_agent.py")
    options = ["--host", "127.0.0.1", "--port", "0", "--store", str(folder / "tasks.db"), *more]
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", "serve", target, *options],
            cwd=ROOT,
            env=os.environ | SWITCHES | {"CONFORMANCE_PUSH": push},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        address = address_of(process)
        if address is None:
            said = log.read_text()[-4000:]
            pytest.fail(f"the server did not become ready:\n{said}", pytrace=False)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def address_of(process: subprocess.Popen[str]) -> str | None:
    """Return the address the server prints when it is ready, or None if it never does."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout
        with process.stdout as stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        while line := lines.get(timeout=START_WITHIN):
            if line.startswith("Ready: "):
                return line.removeprefix("Ready: ").strip()
    except queue.Empty:
        pass
    return None


@pytest.fixture(scope="session")
def reports(server: str, pushing: str, request: pytest.FixtureRequest) -> dict[Peer, Report]:
    """Run the driver of every selected peer once, all side by side."""
    wanted: dict[Peer, list[str]] = {}
    for item in request.session.items:
        arguments = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(peer := arguments.get("peer"), Peer):
            wanted.setdefault(peer, []).append(arguments["scenario"])
    with ThreadPoolExecutor(len(wanted)) as pool:
        runs = {peer: pool.submit(report, peer, server, pushing, wanted[peer]) for peer in wanted}
        return {peer: run.result() for peer, run in runs.items()}
