"""What tests of the console share: one browser for all, and servers with a console."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.console.browser import launched


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser
