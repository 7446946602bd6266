"""An engine over each store in turn, and one whose disk can be kept waiting."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from house import House, house_over


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """An engine over each store in turn."""
    house = house_over(request.param, tmp_path)
    yield house
    await house.stop()


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[House]:
    """An engine whose disk can be kept waiting."""
    house = house_over("gated", tmp_path)
    yield house
    await house.stop()
