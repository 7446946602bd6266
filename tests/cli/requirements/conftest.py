"""One agent and one home for the tests of a file: they only add to what is there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.requirements.desk import Desk, sitting


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with sitting(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A home for one test."""
    return tmp_path
