"""An engine over each store in turn, one whose disk can be kept waiting, several on one file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.databases import new_database

from dragoman import Agent
from tests.engine.engines import DatabaseStreet, FileStreet, House, Street, house_over
from tests.engine.stage import Stage


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """An engine over each store in turn."""
    database = await new_database(request) if request.param == "postgres" else ""
    house = house_over(request.param, tmp_path, database)
    yield house
    await house.stop()


@pytest.fixture
def agent() -> Agent:
    """An agent without a skill."""
    return Agent("Tester", "Is tested.")


@pytest.fixture
def stage() -> Stage:
    """An agent whose skills can be watched and held up."""
    return Stage()


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[House]:
    """An engine whose disk can be kept waiting."""
    house = house_over("gated", tmp_path)
    yield house
    await house.stop()


@pytest.fixture(params=["sqlite", "postgres"])
async def street(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Street]:
    """Engines that share one store, over each that can be shared."""
    is_file = request.param == "sqlite"
    street = FileStreet(tmp_path) if is_file else DatabaseStreet(await new_database(request))
    yield street
    await street.close()
