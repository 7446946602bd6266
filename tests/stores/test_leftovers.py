"""Where a store was, a file that is gone or empty is not taken for a beginning."""

import asyncio
from pathlib import Path

import pytest

from dragoman.errors import ConfigError
from dragoman.model.identity import TaskId
from dragoman.security.vault import Vault
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.testing.promises.samples import HERE, WITHIN, creation, write
from tests.stores.pair import Pair


async def made(path: Path) -> None:
    store = SQLiteStore(path, sealing=Vault(file=Path(f"{path}.key")))
    await store.open()
    await write(store, creation("t"))
    await asyncio.wait_for(store.close(), WITHIN)


async def began(path: Path, *, is_new: bool = False) -> bool:
    """Open what is there; tell whether it is an empty store."""
    store = SQLiteStore(path, sealing=Vault(file=Path(f"{path}.key")), is_new=is_new)
    await store.open()
    is_empty = await store.head(HERE, TaskId("t")) is None
    await asyncio.wait_for(store.close(), WITHIN)
    return is_empty


async def test_a_new_folder_needs_no_word(path: Path) -> None:
    assert await began(path)


@pytest.mark.parametrize("end", ["-wal", "-shm", ".lock", ".key", ".worker-7"])
@pytest.mark.parametrize("is_empty", [True, False])
async def test_one_file_that_a_store_left_is_enough_to_refuse(
    path: Path, end: str, is_empty: bool
) -> None:
    Path(f"{path}{end}").write_bytes(b"x" * 100)
    if is_empty:
        path.touch()
    what = "is empty" if is_empty else "is gone"
    with pytest.raises(ConfigError, match=rf"{what}, but a store was here \(tasks.db{end}\)"):
        await began(path)
    with pytest.raises(ConfigError, match="--new-store"):
        open_to_read(path)
    assert path.exists() == is_empty and Path(f"{path}{end}").read_bytes() == b"x" * 100


async def test_files_of_another_store_and_an_audit_log_are_no_signs(path: Path) -> None:
    for name in ("tasks.db2.lock", "x.lock", "tasks.db.audit.jsonl", "tasks.db.worker-x"):
        path.with_name(name).touch()
    assert await began(path)


@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_store_that_is_gone_is_begun_anew_only_when_that_is_said(
    path: Path, is_empty: bool
) -> None:
    await made(path)
    path.unlink()
    if is_empty:
        path.touch()
    with pytest.raises(ConfigError, match="but a store was here"):
        await began(path)
    assert await began(path, is_new=True)
    # For one start: from then on there is a file.
    assert await began(path)


async def test_a_new_store_takes_nothing_from_the_log_of_the_one_before(path: Path) -> None:
    pair = Pair(path)
    store = await pair.open()
    await write(store, creation("t"))
    log = Path(f"{path}-wal").read_bytes()
    await pair.close()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    assert await began(path, is_new=True)
    (aside,) = path.parent.glob("tasks.db-wal.old-*")
    assert aside.read_bytes() == log


async def test_a_store_that_is_there_is_not_replaced_by_a_new_one(path: Path) -> None:
    await made(path)
    assert not await began(path, is_new=True)


async def test_nothing_begins_beside_a_server_whose_file_is_gone(path: Path) -> None:
    pair = Pair(path)
    store = await pair.open()
    path.unlink()
    for is_new in (False, True):
        with pytest.raises(ConfigError, match="a server that had it open still runs"):
            await SQLiteStore(path, is_new=is_new).open()
    await pair.kill(store)


@pytest.mark.parametrize("end", ["-wal", "-shm"])
async def test_nobody_joins_a_server_whose_log_is_gone(path: Path, end: str) -> None:
    """A second log, or a second index of it, would damage the file."""
    pair = Pair(path)
    store = await pair.open()
    await pair.stop(store)
    Path(f"{path}{end}").unlink()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="a server has it open whose log"):
        await SQLiteStore(path).open()
    assert path.read_bytes() == before and not Path(f"{path}{end}").exists()
    await pair.kill(store)


async def test_a_server_that_ends_keeps_no_newcomer_out(path: Path) -> None:
    for _ in range(5):
        pair = Pair(path)
        first = await pair.open()
        closing = asyncio.ensure_future(pair.end(first))
        second = await pair.open()
        await closing
        await pair.end(second)
