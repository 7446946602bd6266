"""The ledger in PostgreSQL under several processes: exact where credits are scarce."""

import asyncio
from typing import Any

import pytest
from harness.waiting import eventually, within
from msgspec.structs import replace

from dragoman.errors import HoldRefused
from dragoman.model.identity import Scope
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface import Create
from dragoman.stores.interface.effects import DecideDispute, PutDispute, PutOrder, PutRating
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, ServerError
from dragoman.stores.postgres.deeds import do
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.testing.promises import LedgerPromises
from dragoman.testing.promises.ledger import check, end, has, order_of, ordered, purchase
from dragoman.testing.promises.orders import GRANT, order, past_order
from dragoman.testing.promises.samples import addition, head_of, status, submit, write
from tests.stores.postgres.gateways import Opening

# Whoever adds to the chains at this moment.
KILL_SEALERS = """SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE relation = 'chains'::regclass AND granted"""


@pytest.fixture
async def store(opening: Opening) -> PostgresGatewayStore:
    return await opening()


async def idle(store: PostgresGatewayStore) -> PostgresGatewayStore:
    """Have a store seal nothing by itself."""
    await store.accounting.sealer.stop()
    return store


class Twice:
    """A connection that submits every group twice, as after a lost reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchval(self, *given: Any) -> Any:
        await self._connection.fetchval(*given)
        return await self._connection.fetchval(*given)


class TestTwice(LedgerPromises):
    """Nothing is charged twice that is submitted twice."""

    @pytest.fixture
    async def store(
        self, opening: Opening, monkeypatch: pytest.MonkeyPatch
    ) -> PostgresGatewayStore:
        connect = DatabaseConnections.writer

        async def writer(connections: DatabaseConnections) -> Twice:
            return Twice(await connect(connections))

        store = await opening()
        monkeypatch.setattr(DatabaseConnections, "writer", writer)
        return store


def spent(task_id: str, payer: str, price: int) -> Create:
    """Return a task of a user in the user's own scope."""
    return ordered(task_id, order(price, payer), scope_of(payer))


def scope_of(payer: str) -> Scope:
    return Scope("gateway", "", payer)


async def test_poor_spenders_on_three_stores_spend_what_they_have_and_no_more(
    opening: Opening,
) -> None:
    """Twenty users with credits for ten tasks each try thirty, on every store at once, while
    whoever seals is stopped again and again."""
    stores = [await opening() for _ in range(3)]
    users = [f"user {n}" for n in range(20)]
    price = GRANT // 10
    ended = asyncio.Event()

    async def interrupt() -> None:
        # On a quick machine none may be caught at it: `proof cluster` counts those that were.
        while not ended.is_set():
            await stores[0]._connections.rows(KILL_SEALERS)

    async def spend(store: GatewayStore, place: int, user: str) -> int:
        writes = [spent(f"{place}-{n}", user, price) for n in range(10)]
        outcomes = await submit(store, *writes)
        done = 0
        for one, outcome in zip(writes, outcomes, strict=True):
            if outcome.error is None:
                done += 1
                await end(store, one.task_id, scope=scope_of(user))
            else:
                assert isinstance(outcome.error, HoldRefused)
        return done

    interrupting = asyncio.get_running_loop().create_task(interrupt())
    done = await within(
        asyncio.gather(
            *(spend(store, place, user) for place, store in enumerate(stores) for user in users)
        )
    )
    ended.set()
    await interrupting
    assert sum(done) == 10 * len(users)
    for user in users:
        assert await has(stores[1], user) == (0, 0)
    assert await has(stores[2], "bob") == (GRANT + GRANT * len(users), 0)
    await check(stores[2])


async def test_what_was_given_back_a_moment_ago_can_be_spent(store: PostgresGatewayStore) -> None:
    """A hold is not refused because nobody has sealed yet."""
    await idle(store)
    await write(store, ordered("dear", order(GRANT)))
    await end(store, "dear", TaskState.FAILED)
    await write(store, ordered("next", order(GRANT)))
    (refused,) = await submit(store, ordered("late", order(1)))
    assert isinstance(refused.error, HoldRefused)
    assert (refused.error.balance, refused.error.needed) == (0, 1)
    await check(store)


async def test_a_message_sent_twice_is_known_although_credits_are_gone(
    opening: Opening,
) -> None:
    one, other = await opening(), await opening()
    first = replace(ordered("t", order(GRANT)), keys=[b"key"])
    await write(one, first)
    (again,) = await submit(other, replace(ordered("u", order(GRANT)), keys=[b"key"]))
    assert again.is_refused and not isinstance(again.error, HoldRefused)


async def test_the_next_holder_of_a_task_goes_on_with_its_order(opening: Opening) -> None:
    """And the former one does not go by what it remembers, should it hold the task again."""
    one, other = await opening(), await opening()
    await write(one, ordered("t"))
    head = await head_of(one, "t")
    chosen = addition(head, status("t", TaskState.WORKING), next_fence=head.fence + 1)
    await write(other, replace(chosen, order=Order(agent="a2")))
    assert (await order_of(one, "t")).agent == "a2"
    moved = await head_of(one, "t")
    await write(
        one, replace(addition(moved, status("t", TaskState.WORKING)), order=Order(agent="a3"))
    )
    await end(one, "t")
    found = await order_of(other, "t")
    assert (found.agent, found.charged) == ("a3", 10)
    await check(other)


async def test_a_check_counts_what_is_not_sealed_yet(
    store: PostgresGatewayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are written while it looks."""
    await idle(store)
    await write(store, ordered("t"))
    await store.accounting.sealer.catch_up()
    await write(store, ordered("u"))
    await end(store, "t")

    async def nothing() -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(store.accounting.sealer, "catch_up", nothing)
        report = await store.accounting.ledger.verify()
    assert report.differences == [] and report.transfers == 2
    await check(store)


async def test_what_one_process_left_another_seals(opening: Opening) -> None:
    one, other = await idle(await opening()), await opening()
    await write(one, ordered("t"))
    await end(one, "t")
    await one.vanish()

    async def is_sealed() -> bool:
        sql = "SELECT count(*) FROM transfers WHERE number IS NULL"
        return await other._connections.rows(sql) == [(0,)]

    await eventually(is_sealed)
    await check(other)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE transfers SET memo = 'other' WHERE number = 1",
        "UPDATE transfers SET number = NULL, hash = NULL",
        "DELETE FROM transfers",
        "UPDATE entries SET amount = 0",
        "DELETE FROM entries",
        "UPDATE accounts SET balance = held - 1 WHERE kind = 'user'",
        "UPDATE accounts SET ahead = held - balance - 1 WHERE kind = 'user'",
    ],
)
async def test_what_is_sealed_is_final(store: PostgresGatewayStore, sql: str) -> None:
    await write(store, ordered("t"))
    await store.accounting.sealer.catch_up()
    with pytest.raises(ServerError):
        await store._connections.rows(sql)
    await check(store)


async def test_one_that_stands_still_in_the_midst_of_a_deed_does_not_keep_the_others_waiting(
    store: PostgresGatewayStore,
) -> None:
    """The server ends a transaction whose client says nothing, and its locks with it."""

    async def ask(connection: Connection) -> str:
        return await connection.fetchval("SHOW idle_in_transaction_session_timeout")

    assert await do(store._connections, ask) == "10s"


async def test_readers_see_what_they_wrote(store: PostgresGatewayStore) -> None:
    """Whether or not anybody has sealed it."""
    await idle(store)
    for n in range(3):
        await write(store, ordered(f"t{n}"))
        await end(store, f"t{n}")
        assert await has(store, "bob") == (GRANT + 10 * (n + 1), 0)
        page = await store.accounting.ledger.statement("bob", ["task_credit"], limit=9)
        assert page.total == n + 1


async def test_what_callers_say_need_not_be_what_the_server_takes(
    store: PostgresGatewayStore,
) -> None:
    """A NUL in a text fails neither its own write nor those of others in the same group."""
    odd = replace(ordered("odd", replace(order(), skill="a\0b", cause="\0")))
    outcomes = await submit(store, odd, ordered("plain"))
    assert [one.error for one in outcomes] == [None, None]
    row = past_order(1)
    deeds = [PutOrder(row), PutDispute(row, "no\0", 1), DecideDispute(1, "upheld", "\0", 2)]
    await store.accounting.apply([*deeds, PutRating(row, 1, "bad\0", 3, "upheld")])
    bought = purchase()
    memo = replace(bought, transfer=bought.transfer._replace(memo="\0"))
    await store.accounting.apply([memo])
    await check(store)
