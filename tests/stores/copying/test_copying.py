"""A store copied into another one: a file into a database and back, cut off and gone on with."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from harness.databases import Databases

from dragoman.config import Settings, StoreSettings
from dragoman.errors import ConfigError, StoreRefused
from dragoman.stores import tools
from dragoman.stores.copying import copying
from dragoman.stores.copying.databases import database_writer
from dragoman.stores.copying.tables import TABLES
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.schema import connect, run, transaction
from dragoman.testing.promises.samples import creation, write
from tests.stores.copying.filled import TASKS, contents, fill, unseal


def of(location: str | Path) -> Settings:
    return Settings(stores=StoreSettings(location=str(location)))


def unseen(done: int, total: int) -> None:
    """Show nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    fill(path)
    return path


def test_what_goes_to_a_database_and_back_is_what_it_was(
    source: Path, database: str, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    copied = tools.copy(of(source), of(database), lambda done, total: steps.append((done, total)))
    assert copied.rows.keys() == {table.name for table in TABLES}
    assert all(copied.rows.values()), copied.rows
    assert not copied.is_resumed and not copied.latecomers
    assert steps[-1] == (sum(copied.rows.values()),) * 2

    back = tmp_path / "back.db"
    again = tools.copy(of(database), of(back), unseen)
    assert again.rows == copied.rows
    assert [path.name for path in tmp_path.iterdir() if "copying" in path.name] == []
    expected = contents(source) | {"held": [(0,)], "delivered": [(0,)]}
    assert contents(back) == expected


async def test_a_copy_is_served_and_its_new_tasks_have_numbers_of_their_own(
    source: Path, database: str
) -> None:
    unseal(source)
    await asyncio.to_thread(tools.copy, of(source), of(database), unseen)
    store = PostgresStore(Addresses(database))
    await store.open()
    try:
        number = await write(store, creation("new"))
        # Numbers of tasks that were forgotten long ago are not given again either.
        assert number > 9 << 20
        for task in TASKS:
            assert [one.seq for one in await store.read(task, after=0, limit=9)]
    finally:
        await store.close()
    found = await asyncio.to_thread(tools.inconsistencies, of(database))
    # Rows without sense, but counters and logs are whole.
    assert not [one for one in found if "counter" in one.what or "gap" in one.what], found


async def test_the_words_of_a_copy_are_indexed_anew(
    source: Path, database: str, tmp_path: Path
) -> None:
    """Also where servers found blocks of numbers without tasks, and look there no more."""
    unseal(source)
    store = PostgresStore(Addresses(database))
    await store.open()
    await store._connections.rows("SELECT setval('blocks', 900)")
    for _ in range(2):
        await store.index_words([])
    await store.close()
    await asyncio.to_thread(tools.copy, of(source), of(database), unseen)
    await asyncio.to_thread(tools.copy, of(database), of(tmp_path / "back.db"), unseen)
    for store in (PostgresStore(Addresses(database)), SQLiteStore(tmp_path / "back.db")):
        await store.open()
        try:
            assert {head.number for head in await store.unindexed(9)} == set(TASKS)
        finally:
            await store.close()


def test_a_copy_that_is_cut_off_goes_on_where_it_was(
    source: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(Exception):
        pass

    written: list[tuple[int, ...]] = []

    def cut(done: int, total: int) -> None:
        if done > total // 2:
            raise CutOff

    for target in (database, str(tmp_path / "copy.db")):
        with pytest.raises(CutOff):
            tools.copy(of(source), of(target), cut)
        written.clear()
        found = tools.copy(of(source), of(target), lambda *step: written.append(step))
        assert found.is_resumed
        # The second half only: one call for each batch.
        assert 0 < len(written) < len(TABLES) + 10
        assert sum(found.rows.values()) > len(TABLES)
    assert contents(tmp_path / "copy.db")["tasks"] == contents(source)["tasks"]
    # It is a store now: another copy has no place there.
    with pytest.raises(StoreRefused, match="is not empty"):
        tools.copy(of(source), of(database), unseen)


async def test_no_server_starts_on_half_a_copy(source: Path, database: str) -> None:
    unseal(source)
    async with database_writer(Addresses(database)) as writer:
        from dragoman.stores.copying.files import file_reader

        async with file_reader(source) as reader:
            with pytest.raises(ZeroDivisionError):
                await copying.copy(reader, writer, lambda done, total: print(1 // 0))
    with pytest.raises(ConfigError, match="a copy into this database was cut off"):
        await PostgresStore(Addresses(database)).open()
    copied = await asyncio.to_thread(tools.copy, of(source), of(database), unseen, anew=True)
    assert not copied.is_resumed
    store = PostgresStore(Addresses(database))
    await store.open()
    await store.close()


def test_half_a_copy_of_another_store_is_not_gone_on_with(
    source: Path, database: str, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        tools.copy(of(source), of(database), lambda done, total: print(1 // 0))
    with closing(connect(str(source))) as connection, transaction(connection):
        run(connection, "UPDATE tasks SET status_at = 1 << 60 WHERE number = 1")
    with pytest.raises(StoreRefused, match="before it changed; --anew begins again"):
        tools.copy(of(source), of(database), unseen)
    assert not tools.copy(of(source), of(database), unseen, anew=True).is_resumed


@pytest.mark.parametrize("changed", ["triggers SET due_at = 1", "pushes SET cursor = cursor + 1"])
def test_what_a_server_changed_between_two_parts_of_a_copy_is_not_left_out(
    source: Path, database: str, changed: str
) -> None:
    """Also where it changed no task: a time that came would come again, and a post."""

    def cut(done: int, total: int) -> None:
        assert done < total

    with pytest.raises(AssertionError):
        tools.copy(of(source), of(database), cut)
    with closing(connect(str(source))) as connection, transaction(connection):
        run(connection, f"UPDATE {changed}")
    with pytest.raises(StoreRefused, match="the source changed after the first part was copied"):
        tools.copy(of(source), of(database), unseen)
    assert not tools.copy(of(source), of(database), unseen, anew=True).is_resumed


async def test_a_store_that_is_served_from_is_refused_as_a_source(
    tmp_path: Path, database: str, databases: Databases
) -> None:
    stores = (SQLiteStore(tmp_path / "used.db"), PostgresStore(Addresses(database)))
    places = (tmp_path / "used.db", database)
    targets = (await asyncio.to_thread(databases.make), tmp_path / "copy.db")
    for store, place, target in zip(stores, places, targets, strict=True):
        await store.open()
        try:
            with pytest.raises(StoreRefused, match=r"1 process.* serve from the source; stop them"):
                await asyncio.to_thread(tools.copy, of(place), of(target), unseen)
        finally:
            await store.close()


async def test_a_target_that_is_used_is_refused(
    source: Path, database: str, tmp_path: Path
) -> None:
    store = PostgresStore(Addresses(database))
    await store.open()
    await write(store, creation("there"))
    await store.close()
    with pytest.raises(StoreRefused, match="the target is not empty"):
        await asyncio.to_thread(tools.copy, of(source), of(database), unseen)
    file = tmp_path / "there.db"
    file.write_bytes(b"")
    with pytest.raises(StoreRefused, match="exists, and is not what a copy left there"):
        await asyncio.to_thread(tools.copy, of(source), of(file), unseen)
    assert file.read_bytes() == b""


def test_a_copy_that_is_not_the_same_is_no_store(
    source: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.stores.copying.databases import DatabaseWriter

    insert = DatabaseWriter._insert

    async def wrong(self: DatabaseWriter, table: object, rows: list[tuple[object, ...]]) -> None:
        if getattr(table, "name", "") == "trust_events":
            rows = [*rows[:-1], (*rows[-1][:-1], b"another hash")]
        await insert(self, table, rows)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(DatabaseWriter, "_insert", wrong)
    with pytest.raises(StoreRefused, match="trust_events: 8 rows were found in the copy, 8 were"):
        tools.copy(of(source), of(database), unseen)
    with pytest.raises(ConfigError, match="was cut off"):
        asyncio.run(PostgresStore(Addresses(database)).open())


def test_what_a_database_cannot_hold_is_said(source: Path, database: str) -> None:
    with closing(connect(str(source))) as connection, transaction(connection):
        run(connection, "UPDATE tasks SET context = 'a' || char(0) || 'b' WHERE number = 2")
    with pytest.raises(StoreRefused, match=r"tasks: a row between \[1\] and .* is refused"):
        tools.copy(of(source), of(database), unseen)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("UPDATE counts SET n = n + 1", "counters differ from their tasks"),
        ("DELETE FROM events WHERE last = 1 AND task = 2", "gaps in logs, the first of task 2"),
        ("DELETE FROM events WHERE task = 5000", "logs end elsewhere"),
        ("DELETE FROM tasks WHERE number = 4096", "events are of no task, the first of 4096"),
        ("UPDATE snapshots SET seq = 4 WHERE task = 1", "snapshots are later than the log"),
        ("UPDATE tasks SET scope = 99 WHERE number = 1", "tasks are of no scope, the first is 1"),
    ],
)
def test_what_does_not_fit_together_is_found(
    databases: Databases, database: str, source: Path, harm: str, said: str
) -> None:
    with closing(connect(str(source))) as connection, transaction(connection):
        for sql in (
            "UPDATE snapshots SET seq = 3",
            "UPDATE pushes SET cursor = 3",
            "DELETE FROM snapshots WHERE task NOT IN (SELECT number FROM tasks)",
        ):
            run(connection, sql)
    tools.copy(of(source), of(database), unseen)
    before = {str(one) for one in tools.inconsistencies(of(database))}
    assert {str(one) for one in tools.inconsistencies(of(source))} == before
    assert not [text for text in before if said[:12] in text]
    databases.server.sql(harm, database.rpartition("/")[2])
    after = {str(one) for one in tools.inconsistencies(of(database))} - before
    assert [text for text in after if said in text], after
