"""One server for all tests of the houses that change nothing of how it serves."""

from collections.abc import AsyncIterator

import pytest
from housemates import agent
from serving import Site, serving


@pytest.fixture(scope="session")
async def site() -> AsyncIterator[Site]:
    async with serving(agent, corvid_rate="off") as site:
        yield site
