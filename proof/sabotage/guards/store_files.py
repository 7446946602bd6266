"""Guards on the file of a store: gone, replaced, read-only, empty beside leftovers."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from dragoman.errors import ConfigError, StoreBroken, StoreRefused
from dragoman.model.identity import ContextId, Scope, TaskId, new_id
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import Create, TaskPosition
from dragoman.stores.sqlite import SQLiteStore, store
from dragoman.stores.sqlite.files import leftovers
from dragoman.stores.sqlite.files.backup import back_up
from dragoman.stores.sqlite.files.watch import FileWatch
from dragoman.stores.sqlite.schema import run
from dragoman.stores.sqlite.writer import Writer
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_SCOPE = Scope("proof", "", "")


@contextlib.asynccontextmanager
async def _open_for_a_while(trial: Trial) -> AsyncGenerator[SQLiteStore]:
    """Give a store whose file has some of it and whose log has the rest."""
    opened = SQLiteStore(trial.store)
    await opened.open()
    try:
        await _acknowledged(opened)
        await opened.read_tx(lambda scans: run(scans, "PRAGMA wal_checkpoint(truncate)"))
        await opened.renew()
        await _acknowledged(opened)
        yield opened
    finally:
        with contextlib.suppress(StoreRefused):
            await opened.close()


async def _acknowledged(opened: SQLiteStore) -> bool:
    """Write a task; tell whether it was acknowledged."""
    task = Task(TaskId(new_id()), ContextId(new_id()), TaskStatus(TaskState.SUBMITTED))
    standing = TaskPosition(TaskState.SUBMITTED, 1, 1)
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    opened.submit(
        Create(_SCOPE, task.id, task.context_id, [], [Recorded.of_event(1, task)], standing, None),
        lambda error, _: told.set_result(error is None),
    )
    return await told


async def _after_renewal(opened: SQLiteStore) -> Finding:
    with contextlib.suppress(StoreBroken):
        await opened.renew()
    count = sum([await _acknowledged(opened) for _ in range(3)])
    return Finding(not count, f"{count} of 3 tasks acknowledged after the renewal")


async def replaced_file(trial: Trial) -> Finding:
    """Put a copy in the place of a store's file while it is open."""
    async with _open_for_a_while(trial) as opened:
        copy = trial.folder / "copy.db"
        shutil.copy(trial.store, copy)
        copy.replace(trial.store)
        return await _after_renewal(opened)


async def restored_backup(trial: Trial) -> Finding:
    """Copy a backup into a store's file while it is open."""
    async with _open_for_a_while(trial) as opened:
        copy = trial.folder / "backup.db"
        await asyncio.to_thread(back_up, trial.store, copy)
        shutil.copyfile(copy, trial.store)
        return await _after_renewal(opened)


async def cut_log(trial: Trial) -> Finding:
    """Cut what was written last off the log of a store while it is open, and write on."""
    async with _open_for_a_while(trial) as opened:
        size = os.stat(f"{trial.store}-wal").st_size
        await _acknowledged(opened)
        os.truncate(f"{trial.store}-wal", size)
        await _acknowledged(opened)
        return await _after_renewal(opened)


async def lost_file(trial: Trial) -> Finding:
    """Delete a store's file, then start again."""
    async with _open_for_a_while(trial):
        pass
    trial.store.unlink()
    return await _opening(trial.store, "an empty store in place of the one that was lost")


async def foreign_log(trial: Trial) -> Finding:
    """Copy a backup beside the log of a killed server, then start again."""
    copy, log = trial.folder / "backup.db", trial.folder / "log"
    async with _open_for_a_while(trial):
        await asyncio.to_thread(back_up, trial.store, copy)
        shutil.copy(f"{trial.store}-wal", log)
        shutil.copy(f"{trial.store}.lock", trial.folder / "lock")
    shutil.copyfile(copy, trial.store)
    shutil.copyfile(log, f"{trial.store}-wal")
    shutil.copyfile(trial.folder / "lock", f"{trial.store}.lock")
    return await _opening(trial.store, "a file mixed with the log of another")


async def second_log(trial: Trial) -> Finding:
    """Delete the log of a store that is open, and open it once more."""
    log = f"{trial.store}-wal"
    async with _open_for_a_while(trial):
        os.unlink(log)
        await _opening(trial.store, "")
        is_made = Path(log).name in os.listdir(trial.folder)
    return Finding(not is_made, "two logs of one file" if is_made else "refused")


async def _opening(path: Path, harm: str) -> Finding:
    """Open a store that is to be refused."""
    another = SQLiteStore(path)
    try:
        await another.open()
    except ConfigError:
        return Finding(True, "refused")
    await another.close()
    return Finding(False, harm)


def _method(owner: Any, name: str, result: Any) -> Removal:
    """Return a removal that has a method or function say what it says when all is well."""

    def nothing(*given: Any, **named: Any) -> Any:
        return result

    def remove(patches: Patches) -> None:
        patches.put(owner, name, lambda _: nothing)

    return remove


GUARDS: tuple[Guard, ...] = (
    Guard("file name", "D1", "which file has the name is not looked at", replaced_file, True),
    Guard("file head", "D1", "what the file says is not looked at", restored_backup, True),
    Guard("file log", "D1", "the ends of the log are not looked at", cut_log, True),
    Guard("lost store", "D5", "a store that is lost takes writes", replaced_file, True),
    Guard("leftovers", "D1", "an empty file is always a new store", lost_file, True),
    Guard("log owner", "D9", "a log is applied to any file beside it", foreign_log, True),
    Guard("one log", "D1", "a store is joined whose log is deleted", second_log, True),
)
REMOVALS: dict[str, Removal] = {
    "file name": _method(FileWatch, "_misplaced", None),
    "file head": _method(FileWatch, "_overwritten", None),
    "file log": _method(FileWatch, "_log_loss", None),
    "lost store": _method(Writer, "refuse_all", None),
    "leftovers": _method(leftovers, "leftovers", []),
    "log owner": _method(store, "check_log", None),
    "one log": _method(store, "is_served_without_log", False),
}
