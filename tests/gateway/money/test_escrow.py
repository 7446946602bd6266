"""Escrow: a price that stays reserved until it is paid or given back, once, by the first deed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness.clock import Clock
from msgspec.structs import replace

from dragoman.errors import (
    A2AError,
    InvalidParams,
    StoreConflict,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.gateway.money import order_rules, settlement
from dragoman.gateway.money.receipts import read_receipt
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust import observations
from dragoman.gateway.trust.trust import Trust
from dragoman.model.identity import Principal
from dragoman.model.money import MICRO, Terms
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import PutCheckout
from dragoman.stores.interface.ledger import Checkout
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.sqlite.ledger.rows import LEDGER
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations, run
from dragoman.testing.promises.samples import WITHIN, creation, write
from tests.gateway.money.order_stores import (
    KINDS,
    TEN,
    OrderingFile,
    OrderingStore,
    begin,
    done,
    end,
    location,
    ordering,
    ordering_file,
    scope_of,
)
from tests.gateway.trust.ended_orders import Past, Roll, agent
from tests.gateway.trust.ended_orders import end as end_past

HOURS = 72 * 3600
# When tasks of `done` are delivered, and when they are to be paid, in seconds.
DELIVERED = 2
DUE = DELIVERED + HOURS
KEEPING = Terms(escrow=HOURS * 1000)
FEE = TEN // 20


class House:
    """One process of a gateway, as far as money goes."""

    def __init__(self, place: OrderingStore, clock: Clock) -> None:
        self.place = place
        self.store = place.store
        self.clock = clock
        self.has = place.has
        self.ledger = place.ledger(now=clock)
        self.trust = Trust(place.accounting, Roll(agent("a1", owner="bob")), now=clock)

    async def row(self, task_id: str = "t") -> OrderRow:
        return await self.place.order(task_id)

    async def payers(self) -> set[str]:
        return (await self.place.accounting.trust.contents()).payers

    async def check(self) -> None:
        """Find the ledger and the log of trust whole."""
        assert (await self.ledger.store.verify()).differences == []
        assert (await self.trust.verify()).problem == ""


async def opened(path: Path, terms: Terms = KEEPING) -> OrderingFile:
    place = ordering_file(path, terms, synchronous="off")
    await place.store.open()
    return place


async def closed(*places: OrderingStore) -> None:
    for place in places:
        await asyncio.wait_for(place.store.close(), WITHIN)


@pytest.fixture
def clock() -> Clock:
    return Clock(float(DELIVERED))


@pytest.fixture(params=KINDS)
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[House]:
    place = ordering(request.param, await location(request, tmp_path), KEEPING)
    await place.store.open()
    house = House(place, clock)
    yield house
    await house.check()
    await closed(place)


PAID = (990, 0), (1009.5, 0), (0.5, 0)
KEPT = (990, 10), (1000, 0), (0, 0)
BACK = (1000, 0), (1000, 0), (0, 0)


async def sides(house: House) -> tuple[tuple[float, float], ...]:
    return await house.has("alice"), await house.has("bob"), await house.has("", "fees")


async def test_a_completed_task_is_delivered_and_paid_when_its_time_is_over(house: House) -> None:
    await begin(house.store, "t")
    assert (await house.row()).escrow == "funded"
    await house.check()
    await end(house.store, "t")
    found = await house.row()
    assert (found.escrow, found.release_at, found.held) == ("delivered", DUE * 1000, TEN)
    assert (found.charged, found.fee, found.cost, found.state) == (0, 0, TEN, TaskState.COMPLETED)
    assert await sides(house) == KEPT
    await house.check()

    house.clock.now = DUE - 0.001
    assert await house.ledger.release() == 0
    assert (await house.row()).escrow == "delivered"
    house.clock.now = DUE
    assert await house.ledger.sweep() == []
    found = await house.row()
    assert (found.escrow, found.charged, found.fee, found.held) == ("released", TEN, FEE, 0)
    assert await sides(house) == PAID
    assert await house.ledger.release() == 0


async def test_what_its_requester_accepts_is_paid_at_once_and_once(house: House) -> None:
    await done(house.store, "t")
    for _ in range(2):
        assert (
            await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
        ).escrow == "released"
        assert await sides(house) == PAID
    house.clock.now = DUE
    assert await house.ledger.release() == 0
    assert await sides(house) == PAID


async def test_only_its_requester_accepts_and_only_what_is_completed(house: House) -> None:
    await begin(house.store, "t")
    with pytest.raises(UnsupportedOperation, match="not completed"):
        await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    await end(house.store, "t")
    for owner in ("bob", "mallory", ""):
        with pytest.raises(TaskNotFound):
            await house.ledger.accept(TaskReference("t"), owner=Principal.read(owner))
    assert await sides(house) == KEPT


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
async def test_what_is_not_completed_is_given_back_at_once(house: House, state: TaskState) -> None:
    await begin(house.store, "t")
    await end(house.store, "t", state)
    assert (await house.row()).escrow == "refunded"
    assert (await house.has("alice"))[1] == 0
    with pytest.raises(UnsupportedOperation, match="not completed"):
        await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))


async def test_a_dispute_stops_the_clock_until_it_is_decided(house: House) -> None:
    await done(house.store, "t")
    await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    house.clock.now = DUE * 10
    assert await house.ledger.release() == 0
    assert (await house.row()).escrow == "disputed"
    assert await sides(house) == KEPT
    with pytest.raises(UnsupportedOperation, match="disputed"):
        await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    await house.check()


@pytest.mark.parametrize(
    ("is_upheld", "state", "after"), [(True, "refunded", BACK), (False, "resolved", PAID)]
)
async def test_a_decision_moves_the_money_once(
    house: House, is_upheld: bool, state: str, after: Any
) -> None:
    await done(house.store, "t")
    await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    await house.trust.resolve(TaskReference("t"), is_upheld=is_upheld)
    for _ in range(2):
        assert (await house.row()).escrow == state
        assert await sides(house) == after
        await house.check()
        assert await house.payers() == (set() if is_upheld else {"alice"})
        with pytest.raises(InvalidParams):
            await house.trust.resolve(TaskReference("t"), is_upheld=not is_upheld)


async def test_nothing_is_decided_that_is_not_disputed(house: House) -> None:
    await done(house.store, "t")
    for is_upheld in (True, False):
        with pytest.raises(InvalidParams):
            await house.trust.resolve(TaskReference("t"), is_upheld=is_upheld)
        assert order_rules.decide(await house.row(), 3000, is_upheld=is_upheld) == []
    assert await sides(house) == KEPT


async def test_a_decision_that_is_cut_off_moves_neither_money_nor_trust(house: House) -> None:
    await done(house.store, "t")
    await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    accounting = house.place.accounting
    (facts,) = await accounting.ledger.facts("t")
    checkout = Checkout("c", "alice", "starter", 1, 1, 1)
    # The last effect is refused: that purchase was recorded before.
    await accounting.apply([PutCheckout(checkout)])
    with pytest.raises(StoreConflict):
        decision = observations.resolve(facts, False, "", 3000)
        await accounting.apply([*decision, PutCheckout(checkout)])
    assert (await house.row()).escrow == "disputed"
    assert await sides(house) == KEPT
    await house.trust.resolve(TaskReference("t"), is_upheld=True)
    assert await sides(house) == BACK


async def test_a_dispute_after_the_payment_moves_no_money(house: House) -> None:
    await done(house.store, "t")
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    await house.trust.resolve(TaskReference("t"), is_upheld=True)
    assert (await house.row()).escrow == "released"
    assert await sides(house) == PAID


async def test_a_dispute_that_comes_too_late_finds_the_price_paid_though_nobody_looked(
    house: House,
) -> None:
    await done(house.store, "t")
    house.clock.now = DUE
    await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    assert (await house.row()).escrow == "released"
    assert await sides(house) == PAID


@pytest.mark.parametrize("is_disputed", [False, True])
async def test_who_did_it_gives_back_what_is_in_escrow(house: House, is_disputed: bool) -> None:
    await done(house.store, "t")
    if is_disputed:
        await house.trust.dispute("a1", TaskReference("t"), Principal.read("alice"), "It is empty.")
    with pytest.raises(TaskNotFound):
        await house.ledger.refund(TaskReference("t"), owner=Principal.read("alice"))
    for _ in range(2):
        await house.ledger.refund(TaskReference("t"), owner=Principal.read("bob"))
        assert (await house.row()).escrow == "refunded"
        assert await sides(house) == BACK
    if is_disputed:
        await house.trust.resolve(TaskReference("t"), is_upheld=False)
    with pytest.raises(UnsupportedOperation, match="refunded"):
        await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    assert await sides(house) == BACK


async def test_what_was_paid_out_of_escrow_is_refunded_as_any_other(house: House) -> None:
    await done(house.store, "t")
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    for _ in range(2):
        await house.ledger.refund(TaskReference("t"), owner=Principal.read("bob"))
    assert await sides(house) == BACK


async def test_more_than_the_price_is_not_kept(house: House) -> None:
    order = Order(
        agent="a1",
        requester=Principal.read("alice"),
        payee=Principal.read("bob"),
        price=TEN,
        held=3 * TEN,
    )
    await write(house.store, replace(creation("t", scope=scope_of("alice")), order=order))
    assert await house.has("alice") == (970, 30)
    await end(house.store, "t")
    assert await sides(house) == KEPT
    await house.check()
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    assert await sides(house) == PAID


async def test_a_receipt_is_issued_when_the_money_has_moved(house: House) -> None:
    await done(house.store, "t")
    for state in ("delivered", "disputed"):
        assert (await house.row()).escrow == state
        with pytest.raises(UnsupportedOperation, match="escrow"):
            await house.ledger.receipt(TaskReference("t"), owner=Principal.read("alice"))
        if state == "delivered":
            await house.trust.dispute(
                "a1", TaskReference("t"), Principal.read("alice"), "It is empty."
            )
    await house.trust.resolve(TaskReference("t"), is_upheld=False)
    signed = await house.ledger.receipt(TaskReference("t"), owner=Principal.read("bob"))
    said = read_receipt(signed, await house.ledger.receipt_keys())
    assert (said["escrow"], said["charged"], said["fee"]) == ("resolved", "10.00", "0.50")
    lines = (await house.ledger.statement(Principal.read("alice"), kind="task_debit")).lines
    assert [(line.escrow, line.memo) for line in lines] == [
        ("resolved", "Dispute rejected: escrow resolved")
    ]


async def test_a_task_that_is_forgotten_meanwhile_is_paid_all_the_same(house: House) -> None:
    for task_id in ("t", "u"):
        await done(house.store, task_id)
    assert await house.store.prune(ended_before=1 << 50, keep=1) == 2
    await house.check()
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    house.clock.now = DUE
    assert await house.ledger.release() == 1
    assert (await house.row("u")).escrow == "released"
    assert await house.has("bob") == (1019, 0)


async def test_who_pays_counts_from_the_payment_on(house: House) -> None:
    await done(house.store, "t")
    assert await house.trust.digest() == 1
    assert await house.payers() == set()
    await house.check()
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    assert await house.payers() == {"alice"}
    events, _ = await house.trust.history("a1")
    assert [one["eventType"] for one in events] == ["task_paid", "task_completed"]


async def test_the_next_process_pays_as_was_agreed_whatever_its_terms(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "tasks.db"
    place = await opened(path)
    await done(place.store, "t")
    await begin(place.store, "u")
    await closed(place)
    # Neither an escrow nor this fee was agreed when the first was delivered.
    other = Terms(rate=500_000, grant=5 * MICRO)
    place = await opened(path, other)
    house = House(place, clock)
    try:
        await house.check()
        await end(place.store, "u")
        assert ((await house.row("u")).escrow, (await house.row("u")).fee) == ("released", TEN // 2)
        assert (await house.row("t")).escrow == "delivered"
        clock.now = DUE
        await house.ledger.sweep()
        assert ((await house.row("t")).escrow, (await house.row("t")).fee) == ("released", FEE)
        await house.check()
    finally:
        await closed(place)


async def test_without_an_escrow_nothing_is_said_of_one(tmp_path: Path, clock: Clock) -> None:
    place = await opened(tmp_path / "tasks.db", Terms())
    house = House(place, clock)
    try:
        await done(place.store, "t")
        found = await house.row()
        assert (found.escrow, found.release_at, found.charged) == ("", 0, TEN)
        assert (
            await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
        ).charged == TEN
        signed = await house.ledger.receipt(TaskReference("t"), owner=Principal.read("alice"))
        assert "escrow" not in read_receipt(signed, await house.ledger.receipt_keys())
        await house.check()
    finally:
        await closed(place)


async def test_a_file_without_escrows_is_brought_up_to_date(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "tasks.db"
    connection = apsw.Connection(str(path))
    for _, script in migrations()[:8]:
        run(connection, script)
    run(connection, f"PRAGMA application_id = {APPLICATION_ID}")
    run(connection, "PRAGMA user_version = 8")
    end_past(connection, Past(agent="a1", requester="alice", task_id="t"))
    connection.close()
    place = await opened(path)
    house = House(place, clock)
    try:
        found = await house.row()
        assert (found.escrow, found.release_at, found.is_in_escrow) == ("", 0, False)
        clock.now = DUE * 10
        await house.ledger.sweep()
        await house.check()
    finally:
        await closed(place)


async def test_whoever_comes_first_settles_and_nobody_after_them(
    tmp_path: Path, clock: Clock
) -> None:
    """Two processes accept, dispute, decide, give back and look for what is due, all at once."""
    path = tmp_path / "tasks.db"
    places = [await opened(path), await opened(path)]
    late = Clock(float(DELIVERED))
    late.now = DUE
    houses = [House(places[0], clock), House(places[1], late)]
    tasks = [f"t{n}" for n in range(60)]
    try:
        deeds: list[Callable[[House, str], Awaitable[Any]]] = [
            lambda house, id: house.ledger.accept(TaskReference(id), owner=Principal.read("alice")),
            lambda house, id: house.trust.dispute(
                "a1", TaskReference(id), Principal.read("alice"), "It is empty."
            ),
            lambda house, id: house.trust.resolve(TaskReference(id), is_upheld=True),
            lambda house, id: house.trust.resolve(TaskReference(id), is_upheld=False),
            lambda house, id: house.ledger.refund(TaskReference(id), owner=Principal.read("bob")),
            lambda house, _: house.ledger.sweep(),
        ]

        async def attempt(house: House, number: int, id: str) -> None:
            # Refused: somebody else was faster.
            with contextlib.suppress(A2AError):
                await deeds[number](house, id)

        async with asyncio.timeout(WITHIN):
            for first in range(0, len(tasks), 10):
                some = tasks[first : first + 10]
                for number, id in enumerate(some):
                    await done(places[0].store, id, MICRO)
                    if number % 2:
                        await houses[0].trust.dispute(
                            "a1", TaskReference(id), Principal.read("alice"), "It is empty."
                        )
                # Each round begins with another deed.
                order = [(first // 10 + step) % len(deeds) for step in range(len(deeds))]
                await asyncio.gather(
                    *(
                        attempt(house, number, id)
                        for number in order
                        for id in some
                        for house in houses
                    )
                )
        ends: set[str] = set()
        for id in tasks:
            house = houses[1]
            found = await house.row(id)
            if found.is_in_escrow:
                # Disputed last of all: an operator is still to decide.
                await house.trust.resolve(TaskReference(id), is_upheld=True)
                found = await house.row(id)
            ends.add(found.escrow)
            posted = await house.place.accounting.ledger.transfers(0, 10_000)
            kinds = [one.kind for one in posted if one.task == found.task]
            # Held once, settled once; what was paid may have been refunded by who earned it.
            is_paid = found.escrow != "refunded"
            assert kinds[:2] == ["hold", "capture" if is_paid else "release"], (id, kinds)
            assert kinds[2:] in ([], ["refund"]) and (is_paid or len(kinds) == 2), (id, kinds)
        assert ends == {"released", "resolved", "refunded"}
        assert (await houses[0].has("alice"))[1] == 0
        for house in houses:
            await house.check()
    finally:
        await closed(*places)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE errands SET held = 0", "what is in escrow is not its price"),
        ("UPDATE errands SET state = 'TASK_STATE_FAILED'", "what is in escrow is not its price"),
        ("UPDATE errands SET escrow = 'disputed'", "is disputed, and has no dispute"),
        ("UPDATE errands SET escrow = 'released'", "has ended and still holds credits"),
        ("UPDATE errands SET escrow = 'released'", "0 micro-credits charged"),
        ("UPDATE errands SET charged = price", "10000000 micro-credits charged, 0 were due"),
    ],
)
async def test_a_verification_finds_an_escrow_that_does_not_fit(
    tmp_path: Path, statement: str, said: str
) -> None:
    place = await opened(tmp_path / "tasks.db")
    try:
        await done(place.store, "t")
        assert await place.differences() == []
        await place.tamper(statement)
        assert any(said in one for one in await place.differences())
    finally:
        await closed(place)


async def test_a_look_for_what_is_due_passes_over_nothing_else(tmp_path: Path) -> None:
    place = await opened(tmp_path / "tasks.db")
    try:
        sql = LEDGER["due"].replace("?", "1")
        plan = await place.read(f"EXPLAIN QUERY PLAN {sql}")
        lines = [row[3] for row in plan if "errands" in row[3]]
        assert len(lines) == 1 and "INDEX errands_delivered (release_at<?)" in lines[0], lines
    finally:
        await closed(place)


async def test_a_payment_and_an_observation_that_cross_are_decided_again(house: House) -> None:
    """Else a requester that paid would not count: each would leave it to the other."""
    accounting = house.place.accounting
    for task_id in ("t", "u"):
        await done(house.store, task_id)
    (unobserved,) = await accounting.ledger.facts("t")
    (_, unpaid) = await accounting.trust.unobserved(10)
    assert await house.trust.digest() == 2
    with pytest.raises(StoreConflict):
        await accounting.apply(settlement.accept(unobserved, 3000))
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    assert await house.payers() == {"alice"}
    with pytest.raises(StoreConflict):
        await accounting.apply(observations.observe([unpaid]))


async def test_what_is_paid_before_it_is_observed_is_observed_as_paid(house: House) -> None:
    await done(house.store, "t")
    stale = await house.place.accounting.trust.unobserved(10)
    await house.ledger.accept(TaskReference("t"), owner=Principal.read("alice"))
    with pytest.raises(StoreConflict):
        await house.place.accounting.apply(observations.observe(stale))
    assert await house.trust.digest() == 1
    assert await house.payers() == {"alice"}
