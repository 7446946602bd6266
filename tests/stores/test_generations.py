"""SQLite applies a log to whatever file it lies beside; a store does not let it."""

import asyncio
import shutil
from pathlib import Path

import apsw
import pytest

from dragoman.errors import ConfigError
from dragoman.model.identity import TaskId
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.files.backup import back_up
from dragoman.stores.sqlite.files.generations import mark_in
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.testing.promises.samples import HERE, WITHIN, creation, write
from tests.stores.pair import Pair

FOREIGN = "was written for another file"


async def crashed(path: Path, *tasks: str, settled: bool = True) -> None:
    """Leave the files as a killed server leaves them."""
    store = SQLiteStore(path)
    await store.open()
    if settled:
        await store._empty_log()
        await store.renew()
    for name in tasks:
        await write(store, creation(name))
    kept = path.with_name("kept")
    kept.mkdir(exist_ok=True)
    for end in ("", "-wal", ".lock"):
        shutil.copy(f"{path}{end}", kept / f"tasks.db{end}")
    await asyncio.wait_for(store.close(), WITHIN)
    for end in ("", "-wal", ".lock"):
        shutil.move(kept / f"tasks.db{end}", f"{path}{end}")


async def tasks_in(path: Path, *names: str) -> list[str]:
    store = SQLiteStore(path)
    await store.open()
    found = [name for name in names if await store.head(HERE, TaskId(name)) is not None]
    await asyncio.wait_for(store.close(), WITHIN)
    return found


async def test_sqlite_itself_applies_the_log_of_another_file(tmp_path: Path) -> None:
    """Why there are generations."""
    for name, value in (("one", 1), ("two", 2)):
        connection = apsw.Connection(str(tmp_path / name))
        for statement in ("PRAGMA journal_mode = wal", "CREATE TABLE t (x)"):
            connection.execute(statement).fetchall()
        connection.execute("PRAGMA wal_checkpoint(truncate)").fetchall()
        connection.execute(f"INSERT INTO t VALUES ({value})")
        shutil.copy(tmp_path / f"{name}-wal", tmp_path / f"{name}.log")
        connection.close()
    shutil.copy(tmp_path / "one.log", tmp_path / "two-wal")
    mixed = apsw.Connection(str(tmp_path / "two"))
    assert mixed.execute("SELECT x FROM t").fetchall() == [(1,)]
    mixed.close()


@pytest.mark.parametrize("settled", [True, False])
async def test_what_a_killed_server_left_goes_on(path: Path, settled: bool) -> None:
    for n in range(4):
        await crashed(path, f"t{n}", settled=settled)
    assert await tasks_in(path, "t0", "t1", "t2", "t3") == ["t0", "t1", "t2", "t3"]


async def test_a_server_that_dies_early_leaves_its_generation_to_the_next_one(path: Path) -> None:
    """A reader may keep the log from coming into the file for as long as it likes: the file then
    has any of the generations that were begun meanwhile, so there is only one."""
    await crashed(path, "t0", settled=False)
    listed = Path(f"{path}.lock").read_bytes()
    await crashed(path, "t1", settled=False)
    assert Path(f"{path}.lock").read_bytes() == listed
    await crashed(path, "t2")
    assert Path(f"{path}.lock").read_bytes() != listed


async def test_a_backup_beside_the_log_of_a_killed_server_is_refused(path: Path) -> None:
    await crashed(path, "t0")
    copy = path.with_name("backup.db")
    back_up(path, copy)
    await crashed(path, "t1")
    shutil.copy(copy, path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=FOREIGN):
            await SQLiteStore(path).open()
        with pytest.raises(ConfigError, match=FOREIGN):
            open_to_read(path)
    assert path.read_bytes() == before
    # As it is told.
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    assert await tasks_in(path, "t0", "t1") == ["t0"]


async def test_an_earlier_copy_of_the_file_beside_the_log_is_refused(path: Path) -> None:
    assert await tasks_in(path) == []
    shutil.copy(path, path.with_name("earlier.db"))
    await crashed(path, "t")
    shutil.copy(path.with_name("earlier.db"), path)
    with pytest.raises(ConfigError, match=FOREIGN):
        await SQLiteStore(path).open()


async def test_the_log_of_another_store_beside_the_file_is_refused(path: Path) -> None:
    other = path.with_name("other.db")
    await crashed(other, "theirs")
    await crashed(path, "ours")
    shutil.copy(f"{other}-wal", f"{path}-wal")
    with pytest.raises(ConfigError, match=FOREIGN):
        await SQLiteStore(path).open()


async def test_file_and_log_that_were_restored_together_are_taken_without_the_lock(
    path: Path,
) -> None:
    other = path.with_name("other.db")
    await crashed(other, "theirs")
    await crashed(path, "ours")
    for end in ("", "-wal"):
        shutil.copy(f"{other}{end}", f"{path}{end}")
    with pytest.raises(ConfigError, match=FOREIGN):
        await SQLiteStore(path).open()
    Path(f"{path}.lock").unlink()
    assert await tasks_in(path, "theirs") == ["theirs"]


async def test_a_backup_in_place_of_a_store_that_was_stopped_needs_no_word(path: Path) -> None:
    assert await tasks_in(path) == []
    copy = path.with_name("backup.db")
    back_up(path, copy)
    assert mark_in(copy) != mark_in(path)
    shutil.copy(copy, path)
    assert await tasks_in(path) == []


async def test_a_store_of_an_earlier_release_gets_a_generation(path: Path) -> None:
    await crashed(path, "t")
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM facts WHERE name = 'generation'")
    connection.close()
    Path(f"{path}.lock").write_bytes(b"")
    assert await tasks_in(path, "t") == ["t"]
    found = mark_in(path)
    assert found is not None and found.generation


async def test_each_process_that_is_alone_begins_a_generation_and_others_join_it(
    path: Path,
) -> None:
    seen: list[bytes] = []
    for _ in range(3):
        pair = Pair(path)
        first, second = await pair.open(), await pair.open()
        assert first._generations.current == second._generations.current
        seen.append(first._generations.current)
        await pair.close()
    assert len(set(seen)) == 3


async def test_a_lock_file_that_makes_no_sense_refuses_nothing(path: Path) -> None:
    await crashed(path, "t")
    Path(f"{path}.lock").write_bytes(b"\xff no generation\n")
    assert await tasks_in(path, "t") == ["t"]
