"""Orders: what tasks hold and cost, in the transactions of their own writes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.errors import HoldRefused, StoreConflict
from dragoman.gateway.money import order_rules
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.model.identity import Principal, Scope
from dragoman.model.money import MICRO, Terms
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.at_once import at_once
from dragoman.stores.interface import Append, Create
from dragoman.stores.interface.effects import Effect
from dragoman.stores.interface.orders import OrderRow
from dragoman.testing.promises.samples import (
    WITHIN,
    addition,
    creation,
    head_of,
    status,
    submit,
    write,
)
from tests.gateway.money.order_stores import (
    AT_ONCE,
    KINDS,
    TEN,
    OrderingFile,
    OrderingStore,
    bare_accounting,
    location,
    ordering,
    ordering_file,
)

ALICE = Scope("gateway", "", "alice")


def order(price: int = TEN, held: int | None = None, **more: str) -> Order:
    given = {"agent": "a1", "requester": "alice", "payee": "bob"} | more
    given |= {side: Principal.read(given[side]) for side in ("requester", "payee")}
    return Order(price=price, held=price if held is None else held, **given)  # type: ignore[arg-type]  # texts alone


def begun(task_id: str, one: Order, scope: Scope = ALICE) -> Create:
    return replace(creation(task_id, scope=scope), order=one)


async def ended(place: OrderingStore, task_id: str, state: TaskState, **more: Order) -> Append:
    head = await head_of(place.store, task_id, ALICE)
    return replace(addition(head, status(task_id, state), state=state, at=2000), **more)


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OrderingStore]:
    place = ordering(request.param, await location(request, tmp_path))
    await place.store.open()
    yield place
    assert await place.differences() == []
    await asyncio.wait_for(place.store.close(), WITHIN)


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[OrderingFile]:
    place = ordering_file(tmp_path / "tasks.db")
    await place.store.open()
    yield place
    assert await place.differences() == []
    await asyncio.wait_for(place.store.close(), WITHIN)


async def test_a_price_is_held_with_the_task_and_taken_when_it_is_completed(
    place: OrderingStore,
) -> None:
    await write(place.store, begun("t", order()))
    assert await place.has("alice") == (990, 10)
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.has("alice") == (990, 0)
    assert await place.has("bob") == (1009.5, 0)
    assert await place.has("", "fees") == (0.5, 0)
    found = await place.order("t")
    assert (found.charged, found.fee, found.earning) == (TEN, TEN // 20, TEN * 19 // 20)
    assert (found.state, found.held, found.ended_at) == (TaskState.COMPLETED, 0, 2000)


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
async def test_what_is_not_completed_costs_nothing(place: OrderingStore, state: TaskState) -> None:
    await write(place.store, begun("t", order()))
    await write(place.store, await ended(place, "t", state))
    assert await place.has("alice") == (1000, 0)
    assert await place.has("", "fees") == (0, 0)
    found = await place.order("t")
    assert (found.state, found.charged, found.held) == (state, 0, 0)


async def test_what_waits_for_its_caller_stays_held(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    await write(place.store, await ended(place, "t", TaskState.INPUT_REQUIRED))
    assert await place.has("alice") == (990, 10)


async def test_a_task_that_cannot_be_paid_is_not_made_and_the_others_of_its_commit_are(
    place: OrderingStore,
) -> None:
    outcomes = await submit(
        place.store,
        begun("small", order()),
        begun("large", order(2_000 * MICRO)),
        begun("other", order()),
    )
    assert [type(one.error) for one in outcomes] == [type(None), HoldRefused, type(None)]
    refusal = outcomes[1].error
    assert isinstance(refusal, HoldRefused)
    assert (refusal.balance, refusal.needed) == (990 * MICRO, 2_000 * MICRO)
    assert await place.store.head(ALICE, begun("large", order()).task_id) is None
    assert await place.accounting.ledger.facts("large") == []
    assert await place.has("alice") == (980, 20)


async def test_the_first_touch_grants_credits_once(place: OrderingStore) -> None:
    await submit(place.store, *(begun(f"t{n}", order()) for n in range(20)))
    page = await place.accounting.ledger.statement("alice", ["initial_grant"], limit=10)
    assert [(line.amount, line.balance) for line in page.lines] == [(1000 * MICRO, 1000 * MICRO)]
    assert await place.has("alice") == (800, 200)


@pytest.mark.parametrize("one", [order(0), order(payee="alice")], ids=["free", "own agent"])
async def test_where_nobody_else_is_paid_no_money_moves_and_the_order_is_recorded(
    place: OrderingStore, one: Order
) -> None:
    await write(place.store, begun("t", one))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.accounting.ledger.transfers(0, 10) == []
    found = await place.order("t")
    assert (found.state, found.charged, found.agent) == (TaskState.COMPLETED, 0, "a1")


async def test_a_hold_follows_the_agent_that_is_chosen(place: OrderingStore) -> None:
    await write(place.store, begun("t", Order(requester=Principal.read("alice"), held=5 * MICRO)))
    assert await place.has("alice") == (995, 5)
    head = await head_of(place.store, "t", ALICE)
    dearer = replace(addition(head, status("t", TaskState.WORKING)), order=order(8 * MICRO))
    await write(place.store, dearer)
    assert await place.has("alice") == (992, 8)
    head = await head_of(place.store, "t", ALICE)
    cheaper = order(3 * MICRO, agent="a2", payee="carol")
    await write(place.store, replace(addition(head, status("t", TaskState.WORKING)), order=cheaper))
    assert await place.has("alice") == (997, 3)
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.has("alice") == (997, 0)
    assert await place.has("carol") == (1002.85, 0)
    assert await place.has("bob") == (0, 0)
    assert (await place.order("t")).agent == "a2"


async def test_an_own_agent_that_is_chosen_later_lets_the_hold_go(place: OrderingStore) -> None:
    await write(place.store, begun("t", Order(requester=Principal.read("alice"), held=5 * MICRO)))
    last = await ended(place, "t", TaskState.COMPLETED, order=order(payee="alice"))
    await write(place.store, last)
    assert await place.has("alice") == (1000, 0)


async def test_an_agent_that_costs_more_than_there_is_is_refused_with_its_write(
    place: OrderingStore,
) -> None:
    await write(place.store, begun("t", order(900 * MICRO)))
    head = await head_of(place.store, "t", ALICE)
    dearer = replace(addition(head, status("t", TaskState.WORKING)), order=order(1001 * MICRO))
    (outcome,) = await submit(place.store, dearer)
    assert isinstance(outcome.error, HoldRefused)
    assert (await head_of(place.store, "t", ALICE)).standing == head.standing
    assert await place.has("alice") == (100, 900)


async def test_less_than_the_hold_is_taken_and_the_rest_comes_back(place: OrderingStore) -> None:
    await write(place.store, begun("t", order(4 * MICRO, 10 * MICRO)))
    assert await place.has("alice") == (990, 10)
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.has("alice") == (996, 0)


async def test_a_cause_is_noted_and_nothing_else_changes(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    last = await ended(place, "t", TaskState.FAILED, order=Order(cause="timeout", skill="sum"))
    await write(place.store, last)
    found = await place.order("t")
    assert (found.cause, found.skill, found.agent, found.payee.text) == (
        "timeout",
        "sum",
        "a1",
        "bob",
    )


async def test_a_task_that_ends_again_is_not_charged_again(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    await write(place.store, await ended(place, "t", TaskState.FAILED))
    assert await place.has("alice") == (990, 0)
    assert (await place.order("t")).state is TaskState.COMPLETED


async def test_the_store_itself_refuses_a_second_settlement(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    open_order = await place.order("t")
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    again = place.rules.change(open_order, None, 3000, TaskState.FAILED)
    with pytest.raises(StoreConflict):
        await place.accounting.apply(again)
    # Nor does it take the settlement without the order.
    with pytest.raises(StoreConflict):
        await place.accounting.apply(again[1:])
    assert await place.has("alice") == (990, 0)


async def test_the_file_itself_refuses_a_second_settlement(file: OrderingFile) -> None:
    await write(file.store, begun("t", order()))
    await write(file.store, await ended(file, "t", TaskState.COMPLETED))
    tampered = (
        "UPDATE errands SET ended_at = 0, held = price, charged = 0, fee = 0",
        f"UPDATE accounts SET held = held + {TEN} WHERE owner = 'alice'",
    )
    await file.tamper(*tampered)
    found = await file.order("t")
    with pytest.raises(StoreConflict):
        await file.accounting.apply(file.rules.change(found, None, 3000, TaskState.FAILED))
    assert await file.has("alice") == (980, 10)
    await file.tamper(
        f"UPDATE errands SET ended_at = 2000, held = 0, charged = price, fee = {TEN // 20}",
        f"UPDATE accounts SET held = held - {TEN} WHERE owner = 'alice'",
    )


async def test_a_stale_writer_charges_nobody(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    late = await ended(place, "t", TaskState.COMPLETED)
    (outcome,) = await submit(place.store, replace(late, fence=late.fence + 1, next_fence=9))
    assert outcome.is_refused
    assert await place.has("alice") == (990, 10)
    assert (await place.order("t")).ended_at == 0


async def test_two_callers_who_choose_the_same_id_have_an_order_each(place: OrderingStore) -> None:
    bob = Scope("gateway", "", "bob")
    await write(place.store, begun("t", order()))
    await write(place.store, begun("t", order(requester="bob", payee="carol"), bob))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    found = await place.accounting.ledger.facts("t")
    assert [(one.order.requester.text, one.order.state) for one in found] == [
        ("bob", None),
        ("alice", TaskState.COMPLETED),
    ]
    assert await place.has("bob") == (999.5, 10)


async def test_what_another_process_began_is_settled_here(tmp_path: Path) -> None:
    first, second = (ordering_file(tmp_path / "shared.db") for _ in range(2))
    await first.store.open()
    opening = asyncio.create_task(second.store.open())
    await asyncio.wait_for(opening, WITHIN)
    await write(first.store, begun("t", order()))
    await write(second.store, await ended(second, "t", TaskState.COMPLETED))
    assert await first.has("alice") == (990, 0)
    for place in (second, first):
        await asyncio.wait_for(place.store.close(), WITHIN)


async def test_an_order_whose_task_ended_without_it_is_found_and_settled(
    file: OrderingFile,
) -> None:
    for task_id in ("done", "gone", "open"):
        await write(file.store, begun(task_id, order()))
    await file.tamper(
        "UPDATE tasks SET state = 3 WHERE id = 'done'", "DELETE FROM tasks WHERE id = 'gone'"
    )
    assert len(await file.differences()) == 2
    found = await file.ledger().sweep()
    assert [one.state for one in found] == [TaskState.COMPLETED, None]
    assert await file.has("alice") == (980, 10)
    lost = await file.order("gone")
    assert (lost.state, lost.cause) == (TaskState.FAILED, "lost")
    assert await file.ledger().sweep() == []


async def test_orders_outlive_their_tasks(place: OrderingStore) -> None:
    await write(place.store, begun("t", order()))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.store.prune(ended_before=1 << 50, keep=0) == 1
    assert (await place.order("t")).charged == TEN


async def test_many_who_spend_one_account_at_once_spend_no_more_than_it_has(
    place: OrderingStore,
) -> None:
    outcomes = await submit(place.store, *(begun(f"t{n}", order(60 * MICRO)) for n in range(64)))
    assert sum(one.error is None for one in outcomes) == 16
    assert all(isinstance(one.error, HoldRefused) for one in outcomes if one.error)
    assert await place.has("alice") == (40, 960)


async def test_entries_cannot_be_changed_and_what_is_changed_around_that_is_found(
    file: OrderingFile, tmp_path: Path
) -> None:
    await write(file.store, begun("t", order()))
    for table in ("entries", "transfers"):
        with pytest.raises(StoreConflict):
            await file.tamper(f"DELETE FROM {table}")
        with pytest.raises(StoreConflict):
            await file.tamper(f"UPDATE {table} SET kind = 'x'")
    forged = "UPDATE entries SET amount = amount {} 1 WHERE kind = 'initial_grant'"
    ((trigger,),) = await file.read("SELECT sql FROM sqlite_schema WHERE name = 'entries_stay'")
    await file.tamper("DROP TRIGGER entries_stay", forged.format("+"))
    found = await file.differences()
    await file.tamper(forged.format("-"), trigger)
    assert any("was changed: its hash" in text for text in found), found


async def test_a_ledger_that_lost_its_end_is_found_by_the_head_that_was_noted(
    place: OrderingStore,
) -> None:
    await write(place.store, begun("t", order()))
    ledger = place.accounting.ledger
    head = (await ledger.verify()).head
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert (await ledger.verify(head)).is_whole
    (found,) = (await ledger.verify("ab" * 32)).differences
    assert "the end of the ledger is gone" in found


async def test_the_time_of_the_ledger_never_goes_back(place: OrderingStore) -> None:
    late = replace(creation("late", scope=ALICE, at=5000), order=order())
    early = replace(creation("early", scope=ALICE, at=1000), order=order())
    await write(place.store, late)
    await write(place.store, early)
    found = await place.accounting.ledger.transfers(0, 10)
    assert [one.at for one in found] == [5000] * 3


@pytest.mark.parametrize("kind", AT_ONCE)
async def test_a_platform_that_keeps_everything_still_names_who_earned_nothing(
    kind: str, tmp_path: Path
) -> None:
    place = ordering(kind, tmp_path / "all.db", Terms(rate=MICRO))
    await place.store.open()
    await write(place.store, begun("t", order()))
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    page = await place.accounting.ledger.statement("bob", ["task_credit"], limit=5)
    assert [(line.amount, line.balance) for line in page.lines] == [(0, 1000 * MICRO)]
    assert await place.has("", "fees") == (10, 0)
    assert await place.differences() == []
    await asyncio.wait_for(place.store.close(), WITHIN)


async def test_a_task_that_nobody_was_chosen_for_costs_nothing(place: OrderingStore) -> None:
    await write(
        place.store, begun("t", Order(requester=Principal.read("alice"), price=TEN, held=TEN))
    )
    assert await place.has("alice") == (990, 10)
    await write(place.store, await ended(place, "t", TaskState.COMPLETED))
    assert await place.has("alice") == (1000, 0)
    assert (await place.order("t")).charged == 0


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


@pytest.mark.parametrize("kind", AT_ONCE)
@settings(max_examples=60)
@given(st.lists(STEPS, max_size=25), st.sampled_from([0, 50_000, 333_333, MICRO]))
def test_whatever_happens_credits_are_neither_made_nor_lost(
    kind: str, steps: list[tuple[object, ...]], rate: int
) -> None:
    accounting = bare_accounting(kind)
    rules = TaskOrderRules(Terms(rate))
    tasks = 0
    for at, step in enumerate(steps, 1):
        effects: Sequence[Effect] = []
        match step:
            case ("begin", str(requester), str(payee), int(price), int(held)):
                one = Order(
                    agent="a",
                    requester=Principal.read(requester),
                    payee=Principal.read(payee),
                    price=price,
                    held=held,
                )
                effects = rules.begin(tasks, f"t{tasks}", one, at, TaskState.WORKING)
                tasks += 1
            case (str(deed), int(task), *rest):
                found = at_once(accounting.ledger.order(task))
                if found is None:
                    continue
                if deed == "refund":
                    effects = order_rules.refund(found, "", at)
                elif not found.ended_at:
                    effects = _changed(rules, found, at, *rest)
            case _:
                raise AssertionError(step)
        with contextlib.suppress(HoldRefused, StoreConflict):
            at_once(accounting.apply(effects))
    balances = at_once(accounting.ledger.balances(100, 0))
    assert sum(found.total for _, _, found in balances) == 0
    differences = at_once(accounting.ledger.verify()).differences
    # There are no tasks here, which alone is found.
    assert [one for one in differences if "and its order has not" not in one] == []


def _changed(rules: TaskOrderRules, found: OrderRow, at: int, *step: object) -> Sequence[Effect]:
    match step:
        case (str(payee), int(price)):
            change = Order(agent="b", payee=Principal.read(payee), price=price, held=price)
            return rules.change(found, change, at, TaskState.WORKING)
        case (TaskState() as state,):
            return rules.change(found, None, at, state)
    raise AssertionError(step)
