"""These tests run on the loop that the served process runs on: its sockets are its own."""

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.http.sharing import Three, three_on


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": sys.platform != "win32"}


@pytest.fixture
async def three(database: str) -> AsyncIterator[Three]:
    async with three_on(database) as three:
        yield three
