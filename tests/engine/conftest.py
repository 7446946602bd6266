"""An engine over each store in turn, one whose disk can be kept waiting, several on one file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from house import House, Street, house_over


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


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    """Engines that share one file."""
    street = Street(tmp_path)
    yield street
    await street.close()
