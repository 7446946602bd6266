"""Several workers on one file: who lives, who is alone, and what each may rely on."""

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness.waiting import eventually

from dragoman.errors import StoreConflict, StoreUnavailable
from dragoman.model.identity import TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import Duty, KeepReply, Known
from dragoman.stores.sqlite import SQLiteStore, writer
from dragoman.stores.sqlite.schema import run
from dragoman.testing.promises.samples import (
    HERE,
    WITHIN,
    addition,
    chunk,
    creation,
    head_of,
    letter,
    log_of,
    receiver,
    submit,
    write,
)
from tests.stores.pair import LEASE, Pair


def rows(path: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def locks(pair: Pair) -> set[str]:
    return {file.name for file in pair.path.parent.iterdir() if ".worker-" in file.name}


# Leases


async def test_a_frozen_worker_is_dead_when_its_lease_has_ended_and_not_before(pair: Pair) -> None:
    frozen, other = await pair.open(), await pair.open()
    await pair.stop(frozen)
    await write(frozen, creation("t"))
    pair.now += int(LEASE * 1000) - 1
    await other.renew()
    assert await other.is_live(frozen.worker)
    assert await other.claim("agent", 10) == []
    pair.now += 1
    assert not await other.is_live(frozen.worker)
    await other.renew()
    assert [held_by for _, held_by in await other.claim("agent", 10)] == [frozen.worker]


async def test_a_duty_stays_with_its_worker_until_that_ones_lease_has_ended(pair: Pair) -> None:
    leader, other = await pair.open(), await pair.open()
    assert await leader.lead(Duty.PRUNE)
    for _ in range(3):
        assert not await other.lead(Duty.PRUNE)
    assert await other.lead(Duty.SEAL)
    await pair.freeze(leader)
    assert await other.lead(Duty.PRUNE)
    # It wakes, and finds out that it has a successor.
    await leader.renew()
    assert not await leader.lead(Duty.PRUNE)
    await pair.end(other)
    assert await leader.lead(Duty.PRUNE)


async def test_tasks_of_a_dead_worker_are_told_of_at_once(pair: Pair) -> None:
    killed, other = await pair.open(), await pair.open()
    freed = asyncio.Event()
    other.listen(lambda rung: freed.set() if rung is not None and rung.freed else None)
    await pair.kill(killed)
    await asyncio.wait_for(freed.wait(), WITHIN)


async def test_a_worker_that_renews_keeps_what_it_holds(pair: Pair) -> None:
    holder, other = await pair.open(), await pair.open()
    await write(holder, creation("t"))
    for _ in range(10):
        pair.now += int(LEASE * 1000 / 3)
        await holder.renew()
        await other.renew()
        assert await other.is_live(holder.worker)
        assert await other.claim("agent", 10) == []


async def test_a_killed_worker_is_dead_at_once(pair: Pair) -> None:
    killed, other = await pair.open(), await pair.open()
    await write(killed, creation("t"))
    assert await other.is_live(killed.worker)
    await pair.kill(killed)
    assert not await other.is_live(killed.worker)
    await other.renew()
    ((head, held_by),) = await other.claim("agent", 10)
    assert (head.fence, held_by) == (2, killed.worker)


async def test_a_lease_from_before_the_machine_started_again_is_void(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are no locks to tell, or something else has the lock."""
    before, other = await pair.open(), await pair.open()
    await pair.stop(before)
    await write(before, creation("t"))
    monkeypatch.setattr(other._workers, "_is_gone", lambda number: False)
    assert await other.is_live(before.worker)
    # The machine's clock begins anew.
    pair.now = 5
    assert not await other.is_live(before.worker)
    await other.renew()
    assert len(await other.claim("agent", 10)) == 1


async def test_leases_of_different_lengths_are_each_taken_at_their_word(pair: Pair) -> None:
    """A process with a short lease does not take one with a long lease for a ghost."""
    long, short = await pair.open(lease=600.0), await pair.open(lease=1.0)
    await write(long, creation("t"))
    assert await short.is_live(long.worker) and await long.is_live(short.worker)
    await short.renew()
    assert await short.claim("agent", 10) == []
    await pair.stop(long)
    await pair.stop(short)
    pair.now += 1000
    assert not await long.is_live(short.worker) and await short.is_live(long.worker)
    pair.now += 599_000
    assert not await short.is_live(long.worker)


async def test_the_date_of_the_machine_changes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = await pair.open(), await pair.open()
    await write(holder, creation("t"))
    real = time.time_ns()
    for jump in (3600, -3600, 400 * 86400):
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: real + jump * 10**9)
        monkeypatch.setattr(time, "time", lambda jump=jump: real / 1e9 + jump)
        await other.renew()
        assert await other.is_live(holder.worker)
        assert await other.claim("agent", 10) == []


async def test_the_stores_time_is_the_machines_and_not_the_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(tmp_path / "tasks.db", lease=7.0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5 * 10**9)
    await store.open()
    assert rows(store.path, "SELECT expires, lease FROM workers") == [(12_000, 7_000)]
    monkeypatch.undo()
    await store.close()


async def test_a_worker_that_wakes_after_its_tasks_were_taken_can_write_none_of_them(
    pair: Pair,
) -> None:
    asleep, other = await pair.open(), await pair.open()
    await write(asleep, creation("t", pushes=[receiver("a")]))
    await write(asleep, creation("mine"))
    head, mine = await head_of(asleep, "t"), await head_of(asleep, "mine")
    (push,) = await asleep.pushes(head.number)
    await pair.freeze(asleep)
    assert len(await other.claim("agent", 1)) == 1
    assert len(await other.claim_pushes(10)) == 1
    (outcome,) = await submit(asleep, addition(head, chunk("t", "late"), keys=[b"late"]))
    assert outcome.is_refused
    with pytest.raises(StoreConflict):
        await asleep.settle(push, letter(push, 1, 1))
    assert await other.dead_letters(10) == []
    # What nobody took meanwhile is still its own.
    assert asleep.lapses == 0
    await asleep.renew()
    assert asleep.lapses == 1
    assert await other.is_live(asleep.worker)
    assert await other.claim("agent", 10) == []
    await write(asleep, addition(mine, chunk("mine", "on")))
    await asleep.renew()
    assert asleep.lapses == 1


async def test_a_worker_that_wakes_is_listed_again_before_its_next_renewal(pair: Pair) -> None:
    """It sees that others wrote, and so that they took it for dead."""
    asleep, other = await pair.open(), await pair.open()
    await pair.freeze(asleep)
    assert not await other.is_live(asleep.worker)
    asleep._chores = [asyncio.ensure_future(asleep._watch_peers())]
    async with asyncio.timeout(WITHIN):
        # What the chores of a worker write is no event of another's.
        while not await other.is_live(asleep.worker):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert asleep.lapses == 1


async def test_a_worker_that_renewed_meanwhile_is_not_reaped(pair: Pair) -> None:
    asleep, other = await pair.open(), await pair.open()
    await pair.stop(asleep)
    pair.now += int(LEASE * 1000)
    assert not await other.is_live(asleep.worker)
    await asleep.renew()
    await other._do(lambda c: other._workers.reap(c, asleep.worker))
    assert await other.is_live(asleep.worker)


# Locks


async def test_lock_files_go_with_their_workers(pair: Pair) -> None:
    first, second, third = await pair.open(), await pair.open(), await pair.open()
    assert locks(pair) == {f"tasks.db.worker-{s.worker}" for s in (first, second, third)}
    await pair.end(first)
    await pair.kill(second)
    assert locks(pair) == {f"tasks.db.worker-{s.worker}" for s in (second, third)}
    await third.renew()
    assert locks(pair) == {f"tasks.db.worker-{third.worker}"}
    await pair.end(third)
    assert locks(pair) == set()
    assert rows(pair.path, "SELECT count(*) FROM workers") == [(0,)]


async def test_the_lock_file_of_one_that_was_buried_frozen_and_then_ended_goes_too(
    pair: Pair,
) -> None:
    frozen, other = await pair.open(), await pair.open()
    await pair.freeze(frozen)
    assert f"tasks.db.worker-{frozen.worker}" in locks(pair)
    await pair.kill(frozen)
    await other.renew()
    newcomer = await pair.open()
    assert locks(pair) == {f"tasks.db.worker-{s.worker}" for s in (other, newcomer)}


async def test_files_of_another_name_are_left_alone(pair: Pair) -> None:
    kept = [pair.path.parent / name for name in ("tasks.db.worker-x", "other.db.worker-1")]
    for file in kept:
        file.touch()
    await pair.open()
    assert all(file.exists() for file in kept)


async def test_numbers_are_given_once(pair: Pair) -> None:
    numbers = []
    for n in range(6):
        store = await pair.open()
        numbers.append(store.worker)
        await (pair.kill if n % 2 else pair.end)(store)
    assert numbers == sorted(set(numbers))


async def test_opening_closing_and_looking_leak_no_files(pair: Pair) -> None:
    first = await pair.open()
    await pair.end(await pair.open())

    def files() -> int:
        return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))

    before = files()
    for _ in range(5):
        other = await pair.open()
        for _ in range(20):
            assert await first.is_live(other.worker)
        await pair.end(other)
        assert not await first.is_live(other.worker)
        await first.renew()
    assert files() == before


async def test_a_worker_locks_its_file_before_anyone_can_see_its_row(pair: Pair) -> None:
    store = await pair.open()
    with open(store._workers._lock_of(store.worker)) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Alone and in company


async def test_one_that_shares_the_file_sees_the_others_keys(pair: Pair) -> None:
    first = await pair.open()
    assert first.knows_all
    assert await first.known(HERE, b"k" * 16) is None
    second = await pair.open()
    # Whoever is let in can rely on it that nobody believes to be alone.
    assert not first.knows_all and not second.knows_all
    await write(second, KeepReply(HERE, b"k" * 16, b"{}"))
    assert await first.known(HERE, b"k" * 16) == Known(reply=b"{}")
    (outcome,) = await submit(first, creation("t", keys=[b"k" * 16]))
    assert outcome.is_refused


async def test_one_is_alone_again_when_the_others_left(pair: Pair) -> None:
    first, second = await pair.open(), await pair.open()
    await write(second, KeepReply(HERE, b"k" * 16, b"{}"))
    await pair.end(second)
    assert not first.knows_all
    await first.renew()
    assert first.knows_all
    assert await first.known(HERE, b"k" * 16) == Known(reply=b"{}")
    assert await first.known(HERE, b"n" * 16) is None
    third = await pair.open()
    assert not first.knows_all
    await write(third, KeepReply(HERE, b"n" * 16, b"{}"))
    assert await first.known(HERE, b"n" * 16) == Known(reply=b"{}")


async def test_one_is_alone_again_when_the_others_died(pair: Pair) -> None:
    first, second = await pair.open(), await pair.open()
    await pair.kill(second)
    await first.renew()
    assert first.knows_all


async def test_one_is_not_alone_while_another_only_sleeps(pair: Pair) -> None:
    first, asleep = await pair.open(), await pair.open()
    await pair.freeze(asleep)
    await first.renew()
    assert not first.knows_all
    # It kept its place among those who share.
    await pair.kill(asleep)
    with open(f"{pair.path}.lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_newcomer_finds_a_dead_incumbent_and_is_alone(pair: Pair) -> None:
    dead = await pair.open()
    await write(dead, creation("t", keys=[b"key"]))
    await pair.kill(dead)
    began = time.monotonic()
    store = await pair.open()
    assert time.monotonic() - began < LEASE / 2
    assert store.knows_all
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert [held_by for _, held_by in await store.claim("agent", 10)] == [dead.worker]


async def test_a_newcomer_is_let_in_soon_by_a_busy_incumbent(pair: Pair) -> None:
    """However much there is to write: it is what was queued that counts."""
    first, count, is_over = await pair.open(), 0, False

    def again(*_: Any) -> None:
        # The next is queued before the last is told, so the writer never rests.
        nonlocal count
        count += 1
        if not is_over:
            first.submit(KeepReply(HERE, b"%d" % count, b"{}"), again)

    for _ in range(3):
        again()
    store = pair.make()
    await asyncio.wait_for(store.open(), WITHIN)
    is_over = True
    assert not store.knows_all and not first.knows_all
    assert count > 10


async def test_a_newcomer_waits_for_a_frozen_incumbents_lease_and_then_works(pair: Pair) -> None:
    frozen = await pair.open()
    await write(frozen, creation("t"))
    await pair.stop(frozen)
    newcomer = pair.make()
    opening = asyncio.ensure_future(newcomer.open())
    await eventually(lambda: newcomer.worker != 0)
    done, _ = await asyncio.wait([opening], timeout=0.2)
    assert not done
    # One that gives up leaves nothing behind but a row, which the next one removes.
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    pair._stores.remove(newcomer)
    pair.now += int(LEASE * 1000)
    newcomer = await pair.open(patience=0.1)
    assert not newcomer.knows_all
    assert [held_by for _, held_by in await newcomer.claim("agent", 10)] == [frozen.worker]
    # By default it is patient for longer than a lease lasts.
    assert SQLiteStore(pair.path, lease=9.0)._patience > 9.0


async def asleep_while_others_wrote(pair: Pair) -> SQLiteStore:
    """Return a store that fell asleep alone; another one came, wrote and went meanwhile."""
    asleep = await pair.open()
    await pair.stop(asleep)
    pair.now += int(LEASE * 1000)
    visitor = await pair.open(patience=0.1)
    await write(visitor, KeepReply(HERE, b"k" * 16, b"{}"))
    await pair.end(visitor)
    return asleep


async def test_one_that_slept_alone_while_others_came_and_went_learns_their_keys(
    pair: Pair,
) -> None:
    asleep = await asleep_while_others_wrote(pair)
    # Still as it fell asleep: sure that it is alone.
    assert asleep.knows_all
    await asleep.renew()
    assert asleep.lapses == 1
    await eventually(lambda: asleep.knows_all)
    assert await asleep.known(HERE, b"k" * 16) == Known(reply=b"{}")


async def test_one_that_wakes_alone_notices_within_moments_and_not_at_the_next_renewal(
    pair: Pair,
) -> None:
    asleep = await asleep_while_others_wrote(pair)
    asleep._chores = [asyncio.ensure_future(asleep._watch_peers())]
    await eventually(lambda: asleep.lapses == 1)
    assert await asleep.known(HERE, b"k" * 16) == Known(reply=b"{}")


# Rings


async def test_whoever_listens_is_rung_soon_after_another_wrote(pair: Pair) -> None:
    first, second = await pair.open(), await pair.open()
    rung = asyncio.Event()
    first.listen(lambda _: rung.set())
    await write(second, creation("t"))

    async def is_rung_soon() -> bool:
        head = await head_of(second, "t")
        rung.clear()
        await write(second, addition(head, chunk("t", "x")))
        began = time.monotonic()
        # Rings may be late; what is durable is seen at once.
        assert len(await log_of(first, head)) == head.standing.last_seq + 1
        await asyncio.wait_for(rung.wait(), WITHIN)
        return time.monotonic() - began < 0.25

    # As soon as the machine lets it: one that is busy has its moments.
    await eventually(is_rung_soon)


async def test_nobody_is_rung_while_nobody_writes(pair: Pair) -> None:
    first, second = await pair.open(), await pair.open()
    rung = asyncio.Event()
    first.listen(lambda _: rung.set())
    number = await write(second, creation("t"))
    await asyncio.wait_for(rung.wait(), WITHIN)
    # The ring may have been for the second one's coming: wait for the one that shows the write.
    while first._seen != first._writer.version:
        rung.clear()
        await asyncio.wait_for(rung.wait(), WITHIN)
    assert await first.read(number, after=0, limit=1)
    rung.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rung.wait(), 0.3)


async def test_nobody_is_rung_for_what_they_wrote_themselves(pair: Pair) -> None:
    first, _ = await pair.open(), await pair.open()
    # The other's coming is told before.
    await eventually(lambda: first._seen == first._writer.version)
    rung = asyncio.Event()
    first.listen(lambda _: rung.set())
    await write(first, creation("t"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rung.wait(), 0.3)


# Turns


async def test_what_comes_while_another_writes_shares_the_first_commit_after_it(
    pair: Pair,
) -> None:
    store = await pair.open()
    await write(store, creation("before"))
    other = apsw.Connection(str(pair.path))
    run(other, "BEGIN IMMEDIATE")
    commits: list[int] = []

    def committed() -> bool:
        commits.append(1)
        return False

    store._writer._connection.set_commit_hook(committed)
    writing = [asyncio.ensure_future(write(store, creation("one")))]
    await eventually(lambda: store._writer._is_busy)
    writing += [asyncio.ensure_future(write(store, creation(name))) for name in ("two", "three")]
    await eventually(lambda: len(store._writer._pending) == 3)
    run(other, "COMMIT")
    other.close()
    numbers = await asyncio.wait_for(asyncio.gather(*writing), WITHIN)
    store._writer._connection.set_commit_hook(None)
    assert sorted(set(numbers)) == sorted(numbers) and len(commits) == 1


async def test_another_who_does_not_end_is_not_waited_for_without_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await pair.open()
    await write(store, creation("before"))
    other = apsw.Connection(str(pair.path))
    run(other, "BEGIN IMMEDIATE")
    monkeypatch.setattr(writer, "_PATIENCE", 0.05)
    (outcome,) = await asyncio.wait_for(submit(store, creation("t")), WITHIN)
    assert isinstance(outcome.error, StoreUnavailable)
    run(other, "ROLLBACK")
    other.close()
    assert await asyncio.wait_for(write(store, creation("t")), WITHIN)


async def test_a_loop_that_is_kept_busy_keeps_nobody_else_from_writing(pair: Pair) -> None:
    store = await pair.open()
    await write(store, creation("before"))
    other = apsw.Connection(str(pair.path))
    run(other, "BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(write(store, creation("t")))
    await eventually(lambda: store._writer.is_waiting)
    # From here on the loop does not get its turn: this is an author's code that blocks.
    run(other, "COMMIT")
    until_then = time.monotonic() + WITHIN
    began: list[float] = []
    while len(began) < 20 and time.monotonic() < until_then:
        # The store's thread begins at some time in between, and lets go again.
        time.sleep(0.002)  # noqa: ASYNC251 - the loop is to stand still
        other.set_busy_timeout(2_000)
        run(other, "BEGIN IMMEDIATE")
        began.append(time.monotonic())
        run(other, "COMMIT")
    other.close()
    assert len(began) == 20
    assert await asyncio.wait_for(writing, WITHIN)


# Numbers and keys across workers


async def test_workers_that_write_at_once_mix_nothing(pair: Pair) -> None:
    stores = [await pair.open(), await pair.open()]

    async def writer(store: SQLiteStore, name: str) -> int:
        number = await write(store, creation(name, keys=[name.encode()]))
        for n in range(10):
            await write(store, addition(await head_of(store, name), chunk(name, str(n))))
        return number

    names = [f"{s}.{n}" for s in range(2) for n in range(20)]
    numbers = await asyncio.wait_for(
        asyncio.gather(*(writer(stores[int(name[0])], name) for name in names)), WITHIN
    )
    assert len(set(numbers)) == 40
    for store in stores:
        for name in names:
            head = await head_of(store, name)
            assert head.holder == stores[int(name[0])].worker
            assert [r.seq for r in await log_of(store, head)] == list(range(1, 12))
            assert await store.known(HERE, name.encode()) == Known(task_id=TaskId(name))


async def test_of_the_same_key_in_two_workers_at_once_one_wins(pair: Pair) -> None:
    stores = [await pair.open(), await pair.open()]
    for n in range(20):
        outcomes = await asyncio.gather(
            *(
                submit(store, creation(f"{n}.{s}", keys=[b"%d" % n]))
                for s, store in enumerate(stores)
            )
        )
        assert sorted(outcome.is_refused for (outcome,) in outcomes) == [False, True]


async def test_of_two_take_overs_at_once_one_wins(pair: Pair) -> None:
    """Both read the same row of the dead; the fence lets one of them write."""
    dead = await pair.open()
    await submit(dead, *(creation(f"t{n}", state=TaskState.INPUT_REQUIRED) for n in range(20)))
    stores = [await pair.open(), await pair.open()]
    await pair.kill(dead)
    for n in range(20):
        head = await head_of(stores[0], f"t{n}")
        taking = [addition(head, chunk(f"t{n}", f"{s}"), next_fence=2) for s in range(2)]
        outcomes = await asyncio.gather(
            *(submit(store, take) for store, take in zip(stores, taking, strict=True))
        )
        assert sorted(outcome.is_refused for (outcome,) in outcomes) == [False, True]
        winner = next(s for s, (o,) in zip(stores, outcomes, strict=True) if o.error is None)
        assert (await head_of(stores[0], f"t{n}")).holder == winner.worker


async def test_two_that_claim_at_once_share_what_there_is(pair: Pair) -> None:
    dead = await pair.open()
    await submit(dead, *(creation(f"t{n}", pushes=[receiver("a")]) for n in range(50)))
    stores = [await pair.open(), await pair.open()]
    await pair.kill(dead)
    for store in stores:
        await store.renew()
    claims = await asyncio.gather(*(store.claim("agent", 40) for store in stores))
    taken = [head.task_id for claim in claims for head, _ in claim]
    assert len(taken) == len(set(taken)) == 50
    claimed = await asyncio.gather(*(store.claim_pushes(30) for store in stores))
    numbers = [push.number for claim in claimed for push in claim]
    assert len(numbers) == len(set(numbers)) == 50


OPENER = """
import asyncio, sys
from dragoman.stores.sqlite import SQLiteStore, writer
from dragoman.testing.promises.samples import creation, write

async def main(name):
    # Reading is not done on the loop: a store that stands still is waited for.
    while path := (await asyncio.to_thread(sys.stdin.readline)).strip():
        store = SQLiteStore(path)
        await store.open()
        await write(store, creation(name, keys=[name.encode()]))
        await store.prepare()
        print(store.secret.hex(), store.worker, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await store.close()
        print("closed", flush=True)

print("up", flush=True)
asyncio.run(main(sys.argv[1]))
"""


def say(openers: list[subprocess.Popen[str]], line: str) -> list[list[str]]:
    """Say something to all at once; return what each answers."""
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write(f"{line}\n")
        opener.stdin.flush()
    return [opener.stdout.readline().split() for opener in openers if opener.stdout is not None]


async def test_processes_that_make_the_file_at_the_same_moment_all_work(tmp_path: Path) -> None:
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, f"t{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    try:
        assert [o.stdout.readline() for o in openers if o.stdout is not None] == ["up\n"] * 3
        for run in range(8):
            path = tmp_path / f"{run}.db"
            said = await asyncio.wait_for(asyncio.to_thread(say, openers, str(path)), WITHIN)
            assert all(len(words) == 2 for words in said), said
            assert len({secret for secret, _ in said}) == 1
            assert len({worker for _, worker in said}) == 3
            assert rows(path, "SELECT count(*) FROM workers") == [(3,)]
            closed = await asyncio.wait_for(asyncio.to_thread(say, openers, "close"), WITHIN)
            assert closed == [["closed"]] * 3
            assert rows(path, "SELECT count(*) FROM tasks") == [(3,)]
            assert rows(path, "SELECT count(*) FROM workers") == [(0,)]
    finally:
        for opener in openers:
            opener.kill()
            opener.communicate(timeout=WITHIN)
