"""selectools itself as the measure: the same calls with its package and with ours, and each client
against the other's server."""

import asyncio
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from harness.processes import ROOT
from harness.serving import hosting
from harness.waiting import within

from dragoman.compat.selectools import A2AServer
from proof.environments import python_with
from tests.compat.agents import Researcher

SCRIPT = Path(__file__).parent / "selectools_documented.py"


def environment() -> dict[str, str]:
    """Return one in which selectools' interpreter finds our packages too: never the other way."""
    ours = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    hosts = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return os.environ | hosts | {"PYTHONPATH": os.pathsep.join(ours)}


def answer(text: str) -> str:
    if text.startswith("fail"):
        raise RuntimeError("secret")
    return f"[local provider: local-model] {text}"


@pytest.mark.peer
async def test_what_selectools_documents_show_has_the_same_results_with_our_package() -> None:
    """P-001, P-008, P-009, P-013, P-014, P-015, P-020, P-022: but for the import; and the client of
    either finds what it needs at the server of the other."""
    python = await asyncio.to_thread(python_with, "selectools[serve]==1.3.0")
    async with hosting(A2AServer(Researcher(answer=answer))) as url:
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(SCRIPT), url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        said, wrong = await within(process.communicate(), 60)
    assert process.returncode == 0, wrong.decode()
    runs: dict[str, list[Any]] = defaultdict(list)
    for line in said.splitlines():
        came = json.loads(line)
        runs[came.pop("run")].append(came)
    assert len(runs["theirs"]) == 10
    assert runs["ours"] == runs["theirs"]
    done = {"state": "completed", "text": "[local provider: local-model] hi", "error": ""}
    failed = {"state": "failed", "text": "", "error": "Agent execution failed (RuntimeError)"}
    assert runs["theirs at ours"] == [
        {"call": "discover", "name": "researcher"},
        {"call": "send_task", **done, "context": "c"},
        {"call": "get_task", **done},
        {"call": "fails", **failed},
    ]
    assert runs["ours at theirs"] == runs["theirs at ours"]
