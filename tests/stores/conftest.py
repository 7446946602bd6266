"""A file for a store, and workers that share it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stores.pair import Pair


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path / "tasks.db")
    yield pair
    await pair.close()
