"""Forgets ended tasks in small transactions, so that no writer waits long for one of them.

Logs are in partitions by the numbers of tasks. One that can get no more tasks, and whose tasks are
all to be forgotten, is dropped with what is in it; where some stay, the others' rows are deleted.
A partition goes only when no task is left in it, by whichever process they were deleted.
"""

import logging
from collections.abc import Callable, Collection
from datetime import timedelta

from dragoman.errors import StoreUnavailable
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, LockTimeout
from dragoman.stores.postgres.deeds import do

logger = logging.getLogger("dragoman")

_SQL = statements("dragoman.stores.postgres", "pruning.sql")
_STEP = 500
# Numbers of tasks in a partition: two to the power of this.
_PART_BITS = 20
# Dropping a partition waits for all readers of logs, and all others wait behind it: not for long.
_PATIENCE = "SET LOCAL lock_timeout = '300ms'"
_REMEMBERED = timedelta(days=1)
# What belongs to a task, by its number; the task's own row goes last.
_LOGS = ("forget_events", "forget_snapshots")
_PARTS = (
    "forget_notes",
    "forget_deadlines",
    "forget_withheld",
    "forget_letters",
    "forget_pushes",
    "forget_tasks",
)


async def prune(
    connections: DatabaseConnections, worker: Callable[[], int], ended_before: int, keep: int
) -> int:
    """Forget terminal tasks by age and number, then keys by age; return how many tasks. None while
    another worker that lives has the duty."""
    forgotten = 0
    dying = await _dying(connections, ended_before)

    async def some(connection: Connection) -> int:
        return await forget_some(connection, worker(), ended_before, keep, dying)

    while step := await do(connections, some):
        forgotten += step
    await connections.rows(_SQL["forget_keys"], ended_before)
    await connections.rows(_SQL["forget_withheld_of_ended"])
    await _drop_empty(connections)

    async def fold(connection: Connection) -> None:
        await connection.execute(_SQL["fold_counts"])

    await do(connections, fold)
    await connections.rows(_SQL["forget_workers"], _REMEMBERED)
    return forgotten


async def _dying(connections: DatabaseConnections, ended_before: int) -> set[int]:
    """Return the partitions that are about to be dropped: their rows need not be deleted."""
    found: set[int] = set()
    for part in await _closed(connections):
        ((has_others,),) = await connections.rows(_SQL["has_others"], part, ended_before)
        if not has_others:
            found.add(part)
    return found


async def _closed(connections: DatabaseConnections) -> list[int]:
    async with connections.transaction() as connection:
        await connection.execute(_SQL["lock_blocks"])
        return [part for (part,) in await connection.fetch(_SQL["closed"])]


async def _drop_empty(connections: DatabaseConnections) -> None:
    """Drop closed partitions without tasks, unless readers keep us waiting: then next time."""
    for part in await _closed(connections):
        ((has_tasks,),) = await connections.rows(_SQL["has_tasks"], part)
        if has_tasks:
            continue
        try:
            async with connections.transaction() as connection:
                await connection.execute(_PATIENCE)
                await connection.execute(_SQL["drop_part"].format(part=part))
        except LockTimeout:
            logger.info("partition %d is read at present; it is dropped next time", part)
        except StoreUnavailable as error:
            logger.warning("partition %d could not be dropped: %s", part, error)


async def forget_some(
    connection: Connection, worker: int, ended_before: int, keep: int, dying: Collection[int]
) -> int:
    """Forget a portion within a transaction; return how many tasks."""
    if not await connection.fetchval(_SQL["may_prune"], worker):
        return 0
    doomed = await connection.fetch(_SQL["doomed_by_age"], ended_before, _STEP)
    if not doomed:
        surplus = await connection.fetchval(_SQL["ended"]) - keep
        if surplus > 0:
            doomed = await connection.fetch(_SQL["doomed_by_number"], min(surplus, _STEP))
    if doomed:
        await _forget(connection, doomed, dying)
    return len(doomed)


async def _forget(
    connection: Connection, doomed: list[tuple[int, int, int]], dying: Collection[int]
) -> None:
    numbers, scopes, states = [list(column) for column in zip(*doomed, strict=True)]
    logged = [number for number in numbers if number >> _PART_BITS not in dying]
    for name in _LOGS if logged else ():
        await connection.execute(_SQL[name], logged)
    for name in _PARTS:
        await connection.execute(_SQL[name], numbers)
    await connection.execute(_SQL["uncount"], scopes, states)
