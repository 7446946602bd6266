"""A served agent for the tests of a file."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness.serving import Site, client, serving

from tests.server.receivers.receiving import Gates, make


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Site]:
    async with serving(make(Gates(asyncio.Event)), allow_private=True) as site:
        yield site


@pytest.fixture
async def site(served: Site) -> AsyncIterator[Site]:
    # Connections of its own: the server closes those that are idle for some seconds.
    async with client(served.url) as http:
        yield Site(served.url, http)
