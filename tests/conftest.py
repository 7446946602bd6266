"""What every test shares: async tests run on asyncio, the loop the product runs on."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
