"""A place where no store can be is refused with a sentence, and left as it is."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from dragoman.errors import ConfigError
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.testing.promises.samples import WITHIN

NOBODY = 65534


async def made(path: Path) -> Path:
    store = SQLiteStore(path)
    await store.open()
    await asyncio.wait_for(store.close(), WITHIN)
    return path


async def refuses(path: Path | str, reason: str) -> None:
    """Neither a server nor a command that only reads takes it; both say why."""
    with pytest.raises(ConfigError, match=reason) as refused:
        await SQLiteStore(path).open()
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=reason):
        open_to_read(Path(path)).close()


async def test_a_folder_is_refused_with_the_file_that_may_be_meant(tmp_path: Path) -> None:
    await refuses(tmp_path, f"is a folder; name a file in it: --store {tmp_path}/tasks.db")
    assert not list(tmp_path.iterdir())


async def test_a_folder_that_is_missing_is_named_and_not_made(tmp_path: Path) -> None:
    await refuses(tmp_path / "no" / "such" / "tasks.db", f"there is no folder {tmp_path}/no/such")
    assert not list(tmp_path.iterdir())


async def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        await refuses(tmp_path / "socket", "is a socket")
    await refuses(tmp_path / "pipe", "is a pipe")
    await refuses("/dev/null", "is a device")


async def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    await refuses(tmp_path / "link", f"is a link to {tmp_path}/nothing, which is not there")
    await refuses(tmp_path / "round", "cannot be used")
    assert not (tmp_path / "nothing").exists()


async def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    await refuses("a\0b", "no file has such a name")
    await refuses(tmp_path / ("x" * 300), "the name is too long")
    # It could be made, but not the files beside it.
    await refuses(tmp_path / ("x" * 250), "the name is too long")
    await refuses("/".join(["x" * 200] * 30), "cannot be used")
    (tmp_path / "file").touch()
    await refuses(tmp_path / "file" / "tasks.db", "leads through a file")


@contextmanager
def without_rights() -> Generator[Path]:
    """Give a folder that others may look into, and be one of the others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def lose_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


async def test_a_file_that_may_not_be_written_is_refused_and_can_be_read() -> None:
    with without_rights() as folder:
        path = await made(folder / "tasks.db")
        path.chmod(0o444)
        folder.chmod(0o777)
        lose_rights()
        with pytest.raises(ConfigError, match="cannot be written; give this user the right to"):
            await SQLiteStore(path).open()


async def test_a_folder_that_may_not_be_written_is_named() -> None:
    with without_rights() as folder:
        path = await made(folder / "tasks.db")
        path.chmod(0o666)
        folder.chmod(0o555)
        lose_rights()
        with pytest.raises(ConfigError, match=f"the folder {folder} cannot be written"):
            await SQLiteStore(path).open()


async def test_a_file_that_may_not_be_read_is_refused() -> None:
    with without_rights() as folder:
        path = await made(folder / "tasks.db")
        path.chmod(0o000)
        folder.chmod(0o777)
        lose_rights()
        await refuses(path, "tasks.db: cannot be")


async def test_a_folder_that_may_not_be_entered_is_told() -> None:
    with without_rights() as folder:
        (folder / "closed").mkdir()
        path = await made(folder / "closed" / "tasks.db")
        (folder / "closed").chmod(0o000)
        lose_rights()
        await refuses(path, "Permission denied")
        os.seteuid(0) if os.getuid() == 0 else None
        (folder / "closed").chmod(0o755)


_ON_SMALL_DISK = """
import asyncio, os, sys
from pathlib import Path
from dragoman.errors import ConfigError
from dragoman.stores.sqlite import SQLiteStore

async def main() -> None:
    try:
        await SQLiteStore(Path(sys.argv[1]) / "tasks.db").open()
    except ConfigError as error:
        print(error)

asyncio.run(main())
"""


def mounted(folder: Path, mount: str, prepare: str = "true") -> str:
    """Return what opening a store says on a file system of its own; skips where none can be."""
    script = f"{mount} && ({prepare}) && exec {sys.executable} -c '{_ON_SMALL_DISK}' {folder}"
    probe = ["unshare", "-m", "sh", "-c", f"{mount}"]
    try:
        if subprocess.run(probe, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
    except OSError:
        pytest.skip("there is no unshare")
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert not ended.returncode, ended.stderr
    return ended.stdout


async def test_a_read_only_file_system_is_told(tmp_path: Path) -> None:
    await made(tmp_path / "tasks.db")
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    said = await asyncio.to_thread(mounted, tmp_path, mount)
    assert "tasks.db: its file system is read-only; mount it for writing" in said


async def test_a_disk_that_is_full_at_the_start_is_told(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=200k tmpfs {tmp_path}"
    fill = f"head -c 190000 /dev/zero > {tmp_path}/filling || true"
    said = await asyncio.to_thread(mounted, tmp_path, mount, fill)
    assert "tasks.db: the disk is full; make room and start again" in said


async def test_a_file_that_another_program_keeps_to_itself_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tasks.db"
    other = apsw.Connection(str(path))
    other.execute("PRAGMA locking_mode = exclusive")
    other.execute("PRAGMA journal_mode = delete")
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("dragoman.stores.sqlite.schema._PATIENCE_MS", 50)
    with pytest.raises(ConfigError, match="another program holds it"):
        await SQLiteStore(path).open()
    other.close()


async def test_a_name_that_means_memory_to_sqlite_is_a_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await made(Path(":memory:"))
    assert (tmp_path / ":memory:").stat().st_size
