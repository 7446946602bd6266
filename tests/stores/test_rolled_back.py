"""What a write left behind in memory when it did not happen, and what a process leaves in the file
when it goes: neither may mislead whoever comes next."""

import pytest

from dragoman.errors import StoreFull
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import KeepReply, Known, LeaveNote
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.promises.samples import HERE, chunk, creation, head_of, submit, write
from tests.stores.pair import Pair

DAVE = Scope("agent", "", "dave")
EVE = Scope("agent", "", "eve")
MUCH = "x" * 500_000


@pytest.fixture
async def store(pair: Pair) -> SQLiteStore:
    return await pair.open()


async def fill_up(store: SQLiteStore) -> None:
    """Let the file grow no more."""
    await store._do(lambda c: c.pragma("max_page_count", c.pragma("page_count")))


async def make_room(store: SQLiteStore) -> None:
    await store._do(lambda c: c.pragma("max_page_count", 1 << 30))


async def belongs_to(store: SQLiteStore, task_id: str, owner: Scope, other: Scope) -> bool:
    mine = await store.head(owner, TaskId(task_id))
    return mine is not None and await store.head(other, TaskId(task_id)) is None


# Who a task belongs to


async def test_a_caller_first_met_on_a_full_disk_has_tasks_of_his_own_later(
    store: SQLiteStore,
) -> None:
    await write(store, creation("first"))
    await fill_up(store)
    large = creation("d", chunk("d", MUCH, append=False), scope=DAVE)
    (outcome,) = await submit(store, large)
    assert isinstance(outcome.error, StoreFull)
    # A transaction that succeeds, in which nobody was met.
    await store.renew()
    await make_room(store)
    await write(store, creation("d", scope=DAVE))
    await write(store, creation("e", scope=EVE))
    assert await belongs_to(store, "d", DAVE, EVE)
    assert await belongs_to(store, "e", EVE, DAVE)


async def test_a_caller_met_in_a_write_that_is_refused_has_tasks_of_his_own_in_the_next(
    store: SQLiteStore,
) -> None:
    nowhere = LeaveNote(DAVE, 999, [], b"{}")
    dave, eve = creation("d", scope=DAVE), creation("e", scope=EVE)
    outcomes = await submit(store, nowhere, dave, eve)
    assert [outcome.is_refused for outcome in outcomes] == [True, False, False]
    assert await belongs_to(store, "d", DAVE, EVE)
    assert await belongs_to(store, "e", EVE, DAVE)


async def test_no_more_callers_are_known_by_heart_than_fit_and_all_keep_their_tasks(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenants are a caller's choice: whoever makes them up takes no memory for ever."""
    monkeypatch.setattr("dragoman.stores.sqlite.writer.MOST_KNOWN", 4)
    scopes = [Scope("agent", f"tenant {number}", "") for number in range(20)]
    for number, scope in enumerate(scopes):
        await write(store, creation(f"t{number}", scope=scope))
    # In one transaction more than fit, one of them refused and so first met when it comes again.
    refused, *others = await submit(
        store,
        LeaveNote(DAVE, 999, [], b"{}"),
        *(creation(f"u{number}", scope=scope) for number, scope in enumerate(scopes)),
        creation("d", scope=DAVE),
        creation("e", scope=EVE),
    )
    assert refused.is_refused and not any(outcome.is_refused for outcome in others)
    for number, (scope, other) in enumerate(zip(scopes, [*scopes[1:], DAVE], strict=True)):
        for name in (f"t{number}", f"u{number}"):
            assert await belongs_to(store, name, scope, other)
            assert (await head_of(store, name, scope)).scope == scope
    assert await belongs_to(store, "d", DAVE, EVE) and await belongs_to(store, "e", EVE, DAVE)
    known = (store._scopes, store._parts, store._writer._scopes)
    assert [len(each) for each in known] == [4, 4, 4]


# What is said of a full disk


async def test_a_disk_that_fills_up_beside_a_conflict_is_said_to_be_full(
    store: SQLiteStore,
) -> None:
    taken = KeepReply(HERE, b"k" * 16, b"{}")
    await submit(store, taken)
    await fill_up(store)
    _, full = await submit(store, taken, KeepReply(HERE, b"l" * 16, MUCH.encode()))
    assert isinstance(full.error, StoreFull)
    await make_room(store)
    await write(store, creation("t"))


# Leaving


async def test_whoever_leaves_lets_go_of_what_is_unfinished_and_of_nothing_else(
    pair: Pair,
) -> None:
    leaving, staying = await pair.open(), await pair.open()
    number = leaving.worker
    await write(leaving, creation("ended", state=TaskState.COMPLETED))
    await write(leaving, creation("asks", state=TaskState.INPUT_REQUIRED))
    await write(leaving, creation("works", state=TaskState.WORKING))
    await pair.end(leaving)
    # A million ended tasks would be a million rows to write on the way out.
    assert (await head_of(staying, "ended")).holder == number
    assert (await head_of(staying, "asks")).holder == number
    assert (await head_of(staying, "works")).holder == 0
    assert not await staying.is_live(number)


# Keys


async def test_a_key_that_a_guest_wrote_is_known_once_one_is_alone_again(pair: Pair) -> None:
    first = await pair.open()
    guest = await pair.open()
    await submit(guest, KeepReply(HERE, b"k" * 16, b"{}"))
    await pair.end(guest)
    await first.renew()
    assert first.knows_all
    assert await first.known(HERE, b"k" * 16) == Known(TaskId(""), b"{}")
