"""Who is taken for dead and when: killed, frozen and cut workers, and a server that was away."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from harness.databases import Databases
from harness.waiting import eventually, within

from dragoman.engine.store_clock import StoreClock
from dragoman.model.clock import SystemClock
from dragoman.model.task import TaskState
from dragoman.stores.interface import Duty
from dragoman.stores.postgres import Addresses, PostgresStore, workers
from dragoman.testing.promises.samples import creation, head_of, submit, write
from tests.stores.postgres.conftest import Opener

# By the clock of the machine: a busy one is slow to start what is due.
SLACK = 5.0


async def age(store: PostgresStore, seconds: float, *numbers: int) -> None:
    """Let signs of life have come so much earlier."""
    sql = "UPDATE beats SET at = at - $1::interval WHERE worker = ANY ($2::int[])"
    await store._connections.rows(sql, timedelta(seconds=seconds), numbers)


async def make_steady(store: PostgresStore, seconds: float = 3600) -> None:
    """Let all workers have been heard steadily for so long."""
    sql = "UPDATE beats SET steady_since = steady_since - $1::interval"
    await store._connections.rows(sql, timedelta(seconds=seconds))


async def freeze(store: PostgresStore) -> None:
    """Have a worker give no sign of life any more; its session stays."""
    keeping = store._workers._keeping
    assert keeping is not None
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_killed_worker_is_dead_within_a_second(opener: Opener) -> None:
    """And not because anyone asked for it: by itself."""
    killed, other = await opener.open(lease=30), await opener.open(lease=30)
    await write(killed, creation("t", state=TaskState.WORKING))
    freed = asyncio.Event()
    other.listen(lambda rung: freed.set() if rung is not None and rung.freed else None)
    began = time.monotonic()
    await killed.vanish()
    await within(freed.wait())
    # A busy machine takes longer, but by then no lease has ended.
    assert time.monotonic() - began < 15.0
    assert not await other.is_live(killed.worker)
    ((_, held_by),) = await other.claim("agent", 10)
    assert held_by == killed.worker


async def test_a_frozen_worker_is_dead_after_its_lease_and_not_before(opener: Opener) -> None:
    frozen, other = await opener.open(lease=30), await opener.open(lease=30)
    await write(frozen, creation("t", state=TaskState.WORKING))
    await freeze(frozen)
    await make_steady(other)
    await age(other, 29, frozen.worker)
    await other.renew()
    assert await other.is_live(frozen.worker)
    await age(other, 1, frozen.worker)
    await other.renew()
    assert not await other.is_live(frozen.worker)
    assert len(await other.claim("agent", 10)) == 1


async def test_a_frozen_worker_that_wakes_can_write_nothing_and_goes_on_as_another(
    opener: Opener,
) -> None:
    frozen, other = await opener.open(), await opener.open()
    await write(frozen, creation("t", state=TaskState.WORKING))
    number = frozen.worker
    await freeze(frozen)
    await other._connections.rows("SELECT bury($1)", number)
    assert [outcome.is_refused for outcome in await submit(frozen, creation("u"))] == [True]
    assert frozen.worker != number and frozen.lapses == 1
    assert [outcome.is_refused for outcome in await submit(frozen, creation("u"))] == [False]
    assert (await head_of(other, "u")).holder == frozen.worker


async def test_a_refusal_of_the_former_worker_is_no_second_death(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be heard late, when a sign of life has told us already."""
    frozen, other = await opener.open(), await opener.open()
    await write(frozen, creation("t"))
    await freeze(frozen)
    await other._connections.rows("SELECT bury($1)", frozen.worker)
    rejoin = frozen._workers.rejoin

    async def hear_late(former: int) -> None:
        await frozen.renew()
        await rejoin(former)

    monkeypatch.setattr(frozen._workers, "rejoin", hear_late)
    assert [outcome.is_refused for outcome in await submit(frozen, creation("u"))] == [True]
    assert frozen.lapses == 1 and await other.is_live(frozen.worker)


async def test_nobody_is_late_whose_server_was_frozen(opener: Opener) -> None:
    """When it goes on, all signs of life are old at once: the first worker to be heard must not
    judge the others."""
    stores = [await opener.open(lease=30) for _ in range(3)]
    await asyncio.gather(*(freeze(store) for store in stores))
    numbers = [store.worker for store in stores]
    await make_steady(stores[0])
    await age(stores[0], 300, *numbers)
    await stores[0].renew()
    for number in numbers:
        assert await stores[0].is_live(number)
    # It is judged once the judge was heard for a lease.
    await make_steady(stores[0], 30)
    await stores[0].renew()
    assert not await stores[0].is_live(numbers[1])


async def test_a_worker_without_a_session_has_a_moment_from_when_that_was_seen(
    opener: Opener,
) -> None:
    """And another one if it was heard meanwhile: then it lives, and is opening its session."""
    gone, judge = await opener.open(), await opener.open()
    looking = judge._workers
    await freeze(judge)
    await gone._workers.vanish()
    await eventually(lambda: _has_no_lock(judge, gone.worker))
    await age(judge, 3600, gone.worker)
    await looking._look()
    assert await judge.is_live(gone.worker)
    _let_pass(looking, workers.REOPEN_WITHIN)
    await age(judge, -1, gone.worker)
    await looking._look()
    assert await judge.is_live(gone.worker)
    _let_pass(looking, workers.REOPEN_WITHIN)
    await looking._look()
    assert not await judge.is_live(gone.worker)


def _let_pass(looking: workers.Workers, seconds: float) -> None:
    looking._absent = {one: since - seconds for one, since in looking._absent.items()}


async def _has_no_lock(store: PostgresStore, number: int) -> bool:
    return not await _has_lock(store, number)


def test_the_look_that_may_find_a_worker_dead_does_not_wait_for_its_turn() -> None:
    every, now = workers.LOOK_EVERY, 100.0
    assert workers.until_next_look([], now, every) == every
    # Seen a moment ago: looks come as ever, for it may be back.
    assert workers.until_next_look([now], now, every) == every
    nearly = now - workers.REOPEN_WITHIN + 0.02
    assert workers.until_next_look([now, nearly], now, every) == pytest.approx(0.02)
    # It had its time and is still there, for its last write is under way: no loop without a pause.
    assert workers.until_next_look([now - workers.REOPEN_WITHIN], now, every) == every


async def test_a_lost_session_is_no_death(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened again, and the worker has its lock and its number."""
    # A busy machine may take longer to open one than others have patience with it.
    monkeypatch.setattr(workers, "REOPEN_WITHIN", 30.0)
    stores = [await opener.open() for _ in range(3)]
    numbers = [store.worker for store in stores]
    for _ in range(5):
        session = stores[0]._workers.session
        assert session is not None
        pid = session.get_server_pid()
        await stores[1]._connections.rows("SELECT pg_terminate_backend($1, 5000)", pid)
        await eventually(lambda: _has_lock(stores[1], numbers[0]))
    await stores[1].renew()
    assert [store.worker for store in stores] == numbers
    assert [store.lapses for store in stores] == [0, 0, 0]


async def _has_lock(store: PostgresStore, number: int) -> bool:
    return bool((await store._connections.rows("SELECT has_session($1)", number))[0][0])


async def test_a_session_that_the_server_takes_for_alive_does_not_keep_the_lock(
    opener: Opener,
) -> None:
    """The old one was cut off and not ended."""
    store, other = await opener.open(), await opener.open()
    number, old = store.worker, store._workers.session
    store._workers._session = None
    await eventually(lambda: store._workers.session is not None)
    await eventually(lambda: _has_lock(other, number))
    new = store._workers.session
    assert new is not None and new is not old
    await eventually(lambda: _holds(other, number, new.get_server_pid()))
    assert (store.worker, store.lapses) == (number, 0)


async def _holds(store: PostgresStore, number: int, pid: int) -> bool:
    sql = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::int::oid AND pid = $2"
    return bool(await store._connections.rows(sql, number, pid))


# The server restarts


@pytest.fixture
def restarted() -> Iterator[Databases]:
    """A server of the test's own."""
    with Databases.of_own() as databases:
        yield databases


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_restart_of_the_server_costs_three_living_workers_nothing(
    restarted: Databases, how: str
) -> None:
    url = await asyncio.to_thread(restarted.make)
    # With a grace, and none of them is judged within it.
    stores = [PostgresStore(Addresses(url)) for _ in range(3)]
    for store in stores:
        await store.open()
    numbers = [store.worker for store in stores]
    await write(stores[0], creation("t", state=TaskState.WORKING))
    assert await stores[0].lead(Duty.PRUNE)
    before = [store._workers.session for store in stores]
    await asyncio.to_thread(getattr(restarted.server, how))
    await asyncio.to_thread(restarted.server.start)

    async def are_back() -> bool:
        sessions = [store._workers.session for store in stores]
        if any(one is None or one is then for one, then in zip(sessions, before, strict=True)):
            return False
        return all([await _has_lock(stores[0], number) for number in numbers])

    await eventually(are_back)
    assert [store.worker for store in stores] == numbers
    assert [store.lapses for store in stores] == [0, 0, 0]
    assert [await store.claim("agent", 10) for store in stores] == [[], [], []]
    assert await stores[0].lead(Duty.PRUNE) and not await stores[1].lead(Duty.PRUNE)
    await submit(stores[1], creation("u"))
    for store in stores:
        await store.close()


async def test_a_young_worker_takes_over_at_once_from_one_that_died_alone(opener: Opener) -> None:
    """As a replica does that was just started, also the only one."""
    dead = await opener.open()
    await write(dead, creation("t", state=TaskState.WORKING))
    await dead._workers.vanish()
    young = await opener.open(grace=3600)
    await eventually(lambda: _is_dead(young, dead.worker))
    assert len(await young.claim("agent", 10)) == 1


async def _is_dead(store: PostgresStore, number: int) -> bool:
    await store.renew()
    return not await store.is_live(number)


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
async def test_one_that_was_not_heard_since_a_restart_is_not_judged_within_the_grace(
    restarted: Databases, how: str
) -> None:
    """No lock is there then, for a moment."""
    url = await asyncio.to_thread(restarted.make)
    cut, young = PostgresStore(Addresses(url)), PostgresStore(Addresses(url), grace=3600)
    for store in (cut, young):
        await store.open()
    session = young._workers.session
    if how == "crash":
        # One process of the server: the others end, and it recovers under the same number.
        pid = restarted.server.sql(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        )
        await cut._workers.vanish()
        os.kill(int(pid), signal.SIGKILL)
    else:
        await cut._workers.vanish()
        await asyncio.to_thread(getattr(restarted.server, how))
        await asyncio.to_thread(restarted.server.start)
    await eventually(lambda: young._workers.session not in (None, session))
    await eventually(lambda: _has_lock(young, young.worker))
    await age(young, 10, cut.worker)
    await young.renew()
    assert await young.is_live(cut.worker)
    young._workers._grace = 0
    await young.renew()
    assert not await young.is_live(cut.worker)
    for store in (cut, young):
        await store.close()


async def test_one_that_was_heard_before_a_failover_is_not_judged_within_the_grace(
    opener: Opener,
) -> None:
    """A standby has all rows, and no locks, when it becomes the server."""
    cut, young = await opener.open(), await opener.open(grace=3600)
    await cut._workers.vanish()
    sql = "UPDATE beats SET timeline = '00000000' WHERE worker = $1"
    await young._connections.rows(sql, cut.worker)
    await eventually(lambda: _is_cut_off(young, cut.worker))
    await young.renew()
    assert await young.is_live(cut.worker)


async def _is_cut_off(store: PostgresStore, number: int) -> bool:
    return bool((await store._connections.rows("SELECT is_cut_off($1)", number))[0][0])


# Clocks


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_wrong_clock_of_a_machine_is_set_right_by_the_servers(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Deadlines are the same everywhere; leases ask no clock but the server's."""
    wrong = hours * 3_600_000

    def shifted() -> int:
        return time.time_ns() // 1_000_000 + wrong

    monkeypatch.setattr(workers, "_now", shifted)
    monkeypatch.setattr(SystemClock, "now", lambda _: shifted())
    store, other = await opener.open(), await opener.open()
    for one in (store, other):
        assert abs(StoreClock(one).now() - time.time_ns() // 1_000_000) < SLACK * 1000
        assert (one.clock_offset == 0) is (hours == 0)
    await store.renew()
    assert await other.is_live(store.worker) and await store.is_live(other.worker)


# Duties


async def test_a_duty_is_fenced_in_the_transaction_of_its_deed(opener: Opener) -> None:
    leader, other = await opener.open(), await opener.open()
    assert await leader.lead(Duty.SEAL)
    assert not await other.lead(Duty.SEAL)
    number = leader.worker
    holds = "SELECT holds_duty($1, 'seal')"
    async with leader._connections.transaction() as deed:
        assert await deed.fetchval(holds, number)
        assert not await deed.fetchval(holds, other.worker)
        await freeze(leader)
        await other._connections.rows("SELECT bury($1)", number)
        # It is dead, and its deed is not done: nobody else begins one, and nobody waits.
        assert not await within(other.lead(Duty.SEAL))
    assert await other.lead(Duty.SEAL)
    async with leader._connections.transaction() as deed:
        assert not await deed.fetchval(holds, number)


async def test_a_deed_whose_worker_froze_in_the_midst_of_it_does_not_keep_the_duty(
    opener: Opener,
) -> None:
    leader, other = await opener.open(), await opener.open()
    assert await leader.lead(Duty.SEAL)
    connection = await leader._connections.session()
    deed = connection.transaction()
    await deed.start()
    assert await connection.fetchval("SELECT holds_duty($1, 'seal')", leader.worker)
    await freeze(leader)
    await other._connections.rows("SELECT bury($1)", leader.worker)
    assert not await other.lead(Duty.SEAL)
    # The server ends a transaction that nobody goes on with.
    await eventually(lambda: other.lead(Duty.SEAL))
    connection.terminate()
