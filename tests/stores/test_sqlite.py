"""The SQLite store keeps every promise of a store, and those that only a file can keep."""

import asyncio
import math
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.config import data_folder
from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import KeepReply, Known, Query, Store, Write
from dragoman.stores.sqlite import SQLiteStore, words
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations, queries, run
from dragoman.testing.promises import StorePromises
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    WITHIN,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    opening,
    snapshot_of,
    submit,
    walk,
    write,
)
from dragoman.testing.promises.words import found, index
from tests.stores.pair import Pair


class TestSQLite(StorePromises):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        self._pair = Pair(tmp_path / "tasks.db")
        yield await self._pair.open()
        await self._pair.close()

    async def successor(self, store: Store) -> Store:
        later = await self._pair.open()
        await self._pair.freeze(store)
        return later


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    await store.open()
    yield store
    await asyncio.wait_for(store.close(), WITHIN)


async def opened(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    await store.open()
    return store


async def on_writer(store: SQLiteStore, look: Callable[[apsw.Connection], Any]) -> Any:
    """Return what the writer's own connection says, asked on its thread."""
    seen: list[Any] = []
    await asyncio.wait_for(store._do(lambda connection: seen.append(look(connection))), WITHIN)
    return seen[0]


async def test_everything_survives_closing_and_opening(path: Path) -> None:
    store = await opened(path)
    await store.prepare()
    secret = store.secret
    await write(store, creation("t", keys=[b"key"], snapshot=snapshot_of(opening("t"), 1)))
    head = await head_of(store, "t")
    await write(store, addition(head, chunk("t", "x", append=False), next_fence=2))
    await write(store, KeepReply(HERE, b"reply", b"{}"))
    head = await head_of(store, "t")
    bodies = [recorded.body for recorded in await log_of(store, head)]
    await store.close()

    store = await opened(path)
    await store.prepare()
    assert store.secret == secret
    head = msgspec.structs.replace(head, holder=0)
    assert await head_of(store, "t") == head
    assert [recorded.body for recorded in await log_of(store, head)] == bodies
    reading = await store.snapshot(head.number)
    assert reading is not None and reading.task == opening("t")
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert await store.known(HERE, b"reply") == Known(reply=b"{}")
    assert await walk(store, Query(HERE, 5)) == [head]
    await store.close()


async def test_a_store_that_was_closed_opens_again(path: Path) -> None:
    store = await opened(path)
    await write(store, creation("t"))
    await store.close()
    other = await opened(path)
    await write(other, creation("u", keys=[b"theirs"], scope=ELSEWHERE[0]))
    await other.close()
    await store.open()
    assert len(await walk(store, Query(HERE, 5))) == 1
    assert await store.known(ELSEWHERE[0], b"theirs") == Known(task_id=TaskId("u"))
    await write(store, creation("v"))
    await store.close()


async def test_closing_finishes_what_was_submitted(path: Path) -> None:
    store = await opened(path)
    told: list[Exception | None] = []
    for n in range(2500):
        store.submit(creation(f"t{n}"), lambda error, _: told.append(error))
    await asyncio.wait_for(store.close(), WITHIN)
    assert told == [None] * 2500
    store = await opened(path)
    assert (await store.page(Query(HERE, 1))).total == 2500
    await store.close()


async def test_numbers_of_forgotten_tasks_are_not_given_again_after_opening(path: Path) -> None:
    store = await opened(path)
    first = await write(store, creation("t", state=TaskState.FAILED, at=1))
    await store.prune(ended_before=2, keep=0)
    await store.close()
    store = await opened(path)
    assert await write(store, creation("u")) > first
    await store.close()


async def test_a_commit_is_on_disk_before_anyone_hears_of_it(store: SQLiteStore) -> None:
    """FULL is 2. Anything less loses acknowledged commits when the power goes."""

    def settings(connection: apsw.Connection) -> tuple[Any, Any]:
        return connection.pragma("synchronous"), connection.pragma("journal_mode")

    assert await on_writer(store, settings) == (2, "wal")


async def test_what_a_group_may_take_back_is_in_no_file_and_log_and_cache_are_bounded(
    store: SQLiteStore,
) -> None:
    def settings(connection: apsw.Connection) -> list[Any]:
        names = ("temp_store", "cache_size", "wal_autocheckpoint")
        return [connection.pragma(name) for name in names]

    memory = 2
    assert await on_writer(store, settings) == [memory, -768, 4000]


async def test_writers_of_one_moment_share_commits(store: SQLiteStore) -> None:
    commits = 0

    def count() -> bool:
        nonlocal commits
        commits += 1
        return False

    await on_writer(store, lambda connection: connection.set_commit_hook(count))
    commits = 0

    async def writer(name: str) -> None:
        await write(store, creation(name))
        for n in range(19):
            await write(store, addition(await head_of(store, name), chunk(name, str(n))))

    await asyncio.wait_for(asyncio.gather(*(writer(f"t{n}") for n in range(64))), WITHIN)
    await on_writer(store, lambda connection: connection.set_commit_hook(None))
    assert 20 <= commits <= 64 * 20 / 8
    for n in range(64):
        head = await head_of(store, f"t{n}")
        assert [recorded.seq for recorded in await log_of(store, head)] == list(range(1, 21))


async def test_a_write_alone_is_committed_by_the_loop_while_the_disk_is_quick(
    store: SQLiteStore,
) -> None:
    """Anything that may take long is the thread's: a slow disk, a group, what follows at once, and
    bringing the log into the file."""
    writer, threads = store._writer, list[bool]()

    def committed() -> bool:
        threads.append(threading.current_thread() is threading.main_thread())
        return False

    async def is_on_loop(*writes: Write, took: float = 0.0, quiet_at: float = 0.0) -> bool:
        writer._took, writer._quiet_at = took, quiet_at
        outcomes = await submit(store, *writes)
        assert not any(outcome.is_refused for outcome in outcomes)
        return threads.pop()

    await on_writer(store, lambda connection: connection.set_commit_hook(committed))
    assert await is_on_loop(creation("alone"))
    assert writer._connection.pragma("wal_autocheckpoint") == 0
    assert not await is_on_loop(creation("a"), creation("group"))
    assert writer._connection.pragma("wal_autocheckpoint") == 4000
    assert not await is_on_loop(msgspec.structs.replace(creation("large"), size=100_000))
    assert not await is_on_loop(creation("slow disk"), took=1.0)
    assert not await is_on_loop(creation("busy loop"), quiet_at=math.inf)
    on_loop = [await is_on_loop(creation(f"t{n}")) for n in range(202)]
    await on_writer(store, lambda connection: connection.set_commit_hook(None))
    assert on_loop == [*[True] * 200, False, True]


async def test_a_scope_first_met_in_a_group_that_was_undone_keeps_to_itself(path: Path) -> None:
    """Its row went with the group; a number remembered from there would be given to another."""
    store = await opened(path)
    outcomes = await submit(
        store,
        creation("a", scope=ELSEWHERE[0]),
        creation("b", scope=ELSEWHERE[0]),
        creation("b", scope=ELSEWHERE[0]),
    )
    assert [outcome.is_refused for outcome in outcomes] == [False, False, True]
    await write(store, creation("c", scope=ELSEWHERE[1]))
    await store.close()
    store = await opened(path)
    for scope, ids in ((ELSEWHERE[0], ["b", "a"]), (ELSEWHERE[1], ["c"])):
        assert [head.task_id for head in await walk(store, Query(scope, 5))] == ids
    await store.close()


async def test_pruning_that_is_given_up_harms_nobody(path: Path) -> None:
    store = await opened(path)
    await submit(store, *(creation(f"t{n}", state=TaskState.FAILED, at=1) for n in range(300)))
    pruning = asyncio.ensure_future(store.prune(ended_before=2, keep=0))
    await asyncio.sleep(0)
    pruning.cancel()
    (outcome,) = await submit(store, creation("new"))
    assert outcome.error is None
    await asyncio.wait_for(store.close(), WITHIN)


async def test_a_disk_that_takes_nothing_is_said_so_and_service_goes_on(
    store: SQLiteStore,
) -> None:
    await write(store, creation("t"))
    pages = await on_writer(store, lambda connection: connection.pragma("page_count"))
    await on_writer(store, lambda connection: connection.pragma("max_page_count", pages))
    (outcome,) = await submit(store, creation("u", chunk("u", "x" * 500_000, append=False)))
    assert isinstance(outcome.error, StoreUnavailable)
    assert await store.head(HERE, TaskId("u")) is None
    await on_writer(store, lambda connection: connection.pragma("max_page_count", 1 << 30))
    await write(store, creation("u", chunk("u", "x" * 500_000, append=False)))


async def refuses(path: Path, reason: str) -> None:
    """Opening fails for this reason and changes nothing; the file is free afterwards."""
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=reason):
            await SQLiteStore(path).open()
    assert path.read_bytes() == before


async def test_the_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    await refuses(path, "database of another program")


async def test_a_file_of_a_later_release_is_refused_and_left_as_it_is(path: Path) -> None:
    await (await opened(path)).close()
    later = apsw.Connection(str(path))
    later.pragma("user_version", 9999)
    later.close()
    await refuses(path, "later release")


async def test_a_text_file_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 200)
    await refuses(path, "not a SQLite database")


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError):
        await SQLiteStore(tmp_path / "folder").open()


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    store = await opened(path)
    await write(store, creation("t"))
    await store.close()


def schema(path: Path) -> tuple[Any, list[Any]]:
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    marks = (connection.pragma("application_id"), connection.pragma("user_version"))
    connection.close()
    return marks, rows


async def test_migrations_run_once(path: Path) -> None:
    await (await opened(path)).close()
    first = schema(path)
    assert first[0] == (APPLICATION_ID, migrations()[-1][0])
    await (await opened(path)).close()
    assert schema(path) == first


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


async def test_a_copy_taken_after_a_crash_opens_with_all_that_was_durable(
    store: SQLiteStore, path: Path, tmp_path: Path
) -> None:
    """The files as they lie while the store is open are what a crash leaves behind."""
    await submit(store, *(creation(f"t{n}") for n in range(100)))
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", crashed / f"tasks.db{suffix}")
    other = await opened(crashed / "tasks.db")
    assert len(await walk(other, Query(HERE, 30))) == 100
    await other.close()


async def test_totals_without_a_filter_cost_the_same_however_many_tasks_there_are(
    store: SQLiteStore,
) -> None:
    """They come from counters: no plan may walk the tasks to count them."""
    await write(store, creation("t", scope=Scope("agent", "", "alice")))
    plan = store._scans.execute(
        "EXPLAIN QUERY PLAN " + store._sql["total"], {"scope": 1, "state": None}
    ).fetchall()
    assert plan and all("counts" in row[3] and "SCAN" not in row[3] for row in plan)


async def test_nobody_else_on_the_machine_may_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "new"))
    path = data_folder() / "tasks.db"
    store = SQLiteStore(path, makes_folder=True)
    await store.open()
    try:
        await write(store, creation("t1"))
        assert path.parent.stat().st_mode & 0o077 == 0
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file.name
    finally:
        await store.close()


async def test_a_fault_of_our_own_is_told_to_whoever_waits(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise AttributeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(store._writer, "_apply", broken)
        (outcome,) = await submit(store, creation("t1"))
        assert isinstance(outcome.error, StoreUnavailable)
    await write(store, creation("t2"))
    assert await store.head(HERE, TaskId("t1")) is None
    assert await store.head(HERE, TaskId("t2")) is not None


async def test_keys_of_earlier_processes_are_known(path: Path) -> None:
    first = await opened(path)
    await write(first, KeepReply(HERE, b"k" * 16, b"{}"))
    await first.close()
    second = await opened(path)
    assert await second.known(HERE, b"k" * 16) == Known(reply=b"{}")
    assert await second.known(HERE, b"n" * 16) is None
    await second.close()


async def test_words_are_in_tables_that_go_with_their_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search goes through all of them, also if it has time for one at each look."""
    monkeypatch.setattr(words, "_SECONDS", -1.0)
    monkeypatch.setattr(words, "_LOOKED_AT", 2)
    monkeypatch.setattr(words, "_PART_BITS", 2)
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    try:
        ids = [f"t{number}" for number in range(14)]
        for number, task_id in enumerate(ids):
            state = TaskState.WORKING if number == 9 else TaskState.COMPLETED
            await write(store, creation(task_id, state=state, at=1))
        await index(store, t1="rare")
        assert await found(store, "t") == ids[::-1]
        assert await found(store, "t", limit=1) == ids[::-1]
        assert await found(store, "rare") == ["t1"]
        assert _tables_of_words(store) == [3, 2, 1, 0]
        assert await store.prune(ended_before=2, keep=0) == 13
        # Numbers begin with 1.
        assert _tables_of_words(store) == [3, 2]
        assert await found(store, "t") == ["t9"]
        left = "SELECT rowid FROM words_2 WHERE words_2 MATCH 't*'"
        assert store.read_now(lambda connection: run(connection, left)) == [(10,)]
    finally:
        await store.close()


def _tables_of_words(store: SQLiteStore) -> list[int]:
    sql = queries("words.sql")["parts"]
    return store.read_now(lambda connection: [part for (part,) in run(connection, sql)])
