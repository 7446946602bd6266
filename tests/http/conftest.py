"""These tests run on the loop that the served process runs on: its sockets are its own."""

import sys
from typing import Any

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": sys.platform != "win32"}
