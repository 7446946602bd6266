"""Agents to register, and registries on a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.registry.registries import Desk, desk


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as found:
        yield found
