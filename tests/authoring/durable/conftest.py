"""A house over each store, one in memory, and a world that no thread is left behind in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.databases import new_database

from tests.authoring.durable.world import World, kept
from tests.engine.engines import House, house_over


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    database = await new_database(request) if request.param == "postgres" else ""
    async with kept(house_over(request.param, tmp_path, database)) as house:
        yield house


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[House]:
    """For what has nothing to do with how the log is kept."""
    async with kept(house_over("memory", tmp_path)) as house:
        yield house


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    # No thread is left behind at the gate.
    world.open()
