"""An issuer in this process, whose time is moved by hand."""

from collections.abc import AsyncIterator

import pytest

from dragoman.client.asgi import InProcess
from dragoman.testing.clock import ManualClock
from dragoman.testing.issuer import Issuer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def issuer(clock: ManualClock) -> Issuer:
    return Issuer(clock=clock)


@pytest.fixture
async def http(issuer: Issuer) -> AsyncIterator[InProcess]:
    carrier = InProcess(issuer)
    yield carrier
    await carrier.close()
