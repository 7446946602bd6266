"""Partitions go when their tasks are gone, and what dead workers left is tidied up."""

from dragoman.model.task import TaskState
from dragoman.stores.interface import Duty, Query
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.postgres.pruning import forget_some
from dragoman.testing.promises.samples import (
    END_OF_TIME,
    HERE,
    creation,
    head_of,
    log_of,
    opening,
    receiver,
    snapshot_of,
    submit,
    write,
)
from dragoman.testing.promises.words import index
from tests.stores.postgres.conftest import Opener

PART = 1 << 20


async def parts(store: PostgresStore) -> list[str]:
    rows = await store._connections.rows(
        "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid "
        "WHERE inhparent IN ('events'::regclass, 'snapshots'::regclass) AND relkind = 'r' "
        "ORDER BY relname"
    )
    return [name for (name,) in rows]


async def skip_to(store: PostgresStore, part: int) -> None:
    """Have the next block be the first of a partition, as after a million tasks."""
    await store._connections.rows("SELECT setval('blocks', $1)", part * PART // 4096 - 1)
    store._writer._end = store._writer._next


def ended(id: str, **more: object) -> object:
    return creation(
        id, state=TaskState.COMPLETED, at=1, snapshot=snapshot_of(opening(id), 1), **more
    )


async def fill(store: PostgresStore) -> None:
    """Make ended tasks in the partitions 0 to 2; the worker fills the third."""
    for part in range(3):
        if part:
            await skip_to(store, part)
        await submit(store, *(ended(f"t{part}-{n}") for n in range(600)))


async def test_a_partition_whose_tasks_are_all_gone_is_dropped(store: PostgresStore) -> None:
    """But for those in which there may come to be more: that of the next block, and those of the
    last two blocks of a living worker."""
    await fill(store)
    assert await parts(store) == [
        f"{name}_{n}" for name in ("events", "snapshots") for n in range(3)
    ]
    assert await store.prune(ended_before=2, keep=0) == 1800
    assert await parts(store) == ["events_1", "events_2", "snapshots_1", "snapshots_2"]
    assert (await store.page(Query(HERE, 1))).total == 0
    await skip_to(store, 3)
    await write(store, creation("t3"))
    await skip_to(store, 4)
    await write(store, creation("t4"))
    assert await store.prune(ended_before=2, keep=0) == 0
    assert await parts(store) == ["events_3", "events_4", "snapshots_3", "snapshots_4"]
    assert len(await log_of(store, await head_of(store, "t3"))) == 1


async def test_a_partition_stays_for_one_task_and_the_others_of_it_go(store: PostgresStore) -> None:
    """That runs, that is too young, or whose receiver still waits."""
    await write(store, creation("runs", state=TaskState.WORKING, at=1))
    await write(store, ended("posts", pushes=[receiver("r", "posts")]))
    await fill(store)
    await skip_to(store, 3)
    await write(store, creation("t3"))
    assert await store.prune(ended_before=2, keep=0) == 1800
    assert await parts(store) == [
        f"{name}_{n}" for name in ("events", "snapshots") for n in (0, 2, 3)
    ]
    ((left,),) = await store._connections.rows("SELECT count(*) FROM events_0")
    assert left == 2
    for id in ("runs", "posts"):
        head = await head_of(store, id)
        assert len(await log_of(store, head)) == 1 and len(await store.pushes(head.number)) < 2


async def test_tasks_beyond_those_to_keep_leave_no_empty_partition(store: PostgresStore) -> None:
    await fill(store)
    assert await store.prune(ended_before=0, keep=700) == 1100
    assert [name for name in await parts(store) if name.endswith("_0")] == []
    ((left,),) = await store._connections.rows("SELECT count(*) FROM events")
    assert left == 700


async def test_words_go_with_tasks_that_an_older_release_forgets(store: PostgresStore) -> None:
    """It knows of no words, and deletes the tasks alone."""
    await submit(store, ended("t1"), ended("t2"))
    await index(store)
    gone, stays = [(await head_of(store, id)).number for id in ("t1", "t2")]
    await store._connections.rows("DELETE FROM tasks WHERE number = $1", gone)
    assert await store._connections.rows("SELECT task FROM task_words") == [(stays,)]


async def test_one_that_was_frozen_and_has_a_successor_forgets_nothing(
    opener: Opener, store: PostgresStore
) -> None:
    """Both would count what is too much, and each would delete as many."""
    await submit(store, *(ended(f"t{n}") for n in range(30)))
    assert await store.lead(Duty.PRUNE)
    successor = await opener.successor(store)
    assert await successor.lead(Duty.PRUNE)
    assert await store.prune(ended_before=0, keep=10) == 0
    assert await successor.prune(ended_before=0, keep=10) == 20


async def test_no_other_gets_the_duty_while_one_forgets(
    opener: Opener, store: PostgresStore
) -> None:
    await submit(store, *(ended(f"t{n}") for n in range(30)))
    assert await store.lead(Duty.PRUNE)
    successor = await opener.open()
    async with store._connections.transaction() as connection:
        assert await forget_some(connection, store.worker, 0, 20, ()) == 10
        await successor._connections.rows("SELECT bury($1)", store.worker)
        assert not await successor.lead(Duty.PRUNE)
    assert await successor.lead(Duty.PRUNE)
    assert await successor.prune(ended_before=0, keep=20) == 0


async def test_the_partition_of_a_block_that_another_living_worker_has_stays(
    opener: Opener, store: PostgresStore
) -> None:
    other = await opener.open()
    await write(other, ended("theirs"))
    await fill(store)
    await skip_to(store, 3)
    assert await store.prune(ended_before=2, keep=0) == 1801
    assert "events_0" in await parts(store)
    await write(other, creation("late"))
    assert len(await log_of(other, await head_of(other, "late"))) == 1
    await other.close()
    head = await head_of(store, "late")
    await store._connections.rows("DELETE FROM tasks WHERE number = $1", head.number)
    await store.prune(ended_before=2, keep=0)
    assert "events_0" not in await parts(store)


async def test_a_reader_that_takes_long_only_puts_a_drop_off(
    opener: Opener, store: PostgresStore
) -> None:
    await fill(store)
    async with store._connections.transaction() as reader:
        await reader.fetch("SELECT count(*) FROM events")
        assert await store.prune(ended_before=2, keep=0) == 1800
        assert "events_0" in await parts(store)
        await write(store, creation("meanwhile"))
    await store.prune(ended_before=2, keep=0)
    assert "events_0" not in await parts(store)


async def test_what_gone_workers_counted_becomes_one_number_and_they_are_forgotten(
    opener: Opener, store: PostgresStore
) -> None:
    for n in range(3):
        other = await opener.open()
        await submit(other, *(ended(f"t{n}-{k}") for k in range(3)))
        await other.close()
    holds = await opener.open()
    await write(holds, creation("unfinished"))
    await holds._workers.vanish()
    await write(store, creation("t"))
    await store._connections.rows("SELECT bury($1)", holds.worker)
    total = (await store.page(Query(HERE, 1))).total
    await store.prune(ended_before=0, keep=END_OF_TIME)
    shards = await store._connections.rows("SELECT DISTINCT shard FROM counts ORDER BY shard")
    assert shards == [(0,), (store.worker,)]
    assert (await store.page(Query(HERE, 1))).total == total == 11
    # Not at once: they may come to ask what became of a group.
    ((left,),) = await store._connections.rows("SELECT count(*) FROM workers")
    assert left >= 5
    await store._connections.rows(
        "UPDATE workers SET gone_at = gone_at - interval '2 days' WHERE gone_at IS NOT NULL"
    )
    await store.prune(ended_before=0, keep=END_OF_TIME)
    rows = await store._connections.rows("SELECT number FROM workers ORDER BY number")
    assert rows == [(store.worker,), (holds.worker,)]
    ((claimed, held_by),) = await store.claim("agent", 10)
    assert (claimed.task_id, held_by) == ("unfinished", holds.worker)
