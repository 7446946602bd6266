"""The servers that our client is held against, and how each is started in its own environment.

A server is a script in `servers/`: it says `Ready: ADDRESS` when it is, and ends with its standard
input. What all of them do with a text is written in `servers/playing.py`.
"""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT, node_with, python_with

SERVERS = Path(__file__).parent / "servers"
START_WITHIN = 60.0
STOP_WITHIN = 15.0
UVICORN = "uvicorn==0.54.0"


class HostFailed(Exception):
    """A server did not become ready; the message ends with what it printed."""


@dataclass(frozen=True)
class Start:
    """A command and the folder it runs in."""

    command: list[str]
    folder: Path = ROOT


def python(script: str, *requirements: str) -> Callable[[Path], Start]:
    name, *arguments = script.split()

    def start(_: Path) -> Start:
        interpreter = str(python_with(*requirements))
        return Start([interpreter, str(SERVERS / name), *arguments])

    return start


def node(script: str) -> Callable[[Path], Start]:
    def start(_: Path) -> Start:
        program, folder = node_with((SERVERS / script).with_name("package.json"))
        # As an argument a module finds its imports in the working folder, which is the peer's.
        source = (SERVERS / script).read_text()
        return Start([str(program), "--input-type=module", "--eval", source], folder)

    return start


def ours(folder: Path) -> Start:
    agent = str(SERVERS / "dragoman_agent.py")
    # Push goes to no one here, but its configurations name an address of this machine.
    options = ["--listen", "127.0.0.1:0", "--store", str(folder / "tasks.db"), "--allow-private"]
    return Start([sys.executable, "-m", "dragoman", "serve", agent, *options])


HOSTS: dict[str, Callable[[Path], Start]] = {
    "dragoman": ours,
    "a2a-sdk-1.3.0": python("a2a_sdk_1.py", "a2a-sdk[http-server]==1.3.0", UVICORN),
    "a2a-sdk-0.3.26": python("a2a_sdk_0_3.py", "a2a-sdk[http-server]==0.3.26", UVICORN),
    "fasta2a-2.1.1": python("fasta2a_server.py", "fasta2a==2.1.1", UVICORN),
    "fasta2a-2.1.1-storing": python("fasta2a_server.py storing", "fasta2a==2.1.1", UVICORN),
    "a2a-js-1.3.0": node("a2a_js/server.mjs"),
    "selectools-1.3.0": python("selectools_server.py", "selectools[serve]==1.3.0"),
    "selectools-1.3.0-nowhere": python("selectools_server.py nowhere", "selectools[serve]==1.3.0"),
}


@contextmanager
def hosting(name: str, folder: Path) -> Iterator[str]:
    """Run a server and yield its address; raises `HostFailed` if it does not become ready."""
    start = HOSTS[name](folder)
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            start.command,
            cwd=start.folder,
            # A proxy of the machine has no business between two processes on it.
            env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        address = address_of(process, START_WITHIN)
        if address is None:
            raise HostFailed(f"{name} did not become ready:\n{log.read_text()[-4000:]}")
        yield address
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End a server, whether it listens or not."""
    if process.stdin:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def address_of(process: subprocess.Popen[str], within: float) -> str | None:
    """Return the address a server prints when it is ready, or None if it never does."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout
        with process.stdout as stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        while line := lines.get(timeout=within):
            if line.startswith("Ready: "):
                return line.removeprefix("Ready: ").strip()
    except queue.Empty:
        pass
    return None
