"""A copy made while the store is written: whole, of one moment, without the original's workers."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from dragoman.errors import ConfigError, StoreRefused, StoreUnavailable
from dragoman.model.identity import TaskId
from dragoman.model.push import PushConfig
from dragoman.model.task import TaskState
from dragoman.stores.interface import Query
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.files import backup as module
from dragoman.stores.sqlite.files.backup import back_up
from dragoman.testing.promises.samples import (
    HERE,
    WITHIN,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    status,
    walk,
    write,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await asyncio.wait_for(store.close(), WITHIN)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "copies"
    folder.mkdir()
    return folder / "copy.db"


async def fill(store: SQLiteStore, count: int) -> None:
    for n in range(count):
        await write(store, creation(f"t{n}", keys=[f"key {n}".encode()]))
        await write(store, addition(await head_of(store, f"t{n}"), chunk(f"t{n}", "x" * 2000)))


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return file.execute(sql).fetchall()
    finally:
        file.close()


def change(path: Path, sql: str, *values: object) -> None:
    file = apsw.Connection(str(path))
    file.pragma("writable_schema", 1)
    file.execute(sql, values)
    file.close()


async def test_a_copy_is_of_one_moment_although_writes_go_on(
    store: SQLiteStore, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGES", 1)
    await fill(store, 30)
    loop = asyncio.get_running_loop()
    later: list[str] = []

    def progress(done: int, total: int) -> None:
        if len(later) < 20:
            later.append(f"later {len(later)}")
            writing = write(store, creation(later[-1]))
            asyncio.run_coroutine_threadsafe(writing, loop).result(WITHIN)

    copying = asyncio.to_thread(back_up, store.path, target, progress=progress)
    copy = await asyncio.wait_for(copying, WITHIN)
    assert len(later) == 20
    assert copy.path == target and copy.size == target.stat().st_size
    assert (copy.tasks, copy.unfinished) == (30, 30)
    assert rows(target, "PRAGMA integrity_check") == [("ok",)]
    assert len(await walk(store, Query(HERE, 100))) == 50


async def test_whoever_opens_a_copy_takes_over_in_good_order(
    store: SQLiteStore, target: Path
) -> None:
    await fill(store, 3)
    end = TaskState.COMPLETED
    await write(store, addition(await head_of(store, "t0"), status("t0", end), state=end))
    config = PushConfig(task_id="t1", id="p", url="https://example.com/hook")
    await store.put_push((await head_of(store, "t1")).number, config, 0, most=10)
    back_up(store.path, target)
    assert rows(target, "SELECT count(*) FROM workers") == [(0,)]
    assert rows(target, "SELECT holder FROM pushes") == [(0,)]
    restored = SQLiteStore(target)
    await restored.open()
    try:
        await asyncio.gather(store.prepare(), restored.prepare())
        assert restored.knows_all and restored.secret == store.secret
        claimed = await restored.claim(HERE.agent, 10)
        # 0: its last worker left in good order, so no attempt is lost.
        assert {(head.task_id, held_by) for head, held_by in claimed} == {("t1", 0), ("t2", 0)}
        assert [push.config.id for push in await restored.claim_pushes(10)] == ["p"]
        for head in await walk(restored, Query(HERE, 100)):
            log = await log_of(restored, head)
            assert [r.seq for r in log] == list(range(1, head.standing.last_seq + 1))
        known = await restored.known(HERE, b"key 2")
        assert known is not None and known.task_id == TaskId("t2")
    finally:
        await asyncio.wait_for(restored.close(), WITHIN)
    # The original is none the wiser.
    assert (await head_of(store, "t1")).holder == store.worker
    assert rows(store.path, "SELECT number FROM workers") == [(store.worker,)]


async def test_a_copy_is_one_file_that_only_its_owner_can_read(
    store: SQLiteStore, target: Path
) -> None:
    back_up(store.path, target)
    assert os.listdir(target.parent) == [target.name]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


async def test_an_earlier_copy_is_replaced_only_when_asked(
    store: SQLiteStore, target: Path
) -> None:
    back_up(store.path, target)
    await fill(store, 1)
    with pytest.raises(ConfigError, match="--force"):
        back_up(store.path, target)
    assert rows(target, "SELECT count(*) FROM tasks") == [(0,)]
    assert back_up(store.path, target, force=True).tasks == 1
    assert rows(target, "SELECT count(*) FROM tasks") == [(1,)]


async def test_a_store_is_never_overwritten_by_its_own_copy(store: SQLiteStore) -> None:
    with pytest.raises(ConfigError, match="the store itself"):
        back_up(store.path, store.path, force=True)
    link = store.path.with_name("link.db")
    link.symlink_to(store.path)
    with pytest.raises(ConfigError, match="the store itself"):
        back_up(store.path, link, force=True)


async def test_a_file_in_use_is_not_replaced(store: SQLiteStore, target: Path) -> None:
    other = SQLiteStore(target)
    await other.open()
    try:
        with pytest.raises(ConfigError, match="in use"):
            back_up(store.path, target, force=True)
    finally:
        await asyncio.wait_for(other.close(), WITHIN)


async def test_nothing_is_left_of_a_copy_that_fails(
    store: SQLiteStore, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(store.path, target)
    before = target.read_bytes()
    await fill(store, 1)

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="Input/output"):
        back_up(store.path, target, force=True)
    assert os.listdir(target.parent) == [target.name]
    assert target.read_bytes() == before


async def test_a_damaged_store_makes_no_copy(store: SQLiteStore, target: Path) -> None:
    await fill(store, 30)
    damaged = store.path.with_name("damaged.db")
    back_up(store.path, damaged)
    # A row is removed behind the back of an index: every page is readable, yet the file is wrong.
    entry = "name = 'tasks_by_id'"
    row = rows(damaged, f"SELECT * FROM sqlite_schema WHERE {entry}")[0]
    change(damaged, f"DELETE FROM sqlite_schema WHERE {entry}")
    change(damaged, "DELETE FROM tasks WHERE number = 1")
    change(damaged, "INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", *row)
    with pytest.raises(StoreRefused, match="damaged"):
        back_up(damaged, target)
    assert os.listdir(target.parent) == []


def test_what_is_no_store_is_not_copied(tmp_path: Path, target: Path) -> None:
    other = tmp_path / "other.db"
    with pytest.raises(ConfigError, match="no such file"):
        back_up(other, target)
    file = apsw.Connection(str(other))
    file.execute("CREATE TABLE t (x)")
    file.close()
    with pytest.raises(ConfigError, match="not a store"):
        back_up(other, target)
    with pytest.raises(ConfigError, match="no such folder"):
        back_up(other, tmp_path / "nowhere" / "copy.db")
    assert os.listdir(target.parent) == []
