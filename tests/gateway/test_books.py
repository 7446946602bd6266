"""The books: what tasks hold and cost, in the transactions of their own writes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.errors import HoldRefused, StoreConflict
from dragoman.model.errand import Errand
from dragoman.model.identity import Principal, Scope
from dragoman.model.money import MICRO, Terms
from dragoman.model.task import TaskState
from dragoman.stores.interface import Append, Create
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.accounts import Balance, balance, statement
from dragoman.stores.sqlite.books import Books
from dragoman.stores.sqlite.errands import ErrandRow, errands_of
from dragoman.stores.sqlite.reconciling import verify
from dragoman.stores.sqlite.schema import migrate, run
from dragoman.testing.stores import WITHIN, addition, creation, head_of, status, submit, write

ALICE = Scope("gateway", "", "alice")
TEN = 10 * MICRO
KINDS = ("initial_grant", "hold", "release", "task_debit", "task_credit", "platform_fee", "refund")


def errand(price: int = TEN, held: int | None = None, **more: str) -> Errand:
    given = {"agent": "a1", "requester": "alice", "payee": "bob"} | more
    given |= {side: Principal.read(given[side]) for side in ("requester", "payee")}
    return Errand(price=price, held=price if held is None else held, **given)  # type: ignore[arg-type]  # texts alone


def begun(task_id: str, one: Errand, scope: Scope = ALICE) -> Create:
    return replace(creation(task_id, scope=scope), errand=one)


async def ended(store: SQLiteStore, task_id: str, state: TaskState, **more: Errand) -> Append:
    head = await head_of(store, task_id, ALICE)
    return replace(addition(head, status(task_id, state), state=state, at=2000), **more)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "tasks.db", books=Books())
    await store.open()
    yield store
    assert await store.look(lambda c: verify(c).differences) == []
    await asyncio.wait_for(store.close(), WITHIN)


async def of(store: SQLiteStore, owner: str, account: str = "user") -> tuple[float, float]:
    """Return what somebody can spend, and what is held, in whole credits."""
    found = await store.look(lambda c: balance(c, owner, account)) or Balance()
    return found.available / MICRO, found.held / MICRO


async def row(store: SQLiteStore, task_id: str) -> ErrandRow:
    (found,) = await store.look(lambda c: errands_of(c, task_id))
    return found


async def test_a_price_is_held_with_the_task_and_taken_when_it_is_completed(
    store: SQLiteStore,
) -> None:
    await write(store, begun("t", errand()))
    assert await of(store, "alice") == (990, 10)
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await of(store, "alice") == (990, 0)
    assert await of(store, "bob") == (1009.5, 0)
    assert await of(store, "", "fees") == (0.5, 0)
    found = await row(store, "t")
    assert (found.charged, found.fee, found.earning) == (TEN, TEN // 20, TEN * 19 // 20)
    assert (found.state, found.held, found.ended_at) == (TaskState.COMPLETED, 0, 2000)


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
async def test_what_is_not_completed_costs_nothing(store: SQLiteStore, state: TaskState) -> None:
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", state))
    assert await of(store, "alice") == (1000, 0)
    assert await of(store, "", "fees") == (0, 0)
    found = await row(store, "t")
    assert (found.state, found.charged, found.held) == (state, 0, 0)


async def test_what_waits_for_its_caller_stays_held(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", TaskState.INPUT_REQUIRED))
    assert await of(store, "alice") == (990, 10)


async def test_a_task_that_cannot_be_paid_is_not_made_and_the_others_of_its_commit_are(
    store: SQLiteStore,
) -> None:
    outcomes = await submit(
        store,
        begun("small", errand()),
        begun("large", errand(2_000 * MICRO)),
        begun("other", errand()),
    )
    assert [type(one.error) for one in outcomes] == [type(None), HoldRefused, type(None)]
    refusal = outcomes[1].error
    assert isinstance(refusal, HoldRefused)
    assert (refusal.balance, refusal.needed) == (990 * MICRO, 2_000 * MICRO)
    assert await store.head(ALICE, begun("large", errand()).task_id) is None
    assert await store.look(lambda c: errands_of(c, "large")) == []
    assert await of(store, "alice") == (980, 20)


async def test_the_first_touch_grants_credits_once(store: SQLiteStore) -> None:
    await submit(store, *(begun(f"t{n}", errand()) for n in range(20)))
    lines = await store.look(lambda c: statement(c, "alice", ["initial_grant"], limit=10))
    assert [(line.amount, line.balance) for line in lines] == [(1000 * MICRO, 1000 * MICRO)]
    assert await of(store, "alice") == (800, 200)


@pytest.mark.parametrize("one", [errand(0), errand(payee="alice")], ids=["free", "own agent"])
async def test_where_nobody_else_is_paid_no_money_moves_and_the_errand_is_recorded(
    store: SQLiteStore, one: Errand
) -> None:
    await write(store, begun("t", one))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await store.look(lambda c: run(c, "SELECT count(*) FROM transfers")) == [(0,)]
    found = await row(store, "t")
    assert (found.state, found.charged, found.agent) == (TaskState.COMPLETED, 0, "a1")


async def test_a_hold_follows_the_agent_that_is_chosen(store: SQLiteStore) -> None:
    await write(store, begun("t", Errand(requester=Principal.read("alice"), held=5 * MICRO)))
    assert await of(store, "alice") == (995, 5)
    head = await head_of(store, "t", ALICE)
    dearer = replace(addition(head, status("t", TaskState.WORKING)), errand=errand(8 * MICRO))
    await write(store, dearer)
    assert await of(store, "alice") == (992, 8)
    head = await head_of(store, "t", ALICE)
    cheaper = errand(3 * MICRO, agent="a2", payee="carol")
    await write(store, replace(addition(head, status("t", TaskState.WORKING)), errand=cheaper))
    assert await of(store, "alice") == (997, 3)
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await of(store, "alice") == (997, 0)
    assert await of(store, "carol") == (1002.85, 0)
    assert await of(store, "bob") == (0, 0)
    assert (await row(store, "t")).agent == "a2"


async def test_an_own_agent_that_is_chosen_later_lets_the_hold_go(store: SQLiteStore) -> None:
    await write(store, begun("t", Errand(requester=Principal.read("alice"), held=5 * MICRO)))
    last = await ended(store, "t", TaskState.COMPLETED, errand=errand(payee="alice"))
    await write(store, last)
    assert await of(store, "alice") == (1000, 0)


async def test_an_agent_that_costs_more_than_there_is_is_refused_with_its_write(
    store: SQLiteStore,
) -> None:
    await write(store, begun("t", errand(900 * MICRO)))
    head = await head_of(store, "t", ALICE)
    dearer = replace(addition(head, status("t", TaskState.WORKING)), errand=errand(1001 * MICRO))
    (outcome,) = await submit(store, dearer)
    assert isinstance(outcome.error, HoldRefused)
    assert (await head_of(store, "t", ALICE)).standing == head.standing
    assert await of(store, "alice") == (100, 900)


async def test_less_than_the_hold_is_taken_and_the_rest_comes_back(store: SQLiteStore) -> None:
    await write(store, begun("t", errand(4 * MICRO, 10 * MICRO)))
    assert await of(store, "alice") == (990, 10)
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await of(store, "alice") == (996, 0)


async def test_a_cause_is_noted_and_nothing_else_changes(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    last = await ended(store, "t", TaskState.FAILED, errand=Errand(cause="timeout", skill="sum"))
    await write(store, last)
    found = await row(store, "t")
    assert (found.cause, found.skill, found.agent, found.payee.text) == (
        "timeout",
        "sum",
        "a1",
        "bob",
    )


async def test_a_task_that_ends_again_is_not_charged_again(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    await write(store, await ended(store, "t", TaskState.FAILED))
    assert await of(store, "alice") == (990, 0)
    assert (await row(store, "t")).state is TaskState.COMPLETED


async def test_the_file_itself_refuses_a_second_settlement(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    number = (await head_of(store, "t", ALICE)).number

    def again(connection: apsw.Connection) -> None:
        run(connection, "UPDATE errands SET ended_at = 0, held = price WHERE task = ?", (number,))
        run(connection, "UPDATE accounts SET held = held + ? WHERE owner = 'alice'", (TEN,))
        Books().end(connection, number, TaskState.FAILED, 3000)

    with pytest.raises(StoreConflict):
        await store.change(again)
    assert await of(store, "alice") == (990, 0)


async def test_a_stale_writer_charges_nobody(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    late = await ended(store, "t", TaskState.COMPLETED)
    (outcome,) = await submit(store, replace(late, fence=late.fence + 1, next_fence=9))
    assert outcome.is_refused
    assert await of(store, "alice") == (990, 10)
    assert (await row(store, "t")).ended_at == 0


async def test_two_callers_who_choose_the_same_id_have_an_errand_each(store: SQLiteStore) -> None:
    bob = Scope("gateway", "", "bob")
    await write(store, begun("t", errand()))
    await write(store, begun("t", errand(requester="bob", payee="carol"), bob))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    found = await store.look(lambda c: errands_of(c, "t"))
    assert [(one.requester.text, one.state) for one in found] == [
        ("bob", None),
        ("alice", TaskState.COMPLETED),
    ]
    assert await of(store, "bob") == (999.5, 10)


async def test_what_another_process_began_is_settled_here(tmp_path: Path) -> None:
    first = SQLiteStore(tmp_path / "shared.db", books=Books())
    await first.open()
    second = SQLiteStore(tmp_path / "shared.db", books=Books())
    opening = asyncio.create_task(second.open())
    await asyncio.wait_for(opening, WITHIN)
    await write(first, begun("t", errand()))
    await write(second, await ended(second, "t", TaskState.COMPLETED))
    assert await of(first, "alice") == (990, 0)
    for store in (second, first):
        await asyncio.wait_for(store.close(), WITHIN)


async def test_an_errand_whose_task_ended_without_it_is_found_and_settled(
    store: SQLiteStore,
) -> None:
    for task_id in ("done", "gone", "open"):
        await write(store, begun(task_id, errand()))
    numbers = {id: (await head_of(store, id, ALICE)).number for id in ("done", "gone")}

    def forget(connection: apsw.Connection) -> None:
        run(connection, "UPDATE tasks SET state = 3 WHERE number = ?", (numbers["done"],))
        run(connection, "DELETE FROM tasks WHERE number = ?", (numbers["gone"],))

    await store.change(forget)
    assert len((await store.look(verify)).differences) == 2
    found = await store.change(lambda c: Books().resolve(c, 5000))
    assert [one.state for one in found] == [TaskState.COMPLETED, None]
    assert await of(store, "alice") == (980, 10)
    lost = await row(store, "gone")
    assert (lost.state, lost.cause) == (TaskState.FAILED, "lost")
    assert await store.change(lambda c: Books().resolve(c, 5000)) == []


async def test_errands_outlive_their_tasks(store: SQLiteStore) -> None:
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await store.prune(ended_before=1 << 50, keep=0) == 1
    assert (await row(store, "t")).charged == TEN


async def test_many_who_spend_one_account_at_once_spend_no_more_than_it_has(
    store: SQLiteStore,
) -> None:
    outcomes = await submit(store, *(begun(f"t{n}", errand(60 * MICRO)) for n in range(64)))
    assert sum(one.error is None for one in outcomes) == 16
    assert all(isinstance(one.error, HoldRefused) for one in outcomes if one.error)
    assert await of(store, "alice") == (40, 960)


async def test_entries_cannot_be_changed_and_what_is_changed_around_that_is_found(
    store: SQLiteStore,
) -> None:
    await write(store, begun("t", errand()))
    for table in ("entries", "transfers"):
        with pytest.raises(StoreConflict):
            await store.change(lambda c, table=table: run(c, f"DELETE FROM {table}"))
        with pytest.raises(StoreConflict):
            await store.change(lambda c, table=table: run(c, f"UPDATE {table} SET kind = 'x'"))

    def forge(connection: apsw.Connection) -> list[str]:
        run(connection, "SAVEPOINT forged")
        run(connection, "DROP TRIGGER entries_stay")
        run(connection, "UPDATE entries SET amount = amount + 1 WHERE kind = 'initial_grant'")
        found = verify(connection).differences
        run(connection, "ROLLBACK TO forged")
        return found

    found = await store.change(forge)
    assert any("was changed: its hash" in text for text in found), found


async def test_a_file_that_lost_its_end_is_found_by_the_head_that_was_kept(
    store: SQLiteStore,
) -> None:
    await write(store, begun("t", errand()))
    head = (await store.look(verify)).head
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert (await store.look(lambda c: verify(c, head))).is_whole
    (found,) = (await store.look(lambda c: verify(c, "ab" * 32))).differences
    assert "the end of the ledger is gone" in found


async def test_the_time_of_the_ledger_never_goes_back(store: SQLiteStore) -> None:
    late = replace(creation("late", scope=ALICE, at=5000), errand=errand())
    early = replace(creation("early", scope=ALICE, at=1000), errand=errand())
    await write(store, late)
    await write(store, early)
    assert await store.look(lambda c: run(c, "SELECT at FROM transfers")) == [(5000,)] * 3


async def test_a_house_that_keeps_everything_still_names_who_earned_nothing(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "all.db", books=Books(Terms(rate=MICRO)))
    await store.open()
    await write(store, begun("t", errand()))
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    (line,) = await store.look(lambda c: statement(c, "bob", ["task_credit"], limit=5))
    assert (line.amount, line.balance) == (0, 1000 * MICRO)
    assert await of(store, "", "fees") == (10, 0)
    assert await store.look(lambda c: verify(c).differences) == []
    await asyncio.wait_for(store.close(), WITHIN)


async def test_a_task_that_nobody_was_chosen_for_costs_nothing(store: SQLiteStore) -> None:
    await write(store, begun("t", Errand(requester=Principal.read("alice"), price=TEN, held=TEN)))
    assert await of(store, "alice") == (990, 10)
    await write(store, await ended(store, "t", TaskState.COMPLETED))
    assert await of(store, "alice") == (1000, 0)
    assert (await row(store, "t")).charged == 0


OWNERS = st.sampled_from(["alice", "bob", "carol"])
STEPS = st.one_of(
    st.tuples(
        st.just("begin"), OWNERS, OWNERS, st.integers(0, 700 * MICRO), st.integers(0, 700 * MICRO)
    ),
    st.tuples(st.just("assign"), st.integers(0, 9), OWNERS, st.integers(0, 700 * MICRO)),
    st.tuples(
        st.just("end"),
        st.integers(0, 9),
        st.sampled_from([TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED]),
    ),
    st.tuples(st.just("refund"), st.integers(0, 9)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=25), st.sampled_from([0, 50_000, 333_333, MICRO]))
def test_whatever_happens_credits_are_neither_made_nor_lost(
    steps: list[tuple[object, ...]], rate: int
) -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection)
    run(connection, "INSERT INTO scopes VALUES (1, 'gateway', '', '')")
    books = Books(Terms(rate))
    tasks = 0
    for at, step in enumerate(steps, 1):
        run(connection, "SAVEPOINT step")
        try:
            match step:
                case ("begin", str(requester), str(payee), int(price), int(held)):
                    one = Errand(
                        agent="a",
                        requester=Principal.read(requester),
                        payee=Principal.read(payee),
                        price=price,
                        held=held,
                    )
                    values = (tasks, f"t{tasks}", at)
                    run(connection, "INSERT INTO tasks VALUES (?, ?, 1, '', 2, ?, 1, 1, 1)", values)
                    books.begin(connection, tasks, f"t{tasks}", one, at)
                    tasks += 1
                case ("assign", int(task), str(payee), int(price)):
                    change = Errand(agent="b", payee=Principal.read(payee), price=price, held=price)
                    books.assign(connection, task, change, at)
                case ("end", int(task), TaskState() as state):
                    books.end(connection, task, state, at)
                case ("refund", int(task)):
                    books.refund(connection, task, "", at)
                case _:
                    raise AssertionError(step)
        except (HoldRefused, apsw.ConstraintError):
            run(connection, "ROLLBACK TO step")
        run(connection, "RELEASE step")
    ((total,),) = run(connection, "SELECT sum(balance) FROM accounts")
    assert total == 0
    report = verify(connection)
    assert report.differences == []
    connection.close()
