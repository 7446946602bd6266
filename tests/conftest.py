"""What every test shares: async tests run on asyncio, the loop the product runs on."""

import pytest

# The shipped suites live in the package; their assertions explain themselves like our own.
pytest.register_assert_rewrite("dragoman.testing.stores")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
