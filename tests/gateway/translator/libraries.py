"""Runs the clients of public libraries, each in its own environment, against many agents.

A driver takes, as JSON, what to speak one after the other, and for each the addresses of agents by
name. It prints a JSON line for each thing it did: what was spoken, the agent, the deed, and what
went wrong. An address that ends with `#ID` is that of the gateway itself: messages name the agent
there.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proof.environments import node_with
from tests.gateway.translator.matrix_agents import PEERS
from tests.peers.libraries import python_of

HERE = Path(__file__).parent
FASTA2A = "fasta2a==2.1.1"
PYTHON = {
    "a2a-sdk==1.3.0": "a2a_sdk_1",
    "a2a-sdk==0.3.26": "a2a_sdk_0_3",
    FASTA2A: "fasta2a_client",
}
LIBRARIES = {
    "a2a-sdk==1.3.0": ("1.0-jsonrpc", "1.0-rest", "1.0-grpc", "0.3-jsonrpc", "0.3-grpc"),
    "a2a-sdk==0.3.26": ("0.3-jsonrpc", "0.3-rest", "0.3-grpc"),
    "a2a-js": ("1.0-jsonrpc", "1.0-rest", "1.0-grpc", "0.3-jsonrpc", "0.3-grpc"),
    FASTA2A: ("0.3-jsonrpc",),
}
DRIVEN_WITHIN = 900.0
# What a driver said, and how it ended.
Report = tuple[list[dict[str, Any]], str]


def driven(library: str, agents: Mapping[str, Mapping[str, str]]) -> Report:
    """Have a library do everything with every agent, in all that it speaks."""
    asked = json.dumps(agents)
    folder, source = None, ""
    if library in PYTHON:
        python = python_of(library)
        command = [str(python), str(HERE / "driver.py"), PYTHON[library], asked]
    else:
        node, home = node_with(PEERS / "drivers" / "a2a_js" / "package.json")
        # From standard input a module finds its imports in the working folder, the peer's.
        source, folder = (HERE / "driver.mjs").read_text(), str(home)
        command = [str(node), "--input-type=module", "-", asked]
    done = subprocess.run(
        command,
        cwd=folder,
        # A proxy of the machine has no business between two processes on it.
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        input=source,
        capture_output=True,
        text=True,
        timeout=DRIVEN_WITHIN,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return said, f"it ended with {done.returncode}\n{done.stderr[-3000:]}"
