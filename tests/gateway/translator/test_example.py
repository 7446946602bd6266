"""The example of a gateway, run as its docstring says, with the public libraries and without."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness.processes import ROOT

from proof.environments import node_with
from tests.gateway.translator.matrix_agents import PEERS
from tests.peers.libraries import python_of


def ran(folder: Path, more: Mapping[str, str]) -> list[str]:
    """Run the example; return its lines."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DRAGOMAN_", "A2A_"))
    }
    paths = {"XDG_DATA_HOME": str(folder), "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "gateway.py")],
        cwd=folder,
        env=kept | paths | dict(more),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def expected(*callers: str) -> list[str]:
    """Return what it prints for so many callers of both agents.

    The prices are those whose fees are known: 10 earns 9.50 and 1.11 earns 1.05. Whoever did all
    tasks in no time, and is not rated yet, is trusted 72."""
    lines = []
    for name in callers:
        said = f"hello from {name}"
        lines += [f"{name} to Shout: {said.upper()}", f"{name} to Reverse: {said[::-1]}"]
    lines += [f"{name} is trusted 72 of 100 (Trusted)" for name in ("Shout", "Reverse")]
    # In hundredths, which are exact.
    spent, earned = len(callers) * 11_11, len(callers) * 10_55
    for name, cents in (("buyer", 1000_00 - spent), ("seller", 1000_00 + earned)):
        lines.append(f"{name} has {cents / 100:g}")
    return lines


@pytest.mark.peer
def test_agents_and_clients_of_four_kinds_complete_all_tasks_and_the_money_moves(
    tmp_path: Path,
) -> None:
    python = python_of("a2a-sdk==1.3.0")
    node, folder = node_with(PEERS / "drivers" / "a2a_js" / "package.json")
    given = {"A2A_SDK_PYTHON": str(python), "A2A_JS": str(folder), "NODE": str(node)}
    lines = ran(tmp_path, given)
    assert lines == expected("nexus curl", "corvid", "a2a-sdk", "a2a-js")


def test_what_is_not_installed_is_left_out_and_said_so(tmp_path: Path) -> None:
    lines = ran(tmp_path, {"NODE": ""})
    told = [line for line in lines if "is not installed" in line]
    assert len(told) == 3
    assert [line for line in lines if line not in told] == expected("nexus curl", "corvid")
