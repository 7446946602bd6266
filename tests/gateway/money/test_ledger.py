"""The ledger as users see it: balances, statements, purchases and refunds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.clock import Clock
from msgspec.structs import replace

from dragoman.errors import (
    InsufficientCredits,
    InvalidParams,
    PermissionDenied,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.gateway.money.ledger import HOLDS, KINDS, Ledger
from dragoman.gateway.money.payments import PACKAGES, SIGNATURE, TOLERANCE, FakeProvider
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.model.identity import Principal, Scope
from dragoman.model.money import MICRO, credits_text
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface import Store
from dragoman.testing.promises.samples import WITHIN, creation, write
from tests.gateway.money.order_stores import (
    TEN,
    OrderingFile,
    OrderingStore,
    begin,
    done,
    end,
    ordering_file,
    scope_of,
)

# 2026-02-01T12:00:00Z
NOON = 1_769_947_200
DAY = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock(float(NOON))


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[OrderingFile]:
    file = ordering_file(tmp_path / "file.db")
    await file.store.open()
    yield file
    assert await file.differences() == []
    await asyncio.wait_for(file.store.close(), WITHIN)


@pytest.fixture
def provider(clock: Clock) -> FakeProvider:
    return FakeProvider(b"the provider's secret", now=clock)


@pytest.fixture
async def ledger(
    place: OrderingStore, clock: Clock, provider: FakeProvider
) -> AsyncIterator[Ledger]:
    ledger = place.ledger(provider=provider, issuer="https://gateway.example", now=clock)
    yield ledger
    report = await ledger.store.verify()
    assert report.differences == []


async def test_the_first_look_opens_an_account_and_races_open_one(ledger: Ledger) -> None:
    looks = await asyncio.gather(*(ledger.balance(Principal.read("alice")) for _ in range(20)))
    assert {(found.available, found.held, found.total) for found in looks} == {
        (1000 * MICRO, 0, 1000 * MICRO)
    }
    statement = await ledger.statement(Principal.read("alice"))
    assert [(line.kind, line.balance) for line in statement.lines] == [
        ("initial_grant", 1000 * MICRO)
    ]


async def test_a_statement_says_what_each_side_paid_and_got(ledger: Ledger, store: Store) -> None:
    await done(store, "t", 1_110_000)
    theirs = await ledger.statement(Principal.read("alice"))
    assert [(line.kind, credits_text(line.amount)) for line in theirs.lines] == [
        ("task_debit", "-1.11"),
        ("initial_grant", "1000.00"),
    ]
    assert credits_text(theirs.lines[0].balance) == "998.89"
    assert theirs.lines[0].reference == "t" and theirs.total == 2
    ours = await ledger.statement(Principal.read("bob"))
    assert [(line.kind, credits_text(line.amount)) for line in ours.lines] == [
        ("platform_fee", "0.00"),
        ("task_credit", "1.05"),
        ("initial_grant", "1000.00"),
    ]
    assert credits_text(ours.lines[0].balance) == "1001.05"


async def test_every_line_is_the_one_before_and_its_amount(ledger: Ledger, store: Store) -> None:
    for n in range(5):
        await done(store, f"t{n}", (n + 1) * MICRO)
    for kinds in (KINDS, (*KINDS, *HOLDS)):
        lines = (await ledger.store.statement("alice", kinds, limit=100, offset=0)).lines[::-1]
        balance = 0
        for line in lines:
            balance += line.amount
            assert line.balance == balance
    assert {line.kind for line in lines} == {"initial_grant", "hold", "task_debit"}


async def test_statements_are_paged_and_filtered(ledger: Ledger, store: Store) -> None:
    for n in range(5):
        await done(store, f"t{n}", MICRO)
    page = await ledger.statement(Principal.read("alice"), limit=2, offset=1)
    assert [line.reference for line in page.lines] == ["t3", "t2"] and page.total == 6
    only = await ledger.statement(Principal.read("alice"), kind="initial_grant")
    assert only.total == 1 and only.lines[0].kind == "initial_grant"
    with pytest.raises(InvalidParams, match="type: must be one of initial_grant, purchase"):
        await ledger.statement(Principal.read("alice"), kind="hold")


async def test_usage_has_every_day_of_the_period_and_their_sums(
    ledger: Ledger, store: Store
) -> None:
    for n, days in enumerate((200, 10, 6, 6, 0)):
        await done(store, f"t{n}", TEN, at=(NOON - days * DAY) * 1000)
    week = await ledger.usage(Principal.read("alice"), "7d")
    assert [day.date for day in week.days] == [
        f"2026-01-{day}" for day in (26, 27, 28, 29, 30, 31)
    ] + ["2026-02-01"]
    assert [day.spent // MICRO for day in week.days] == [20, 0, 0, 0, 0, 0, 10]
    assert (week.spent, week.earned) == (3 * TEN, 0)
    assert (await ledger.usage(Principal.read("alice"))).spent == 4 * TEN
    assert (await ledger.usage(Principal.read("bob"), "90d")).earned == 4 * TEN * 19 // 20
    with pytest.raises(InvalidParams, match="period: must be one of 7d, 30d, 90d"):
        await ledger.usage(Principal.read("alice"), "1d")


async def test_credits_are_bought_once_however_often_that_is_told(
    ledger: Ledger, provider: FakeProvider
) -> None:
    begun = await ledger.checkout(Principal.read("alice"), "pro")
    assert begun.url.endswith(begun.checkout.id)
    assert (begun.checkout.credits, begun.checkout.cents) == (5_000 * MICRO, 4_000)
    body, headers = provider.webhook(begun.checkout, event="e1")
    told = await asyncio.gather(*(ledger.paid(body, headers) for _ in range(10)))
    assert [one.id for one in told if one is not None] == [begun.checkout.id]
    # Another event for the same purchase is no other payment.
    assert not await ledger.paid(*provider.webhook(begun.checkout, event="e2"))
    assert (await ledger.balance(Principal.read("alice"))).total == 6_000 * MICRO
    (line,) = (await ledger.statement(Principal.read("alice"), kind="purchase")).lines
    assert (line.amount, line.reference) == (5_000 * MICRO, begun.checkout.id)


async def test_packages_are_as_offered_and_others_are_refused(ledger: Ledger) -> None:
    assert {p.name: (p.credits // MICRO, p.cents // 100) for p in PACKAGES.values()} == {
        "starter": (1_000, 10),
        "pro": (5_000, 40),
        "enterprise": (25_000, 150),
    }
    with pytest.raises(InvalidParams, match="package: must be one of starter, pro, enterprise"):
        await ledger.checkout(Principal.read("alice"), "huge")


async def test_without_a_provider_nothing_is_sold(place: OrderingStore) -> None:
    ledger = place.ledger()
    with pytest.raises(UnsupportedOperation, match="no payment provider"):
        await ledger.checkout(Principal.read("alice"), "pro")
    with pytest.raises(UnsupportedOperation):
        await ledger.paid(b"{}", {})


async def test_a_webhook_that_is_not_the_providers_own_credits_nothing(
    ledger: Ledger, provider: FakeProvider, clock: Clock
) -> None:
    begun = await ledger.checkout(Principal.read("alice"), "starter")
    body, headers = provider.webhook(begun.checkout)
    forged = FakeProvider(b"another secret", now=clock).webhook(begun.checkout)
    attempts = [
        forged,
        (body + b" ", headers),
        (body, {}),
        (body, {SIGNATURE: "t=,v1="}),
        (body, {SIGNATURE: headers[SIGNATURE].replace("t=1", "t=2")}),
        (body, {SIGNATURE: "t=\u0663,v1=\udcff"}),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionDenied):
            await ledger.paid(*attempt)
    clock.now += TOLERANCE + 1
    with pytest.raises(PermissionDenied):
        await ledger.paid(body, headers)
    assert (await ledger.balance(Principal.read("alice"))).total == 1000 * MICRO
    assert "the provider's secret" not in repr(provider)


async def test_what_was_not_paid_or_not_as_much_credits_nothing(
    ledger: Ledger, provider: FakeProvider
) -> None:
    dear, cheap = (
        await ledger.checkout(Principal.read("alice"), "pro"),
        await ledger.checkout(Principal.read("alice"), "starter"),
    )
    assert not await ledger.paid(*provider.webhook(dear.checkout, is_paid=False))
    import msgspec

    swapped = msgspec.structs.replace(cheap.checkout, id=dear.checkout.id)
    assert not await ledger.paid(*provider.webhook(swapped))
    unknown = msgspec.structs.replace(cheap.checkout, id="nothing")
    assert not await ledger.paid(*provider.webhook(unknown))
    assert (await ledger.balance(Principal.read("alice"))).total == 1000 * MICRO


async def test_whoever_earned_may_give_back_once(ledger: Ledger, store: Store) -> None:
    await done(store, "t")
    for _ in range(2):
        assert (
            await ledger.refund(TaskReference("t"), owner=Principal.read("bob"), memo="Sorry")
        ).charged == TEN
    for owner in ("alice", "bob"):
        assert (await ledger.balance(Principal.read(owner))).total == 1000 * MICRO
        (line,) = (await ledger.statement(Principal.read(owner), kind="refund")).lines
        assert (line.reference, line.memo) == ("t", "Sorry")
    assert (await ledger.store.order_in(Scope("gateway", "", "alice"), "t")) is not None


async def test_a_refund_is_for_operators_too_and_to_others_there_is_no_task(
    ledger: Ledger, store: Store
) -> None:
    await done(store, "t")
    for owner in ("alice", "carol", ""):
        with pytest.raises(TaskNotFound):
            await ledger.refund(TaskReference("t"), owner=Principal.read(owner))
    with pytest.raises(TaskNotFound):
        await ledger.refund(TaskReference("nothing"), owner=Principal.read("bob"), is_operator=True)
    await ledger.refund(TaskReference("t"), owner=Principal.read("root"), is_operator=True)
    assert (await ledger.balance(Principal.read("alice"))).total == 1000 * MICRO


async def test_what_cost_nothing_or_is_spent_is_not_given_back(
    ledger: Ledger, store: Store
) -> None:
    await begin(store, "failed")
    await end(store, "failed", TaskState.FAILED)
    with pytest.raises(UnsupportedOperation, match="cost nothing"):
        await ledger.refund(TaskReference("failed"), owner=Principal.read("bob"))
    await done(store, "t")
    # Bob has a task done by another owner's agent, for all he has.
    total = (await ledger.balance(Principal.read("bob"))).total
    order = Order(
        agent="a2",
        requester=Principal.read("bob"),
        payee=Principal.read("carol"),
        price=total,
        held=total,
    )
    await write(store, replace(creation("bobs", scope=scope_of("bob")), order=order))
    with pytest.raises(InsufficientCredits) as refusal:
        await ledger.refund(TaskReference("t"), owner=Principal.read("bob"))
    assert refusal.value.facts == {"balance": "0.00", "needed": "9.50"}


async def test_a_sweep_settles_what_was_left_and_says_so(
    file: OrderingFile, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = file.ledger()
    await begin(file.store, "t")
    assert await ledger.sweep() == []
    await file.tamper("UPDATE tasks SET state = 4")
    assert len(await ledger.sweep()) == 1
    assert "was not settled" in caplog.text
    assert (await ledger.balance(Principal.read("alice"))).held == 0
    assert await ledger.sweep() == []
