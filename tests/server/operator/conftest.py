"""Where the store of a test is: one of each kind in turn."""

from pathlib import Path

import pytest
from harness.databases import new_database


@pytest.fixture(params=("memory", "sqlite", "postgres"))
async def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return await new_database(request)
    return "memory:" if request.param == "memory" else str(tmp_path / "tasks.db")
