"""The servers that our client is held against, and how each is started in its own environment.

A server is a script in `servers/`: it says `Ready: ADDRESS` when it is, and ends with its standard
input. What all of them do with a text is written in `servers/playing.py`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dragoman.testing.processes import ServerProcess
from proof.environments import ROOT, node_with, python_with
from tests.peers.libraries import ENVIRONMENTS, UVICORN
from tests.peers.libraries import FASTA2A as FASTA2A_LIBRARY

SERVERS = Path(__file__).parent / "servers"
START_WITHIN = 180.0
# What an environment has, for a server and, where there is one, the client.
FASTA2A = ENVIRONMENTS[FASTA2A_LIBRARY]
A2AKIT = ("a2akit==0.0.32",)
A2A_LITE = ("a2a-lite==1.2.1",)
ADK = ("google-adk[a2a]==2.13.0", UVICORN)
STRANDS = ("strands-agents[a2a]==1.62.0",)
LANGGRAPH = ("langgraph-api==0.16.7", "langgraph-runtime-inmem==0.36.7", "langgraph==1.2.20")
PYTHON_A2A = ("python-a2a==0.5.10",)


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
    "a2a-sdk-1.3.0": python("a2a_sdk_1.py", *ENVIRONMENTS["a2a-sdk==1.3.0"]),
    "a2a-sdk-0.3.26": python("a2a_sdk_0_3.py", *ENVIRONMENTS["a2a-sdk==0.3.26"]),
    "fasta2a-2.1.1": python("fasta2a_server.py", *FASTA2A),
    "a2a-js-1.3.0": node("a2a_js/server.mjs"),
    "selectools-1.3.0": python("selectools_server.py", "selectools[serve]==1.3.0"),
    "selectools-1.3.0-nowhere": python("selectools_server.py nowhere", "selectools[serve]==1.3.0"),
    "fasta2a-2.1.1-readme": python("fasta2a_readme.py", *FASTA2A),
    "a2akit-0.0.32": python("a2akit_server.py", *A2AKIT),
    "a2a-lite-1.2.1": python("a2a_lite_server.py", *A2A_LITE),
    "a2a-lite-1.2.1-streaming": python("a2a_lite_server.py streaming", *A2A_LITE),
    "google-adk-2.13.0": python("adk_server.py", *ADK),
    "strands-agents-1.62.0": python("strands_server.py", *STRANDS),
    "strands-agents-1.62.0-compliant": python("strands_server.py compliant", *STRANDS),
    "langgraph-api-0.16.7": python("langgraph_server.py", *LANGGRAPH),
    "python-a2a-0.5.10": python("python_a2a_server.py", *PYTHON_A2A),
}


@contextmanager
def hosting(name: str, folder: Path) -> Iterator[str]:
    """Run a server and yield its address; raises `CannotStart` if it does not become ready."""
    start = HOSTS[name](folder)
    with ServerProcess(
        start.command,
        log=folder / "log",
        cwd=start.folder,
        # A proxy of the machine has no business between two processes on it.
        environment=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        stdin=subprocess.PIPE,
    ) as process:
        yield process.ready(START_WITHIN)
