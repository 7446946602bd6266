"""The client libraries that are held against the product, and how a driver of one is run.

A driver is a script in the peer's environment: it takes the address of a server without push, that
of one with it, what to speak and the names of scenarios, and prints one JSON line for each.
"""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from proof.environments import EnvironmentFailed, node_with, python_with

DRIVERS = Path(__file__).parent / "drivers"

# The drivers bound each scenario themselves; this is for one that hangs all the same.
DRIVER_WITHIN = 300.0


FASTA2A = "fasta2a==2.1.1"
# All that a client can show which sends, streams and reads a task, and cannot end one.
SENT_AND_READ = {
    "card",
    "send-completes",
    "send-returns-an-artifact",
    "send-returns-files-and-data",
    "send-returns-a-message",
    "send-is-rejected",
    "stream-in-order",
    "stream-in-chunks",
    "stream-a-message",
    "multi-turn",
    "multi-turn-in-streams",
}


LACKS = {
    # Its messages of 0.3 have no names of files.
    ("a2a-js", "0.3-grpc", "send-returns-files-and-data"),
    # It forgets whether a chunk is appended.
    ("a2a-js", "0.3-grpc", "stream-in-chunks"),
}


@dataclass(frozen=True)
class Peer:
    """A library at one version, speaking one version of the protocol over one binding."""

    library: str
    speaks: str
    # Whether it calls the agent through our gateway.
    is_carried: bool = False

    @property
    def id(self) -> str:
        place = "-through-the-gateway" if self.is_carried else ""
        return f"{self.library.replace('==', '-')}-{self.speaks}{place}"

    def can(self, scenario: str) -> bool:
        """Tell whether the library can be asked for it at all."""
        if self.library == FASTA2A:
            return scenario in SENT_AND_READ
        if scenario == "list-in-pages":
            # Only that version of the protocol lists tasks over these bindings.
            return self.speaks.startswith("1.0")
        if scenario == "get-with-history":
            # One number says none and all of it there.
            return self.speaks not in ("0.3-rest", "0.3-grpc")
        if (self.library, self.speaks, scenario) in LACKS:
            return False
        if self.is_carried and scenario in ("send-returns-a-message", "stream-a-message"):
            # A gateway keeps a task of everything, and answers with it.
            return False
        if scenario == "push-arrives":
            # Posts are read with the types of a library; this one has none that read JSON.
            return self.library != "a2a-js"
        return True


@dataclass(frozen=True)
class Report:
    """What a driver said of each scenario, empty when all went well, and how it ended."""

    details: dict[str, str]
    ending: str


PEERS = [
    Peer("a2a-sdk==1.3.0", "1.0-jsonrpc"),
    Peer("a2a-sdk==1.3.0", "1.0-rest"),
    Peer("a2a-sdk==1.3.0", "1.0-grpc"),
    Peer("a2a-sdk==1.3.0", "0.3-jsonrpc"),
    Peer("a2a-sdk==1.3.0", "0.3-grpc"),
    Peer("a2a-sdk==0.3.26", "0.3-jsonrpc"),
    Peer("a2a-sdk==0.3.26", "0.3-rest"),
    Peer("a2a-sdk==0.3.26", "0.3-grpc"),
    Peer("a2a-js", "1.0-jsonrpc"),
    Peer("a2a-js", "1.0-rest"),
    Peer("a2a-js", "1.0-grpc"),
    Peer("a2a-js", "0.3-jsonrpc"),
    Peer("a2a-js", "0.3-grpc"),
    Peer(FASTA2A, "0.3-jsonrpc"),
]
PEERS += [replace(peer, is_carried=True) for peer in PEERS if peer.speaks.endswith("-grpc")]

PYTHON_DRIVERS = {
    "a2a-sdk==1.3.0": "a2a_sdk_1.py",
    "a2a-sdk==0.3.26": "a2a_sdk_0_3.py",
    FASTA2A: "fasta2a_client.py",
}
UVICORN = "uvicorn==0.54.0"
# One environment for whatever a library is asked for: as a client, as a server, for its signatures.
# With it is what the library needs and does not bring.
ENVIRONMENTS = {
    "a2a-sdk==1.3.0": ("a2a-sdk[grpc,http-server,signing]==1.3.0", UVICORN),
    "a2a-sdk==0.3.26": ("a2a-sdk[grpc,http-server]==0.3.26", UVICORN),
    FASTA2A: (FASTA2A, "httpx==0.28.1", UVICORN),
}
# Knows nothing of A2A: it calls models.
CHAT_PROGRAM = ("llm==0.36",)


def python_of(library: str) -> Path:
    """Return the interpreter of a library's environment."""
    return python_with(*ENVIRONMENTS[library])


def report(peer: Peer, address: str, pushing: str, scenarios: list[str]) -> Report:
    """Make the peer's environment if there is none, run its driver and return what it said."""
    arguments = [address, pushing, peer.speaks, *scenarios]
    try:
        if peer.library in PYTHON_DRIVERS:
            python = python_of(peer.library)
            return driven([str(python), str(DRIVERS / PYTHON_DRIVERS[peer.library]), *arguments])
        node, folder = node_with(DRIVERS / "a2a_js" / "package.json")
    except EnvironmentFailed as error:
        return Report({}, f"its environment could not be made: {error}")
    # From standard input a module finds its imports in the working folder, which is the peer's.
    source = (DRIVERS / "a2a_js" / "driver.mjs").read_text()
    return driven([str(node), "--input-type=module", "-", *arguments], str(folder), source)


def driven(command: list[str], folder: str | None = None, source: str = "") -> Report:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            # A proxy of the machine has no business between two processes on it.
            env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            input=source,
            capture_output=True,
            text=True,
            timeout=DRIVER_WITHIN,
        )
        said, ending = done.stdout, f"it ended with {done.returncode}\n{done.stderr[-4000:]}"
    except subprocess.TimeoutExpired as error:
        # What was read before the end is bytes, whatever was asked for.
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        ending = f"it did not end within {DRIVER_WITHIN:.0f} s"
    outcomes = [json.loads(line) for line in said.splitlines()]
    details = {one["scenario"]: "" if one["ok"] else one["detail"] for one in outcomes}
    return Report(details, ending)
