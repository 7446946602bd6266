"""Tools look into a file while servers use it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

import pytest

from dragoman.stores.interface import Store
from dragoman.stores.interface.inspection import HealthInspection, TailPosition, TaskInspection
from dragoman.stores.sqlite.inspection import Inspection, open_to_read
from dragoman.stores.sqlite.reading import reading_tasks
from dragoman.testing.promises.inspection import InspectionPromises
from tests.stores.pair import Pair


class TestInspection(InspectionPromises):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        self._pair = Pair(tmp_path / "tasks.db")
        yield await self._pair.open()
        await self._pair.close()

    def reading(self, store: Store) -> AbstractAsyncContextManager[TaskInspection]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[TaskInspection]:
            with reading_tasks(self._pair.path) as reading:
                yield reading

        return opened()

    def looking(self, store: Store) -> AbstractAsyncContextManager[HealthInspection]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[HealthInspection]:
            pair = self._pair
            with closing(open_to_read(pair.path)) as connection:
                yield Inspection(connection, pair.path, 0, clock=lambda: pair.now)

        return opened()

    async def second(self, store: Store) -> Store:
        return await self._pair.open()

    async def successor(self, store: Store) -> Store:
        later = await self._pair.open()
        await self._pair.freeze(store)
        return later


@pytest.mark.parametrize("text", ["p0", "p12_3.4_5.6", "p9000_3.4-4096.4100-8192.8191"])
def test_a_position_is_read_as_it_was_said(text: str) -> None:
    assert str(TailPosition.parse(text)) == text


@pytest.mark.parametrize("text", ["", "12", "px", "p1_2", "p1_2.x", "p1-2", "p1-2.x", "p-1"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TailPosition.parse(text)
