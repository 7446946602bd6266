"""One server for all tests of the houses that change nothing of how it serves."""

from collections.abc import AsyncIterator

import pytest
from harness.serving import Site, serving

from tests.dialects.house.housemates import agent


@pytest.fixture(scope="session")
async def site() -> AsyncIterator[Site]:
    async with serving(agent, corvid_rate="off") as site:
        yield site
