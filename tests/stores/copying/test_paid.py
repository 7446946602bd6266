"""A ledger with money in all of its places goes to a database and back, and is gone on with in
each: prices that are paid, held, in escrow, disputed and given back, and a purchase."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.clock import Clock
from harness.databases import Databases
from harness.waiting import within

from dragoman.config import Settings, StoreSettings
from dragoman.gateway.money.payments import FakeProvider
from dragoman.gateway.money.receipts import read_receipt
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust.trust import Trust
from dragoman.model.identity import Principal
from dragoman.model.money import Terms
from dragoman.model.task import TaskState
from dragoman.stores import tools
from tests.gateway.money.order_stores import begin, done, end, ordering
from tests.gateway.trust.ended_orders import Roll, agent

ALICE, BOB = Principal.read("alice"), Principal.read("bob")
KEEPING = Terms(escrow=72 * 3600 * 1000)
PROVIDER = FakeProvider(b"the provider's own")


class Books:
    """The money and the trust of a gateway whose store is open."""

    def __init__(self, kind: str, location: Path | str) -> None:
        self.place = ordering(kind, location, KEEPING)
        self.ledger = self.place.ledger(now=Clock(10.0), provider=PROVIDER)
        roll = Roll(agent("a1", owner="bob"))
        self.trust = Trust(self.place.accounting, roll, now=Clock(10.0))

    async def accept(self, task: str) -> None:
        await self.ledger.accept(TaskReference(task), owner=ALICE)

    async def found(self) -> dict[str, Any]:
        """Return everything that must not change on the way, having found it whole."""
        report, trust = await self.ledger.store.verify(), await self.trust.verify()
        assert (report.differences, trust.problem) == ([], "")
        has = self.place.has
        return {
            "head": report.head,
            "trust": trust.head,
            "sides": [await has("alice"), await has("bob"), await has("", "fees")],
            "orders": [await self.place.order(id) for id in TASKS],
            "statement": (await self.ledger.statement(ALICE)),
            "receipt": read_receipt(
                await self.ledger.receipt(TaskReference("paid"), owner=ALICE),
                await self.ledger.receipt_keys(),
            ),
        }


TASKS = ("paid", "held", "kept", "disputed", "failed", "refunded")


@asynccontextmanager
async def books(kind: str, location: Path | str) -> AsyncGenerator[Books]:
    opened = Books(kind, location)
    await opened.place.store.open()
    yield opened
    await within(opened.place.store.close())


async def fill(one: Books) -> None:
    store = one.place.store
    for id in ("paid", "kept", "disputed", "refunded"):
        await done(store, id)
    await begin(store, "held")
    await begin(store, "failed")
    await end(store, "failed", TaskState.FAILED)
    await one.accept("paid")
    await one.accept("refunded")
    await one.ledger.refund(TaskReference("refunded"), owner=BOB, memo="ü \\ '")
    await one.trust.digest()
    await one.trust.dispute("a1", TaskReference("disputed"), ALICE, "It is empty.")
    await one.trust.rate("a1", TaskReference("paid"), ALICE, 4, "good")
    await pay(one)


async def pay(one: Books) -> None:
    """Buy credits; the provider tells it twice."""
    pending = await one.ledger.checkout(ALICE, "starter")
    body, headers = PROVIDER.webhook(pending.checkout, event=pending.checkout.id)
    assert await one.ledger.paid(body, headers) is not None
    assert await one.ledger.paid(body, headers) is None


def copy(source: Path | str, target: Path | str) -> None:
    of = [Settings(stores=StoreSettings(location=str(one))) for one in (source, target)]
    tools.copy(of[0], of[1], lambda done, total: None)
    assert tools.inconsistencies(of[1]) == []


async def test_a_ledger_with_money_in_it_is_gone_on_with_after_each_copy(
    tmp_path: Path, databases: Databases
) -> None:
    file, back = tmp_path / "tasks.db", tmp_path / "back.db"
    database = await asyncio.to_thread(databases.make)
    async with books("sqlite", file) as one:
        await fill(one)
        before = await one.found()
    assert before["sides"][0][1] == 30

    await asyncio.to_thread(copy, file, database)
    async with books("postgres", database) as one:
        assert await one.found() == before
        ((head, _),) = await one.place.store.claim("gateway", 9)
        assert head.task_id == "held"
        await one.accept("kept")
        await one.trust.resolve(TaskReference("disputed"), is_upheld=True)
        # What was paid before the copy is not paid again, and neither given back.
        await one.accept("paid")
        await one.ledger.refund(TaskReference("refunded"), owner=BOB)
        await pay(one)
        await end(one.place.store, "held")
        await done(one.place.store, "new")
        after = await one.found()
    # Held for `held` and `new`, which are delivered.
    assert after["sides"][0][1] == 20
    assert after["sides"][1][0] == before["sides"][1][0] + 9.5

    await asyncio.to_thread(copy, database, back)
    async with books("sqlite", back) as one:
        assert await one.found() == after
        await one.accept("held")
        await one.accept("new")
        last = await one.found()
    assert last["sides"][0][1] == 0
    assert sum(side[0] for side in last["sides"]) == sum(sum(side) for side in after["sides"])
