"""What tests of the console share: a browser for each file."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.console.browser import launched


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser
