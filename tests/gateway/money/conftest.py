"""Stores that keep orders, each kind in turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.waiting import within

from dragoman.stores.interface import Store
from tests.gateway.money.order_stores import KINDS, OrderingStore, location, ordering


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OrderingStore]:
    place = ordering(request.param, await location(request, tmp_path))
    await place.store.open()
    yield place
    await within(place.store.close())


@pytest.fixture
def store(place: OrderingStore) -> Store:
    return place.store
