"""One server for the tests of a file that change nothing of how it serves.

Not for the whole session: it would watch the loop of all tests that come later."""

from collections.abc import AsyncIterator

import pytest
from harness.serving import Site, serving

from tests.dialects.house.housemates import agent


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent, corvid_rate="off") as site:
        yield site
