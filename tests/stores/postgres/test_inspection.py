"""Tools look into a database while servers use it."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest
from harness.databases import Databases

from dragoman.errors import ConfigError
from dragoman.model.task import TaskState
from dragoman.stores.copying.databases import database_reader
from dragoman.stores.interface import Store
from dragoman.stores.interface.inspection import (
    HealthInspection,
    TailFilter,
    TailPosition,
    TaskInspection,
)
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.postgres.operating.inspection import inspecting
from dragoman.stores.postgres.operating.reading import reading_tasks
from dragoman.stores.postgres.schema import latest
from dragoman.testing.promises.inspection import InspectionPromises, Seen, follow
from dragoman.testing.promises.samples import creation, submit, write
from tests.stores.postgres.conftest import Opener


class TestInspection(InspectionPromises):
    @pytest.fixture(autouse=True)
    def opens(self, opener: Opener) -> None:
        self._opener = opener

    def reading(self, store: Store) -> AbstractAsyncContextManager[TaskInspection]:
        return reading_tasks(Addresses(self._opener.url))

    def looking(self, store: Store) -> AbstractAsyncContextManager[HealthInspection]:
        return inspecting(Addresses(self._opener.url), lease=0)

    async def second(self, store: Store) -> Store:
        return await self._opener.open()

    async def successor(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return await self._opener.successor(store)


async def test_a_worker_that_is_another_now_takes_numbers_where_readers_look(
    opener: Opener, store: PostgresStore
) -> None:
    """It must not go on in the block of the worker it was: that counts as full."""
    other = await opener.open()
    await write(store, creation("first"))
    await write(other, creation("second"))
    async with reading_tasks(Addresses(opener.url)) as reading:
        await store._connections.rows("SELECT bury($1)", store.worker)
        # Whether its next sign of life or its next write finds out.
        position = await reading.here()
        seen: Seen = []
        outcomes = await submit(store, creation("lost"), creation("lost too"))
        assert all(outcome.is_refused for outcome in outcomes) or not outcomes[0].is_refused
        await write(store, creation("third"))
        await write(other, creation("fourth"))
        position = await follow(reading, position, seen)
        assert {"third", "fourth"} <= {task_id for task_id, _ in seen}


async def test_a_group_in_two_blocks_is_seen_whole(
    opener: Opener, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the former block is committed after the next one was taken."""
    await write(store, creation("first", state=TaskState.COMPLETED))
    writer = store._writer
    # As if the block had two numbers left.
    writer._next = writer._end - 2
    async with reading_tasks(Addresses(opener.url)) as reading:
        position = await reading.here()
        taking, positions = writer._take_block, list[TailPosition]()
        seen: Seen = []

        async def taken(worker: int) -> None:
            await taking(worker)
            # A look in between: another worker's task has a higher number than what comes.
            other = await opener.open()
            await write(other, creation("other"))
            positions.append(await follow(reading, position, seen))

        monkeypatch.setattr(writer, "_take_block", taken)
        await submit(store, *(creation(f"t{n}") for n in range(4)))
        await follow(reading, positions[0], seen)
    assert sorted(seen) == [("other", 1), *((f"t{n}", 1) for n in range(4))]


async def test_workers_that_are_gone_leave_nothing_in_a_position(
    opener: Opener, store: PostgresStore
) -> None:
    """It would grow with every restart."""
    for n in range(3):
        other = await opener.open()
        await write(other, creation(f"t{n}"))
        await other.close()
        await other.open()
        await other._workers.vanish()
    await write(store, creation("t"))
    async with reading_tasks(Addresses(opener.url)) as reading:
        position = await reading.here()
        _, position = await reading.follow(position, TailFilter(), 100)
    assert len(position.blocks) == 1 and len(position.seen) == 4


async def test_a_database_of_an_older_release_is_refused_with_what_migrates_it(
    databases: Databases, database: str
) -> None:
    sql = f"UPDATE dragoman_schema SET version = {latest() - 1}"
    await asyncio.to_thread(databases.server.sql, sql, database.rpartition("/")[2])
    with pytest.raises(ConfigError, match="dragoman store migrate") as refused:
        await PostgresStore(Addresses(database), is_read_only=True).open()
    assert refused.value.remedy.startswith("dragoman store migrate")


async def test_a_newer_database_that_this_release_can_use_is_read_but_not_copied(
    databases: Databases, database: str
) -> None:
    """What it has besides would not be in the copy."""
    name, addresses = database.rpartition("/")[2], Addresses(database)
    sql = f"UPDATE dragoman_schema SET version = {latest() + 1}"
    await asyncio.to_thread(databases.server.sql, sql, name)
    async with reading_tasks(addresses):
        pass
    with pytest.raises(ConfigError, match="a newer release made this database"):
        async with database_reader(addresses):
            pass
    sql = f"UPDATE dragoman_schema SET oldest = {latest() + 1}"
    await asyncio.to_thread(databases.server.sql, sql, name)
    with pytest.raises(ConfigError, match="a newer release made this database"):
        async with reading_tasks(addresses):
            pass


async def test_a_database_that_no_server_made_ready_is_refused_in_words(
    databases: Databases,
) -> None:
    bare = await asyncio.to_thread(databases.server.make_database)
    for opening in (reading_tasks(Addresses(bare)), inspecting(Addresses(bare))):
        with pytest.raises(ConfigError, match="start a server on it once"):
            async with opening:
                pass
