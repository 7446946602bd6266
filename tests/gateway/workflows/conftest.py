"""A town whose time stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.workflows.town import Town


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path / "tasks.db")
    await town.open()
    yield town
    town.gate.set()
    await town.close()
    if town.agent.threads is not None:
        town.agent.threads.shutdown(wait=False)
