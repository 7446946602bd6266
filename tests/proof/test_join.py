"""The proof of agents that dial out, with one kill."""

import asyncio
from pathlib import Path

from proof.gateway import join


def test_agents_that_dial_out_lose_nothing(tmp_path: Path) -> None:
    found = asyncio.run(join.prove(1, 41, folder=tmp_path, callers=1, pause=0.1))
    assert [row.promise for row in found.rows() if not row.kept] == [], found.findings
    assert found.tasks and found.cuts
