"""A store whose files are taken away or changed by others while it is open says so at the next
renewal, and acknowledges nothing from then on."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from dragoman.errors import ConfigError, StoreBroken, StoreLost
from dragoman.model.identity import TaskId
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.files import backup as backups
from dragoman.testing.promises.samples import HERE, WITHIN, chunk, creation, submit, write
from tests.stores.pair import Pair

Harm = Callable[[Path], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "tasks.db"


async def opened(path: Path) -> SQLiteStore:
    """Return a store that has been open for a while: the file has some of it, the log the rest."""
    store = SQLiteStore(path)
    await store.open()
    await write(store, creation("before"))
    await store._empty_log()
    await store.renew()
    await write(store, creation("since"))
    return store


async def end(store: SQLiteStore) -> None:
    await asyncio.wait_for(store.close(), WITHIN)


def beside(path: Path, end: str) -> Path:
    return Path(f"{path}{end}")


def deleted(end: str) -> Harm:
    return lambda path: beside(path, end).unlink()


def replaced(end: str) -> Harm:
    """Put a copy in its place, as editors and many tools do."""

    def harm(path: Path) -> None:
        copy = shutil.copy(beside(path, end), path.parent / "copy")
        os.replace(copy, beside(path, end))

    return harm


def cut(end: str, size: int) -> Harm:
    return lambda path: os.truncate(beside(path, end), size)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(end: str) -> Harm:
    def harm(path: Path) -> None:
        file = beside(path, end)
        with file.open("r+b") as stream:
            stream.write(bytes(file.stat().st_size))

    return harm


def another_database(path: Path) -> None:
    other = path.parent.parent / "other.db"
    connection = apsw.Connection(str(other))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    overwritten(path, other.read_bytes())


def overwritten(file: Path, body: bytes) -> None:
    """Write into the file that is there, as `cp` does."""
    with file.open("r+b") as stream:
        stream.truncate()
        stream.write(body)


def backup_copied_over(path: Path) -> None:
    copy = path.parent.parent / "backup.db"
    backups.back_up(path, copy)
    overwritten(path, copy.read_bytes())


def backup_moved_over(path: Path) -> None:
    copy = path.parent.parent / "backup.db"
    backups.back_up(path, copy)
    os.replace(copy, path)


def dangling_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))
    path.symlink_to(path.parent / "nothing.db")


def folder_renamed(path: Path) -> None:
    path.parent.rename(path.parent.with_name("there"))


def folder_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def log_of_another(path: Path) -> None:
    """Copy the log of another store over ours, one that has as many frames."""
    folder = path.parent.parent / "other"
    folder.mkdir()
    other = apsw.Connection(str(folder / "tasks.db"))
    other.execute("PRAGMA journal_mode = wal")
    other.execute("CREATE TABLE theirs (x)")
    for _ in range(50):
        other.execute("INSERT INTO theirs VALUES (randomblob(3000))")
    overwritten(beside(path, "-wal"), (folder / "tasks.db-wal").read_bytes())
    other.close()


def replaced_by_restore(path: Path) -> None:
    """Restore through SQLite itself, which asks for locks and gets them."""
    empty = apsw.Connection("")
    empty.execute("CREATE TABLE theirs (x)")
    target = apsw.Connection(str(path))
    with target.backup("main", empty, "main") as copying:
        copying.step()
    target.close()


FILE = {
    "deleted": deleted(""),
    "replaced": replaced(""),
    "emptied": cut("", 0),
    "cut in its head": cut("", 50),
    "cut in half": cut_in_half,
    "zeroed": zeroed(""),
    "another database": another_database,
    "a backup copied over it": backup_copied_over,
    "a backup moved over it": backup_moved_over,
    "a dangling link": dangling_link,
    "its folder renamed": folder_renamed,
    "its folder deleted": folder_deleted,
    "restored through SQLite": replaced_by_restore,
}
LOG = {
    "emptied": cut("-wal", 0),
    "cut": cut("-wal", 5000),
    "zeroed": zeroed("-wal"),
    "that of another store": log_of_another,
}
NAMES = {
    "log deleted": deleted("-wal"),
    "log replaced": replaced("-wal"),
}
LOCKS = {
    "index of the log deleted": deleted("-shm"),
    "index of the log replaced": replaced("-shm"),
    "lock deleted": deleted(".lock"),
    "lock replaced": replaced(".lock"),
}
OWN = {
    "lock of the worker deleted": deleted(".worker-1"),
    "lock of the worker replaced": replaced(".worker-1"),
}


def cases(*tables: dict[str, Harm]) -> list[object]:
    return [pytest.param(harm, id=name) for table in tables for name, harm in table.items()]


@pytest.mark.parametrize("harm", cases(FILE, LOG, NAMES, LOCKS, OWN))
async def test_a_loss_is_noticed_at_the_next_renewal_and_nothing_is_acknowledged_after(
    path: Path, harm: Harm
) -> None:
    store = await opened(path)
    harm(path)
    with pytest.raises(StoreLost) as lost:
        await asyncio.wait_for(store.renew(), WITHIN)
    assert str(path.parent) in str(lost.value) and str(path) not in lost.value.public
    told = await asyncio.wait_for(store.broken(), WITHIN)
    assert str(told) == str(lost.value)
    (outcome,) = await submit(store, creation("after"))
    assert isinstance(outcome.error, StoreBroken)
    with pytest.raises(StoreBroken):
        await store.renew()
    await end(store)


@pytest.mark.parametrize("harm", cases(FILE, LOG, NAMES, LOCKS, OWN))
async def test_a_loss_is_noticed_also_after_more_was_written(path: Path, harm: Harm) -> None:
    store = await opened(path)
    harm(path)
    for n in range(5):
        # In that time it may be acknowledged, or not.
        await submit(store, creation(f"t{n}", chunk(f"t{n}", "x" * 5000, append=False)))
    with pytest.raises(StoreBroken):
        await asyncio.wait_for(store.renew(), WITHIN)
    await end(store)


@pytest.mark.parametrize("harm", cases(FILE, NAMES, LOCKS))
async def test_every_worker_of_a_file_notices(path: Path, harm: Harm) -> None:
    pair = Pair(path)
    both = [await pair.open(), await pair.open()]
    for store in both:
        await store._empty_log()
        await store.renew()
    await write(both[0], creation("t"))
    harm(path)
    for store in both:
        with pytest.raises(StoreBroken):
            await asyncio.wait_for(store.renew(), WITHIN)
    await pair.close()


async def test_what_is_committed_while_a_loss_is_noticed_is_not_acknowledged(path: Path) -> None:
    store = await opened(path)
    # Two, which the loop does not commit itself.
    submitting = asyncio.ensure_future(submit(store, creation("t"), creation("u")))
    # Until the thread commits; the loop has not heard of it yet.
    while not store._writer._is_busy:  # noqa: ASYNC110  # the thread tells nobody else
        await asyncio.sleep(0)
    store._writer.give_up(StoreLost("the file is gone"))
    for outcome in await submitting:
        assert isinstance(outcome.error, StoreBroken)
    await end(store)


@pytest.mark.parametrize("harm", cases(NAMES))
async def test_a_log_that_lost_its_name_is_brought_into_the_file(path: Path, harm: Harm) -> None:
    store = await opened(path)
    harm(path)
    # Acknowledged in a log that has no name any more.
    await write(store, creation("late"))
    with pytest.raises(StoreLost, match="nothing that was acknowledged is lost"):
        await store.renew()
    await end(store)
    beside(path, "-wal").unlink(missing_ok=True)
    again = SQLiteStore(path)
    await again.open()
    for name in ("before", "since", "late"):
        assert await again.head(HERE, TaskId(name)) is not None
    await end(again)


async def test_a_log_that_was_put_in_place_of_ours_is_not_applied_to_the_file(path: Path) -> None:
    store = await opened(path)
    replaced("-wal")(path)
    with pytest.raises(StoreLost):
        await store.renew()
    await end(store)
    assert beside(path, "-wal").exists()
    with pytest.raises(ConfigError, match="was written for another file"):
        await SQLiteStore(path).open()


async def test_files_that_are_lost_are_left_as_they_are(path: Path) -> None:
    store = await opened(path)
    backup_moved_over(path)
    before = {file: file.read_bytes() for file in (path, beside(path, "-wal"))}
    with pytest.raises(StoreLost):
        await store.renew()
    await end(store)
    assert {file: file.read_bytes() for file in before} == before


async def test_a_log_that_is_brought_into_the_file_or_begun_anew_is_no_loss(path: Path) -> None:
    pair = Pair(path)
    first, second = await pair.open(), await pair.open()
    for n in range(30):
        store = (first, second)[n % 2]
        await submit(store, *(creation(f"{n}-{m}") for m in range(40)))
        await first.renew()
        await second.renew()
        if n % 5 == 0:
            how = ("passive", "full", "restart", "truncate")[n // 5 % 4]
            other = apsw.Connection(str(path))
            other.set_busy_timeout(1000)
            other.execute(f"PRAGMA wal_checkpoint({how})")
            other.close()
    await pair.close()


async def test_a_log_that_is_half_in_the_file_is_no_loss(path: Path) -> None:
    """What a process leaves that dies while it brings the log into the file: the first page tells
    of pages that are not there yet."""
    store = await opened(path)
    await submit(
        store, *(creation(f"t{n}", chunk(f"t{n}", "x" * 9000, append=False)) for n in range(50))
    )
    connection = apsw.Connection(str(path))
    pages = connection.pragma("page_count")
    connection.close()
    with path.open("r+b") as file:
        file.seek(28)
        file.write(pages.to_bytes(4))
    assert path.stat().st_size < pages * 4096
    for _ in range(2):
        await store.renew()
    await store._empty_log()
    await store.renew()
    await end(store)


async def test_a_file_that_is_touched_or_vacuumed_is_no_loss(path: Path) -> None:
    store = await opened(path)
    await submit(
        store, *(creation(f"t{n}", chunk(f"t{n}", "x" * 9000, append=False)) for n in range(50))
    )
    await store._empty_log()
    await store.renew()
    os.utime(path)
    path.chmod(0o640)
    other = apsw.Connection(str(path))
    other.execute("DELETE FROM events")
    other.execute("VACUUM")
    other.execute("PRAGMA wal_checkpoint(truncate)")
    other.close()
    for _ in range(3):
        await store.renew()
        await write(store, creation(f"v{_}"))
    await end(store)


async def test_trouble_with_a_write_has_the_files_looked_at_before_the_next_renewal(
    path: Path,
) -> None:
    store = await opened(path)
    cut("-wal", 0)(path)
    # What reads the log finds nothing there.
    await submit(store, creation("t"))
    store._guard.check_soon()
    assert isinstance(await asyncio.wait_for(store.broken(), WITHIN), StoreLost)
    await end(store)


async def test_an_earlier_state_of_the_file_itself_is_noticed(path: Path) -> None:
    """A copy of the same start: only how often leases were renewed in it tells it from the file."""
    store = await opened(path)
    earlier = path.read_bytes()
    await submit(
        store, *(creation(f"t{n}", chunk(f"t{n}", "x" * 9000, append=False)) for n in range(50))
    )
    await store._empty_log()
    await store.renew()
    overwritten(path, earlier)
    with pytest.raises(StoreLost, match="with an earlier state of it"):
        await store.renew()
    await end(store)


async def test_a_file_whose_end_is_cut_off_soon_after_the_start_is_noticed(path: Path) -> None:
    store = await opened(path)
    await submit(
        store, *(creation(f"t{n}", chunk(f"t{n}", "x" * 9000, append=False)) for n in range(50))
    )
    await end(store)
    again = SQLiteStore(path)
    await again.open()
    await again.renew()
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(StoreLost, match="was cut off"):
        await again.renew()
    await end(again)


async def test_a_link_to_the_file_that_is_turned_to_another_is_noticed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        store = SQLiteStore(tmp_path / name)
        await store.open()
        await end(store)
    link = tmp_path / "tasks.db"
    link.symlink_to(tmp_path / "one")
    store = await opened(link)
    # The locks are beside the file, so that all who use it have the same.
    assert (tmp_path / "one.worker-2").exists()
    link.unlink()
    link.symlink_to(tmp_path / "two")
    with pytest.raises(StoreLost, match="replaced by another file"):
        await store.renew()
    await end(store)


async def test_a_process_that_goes_to_another_folder_keeps_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    store = SQLiteStore("tasks.db")
    await store.open()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.prepare()
    await store.renew()
    await end(store)
    assert not list((tmp_path / "elsewhere").iterdir())
