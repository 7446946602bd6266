"""What a ledger promises: orders follow the writes of their tasks, effects happen whole or not at
all, each transfer once, and the chain of them can be recomputed."""

from msgspec.structs import replace

from dragoman.errors import HoldRefused
from dragoman.model.identity import Principal, Scope
from dragoman.model.order import DELIVERED, DISPUTED, Order
from dragoman.model.task import TaskState
from dragoman.stores.chain import posted_hash, transfer_id
from dragoman.stores.interface import Create, Query
from dragoman.stores.interface.effects import (
    AddPayer,
    AppendEvents,
    DecideDispute,
    MarkPaid,
    OpenAccount,
    Post,
    PutCheckout,
    PutDispute,
    PutOrder,
    PutRating,
    RecordPayment,
    Reserve,
    SetOrder,
)
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.ledger import (
    GENESIS,
    ISSUED,
    SOLD,
    USER,
    AccountDay,
    Balance,
    Checkout,
    Leg,
    Transfer,
)
from dragoman.stores.interface.orders import OrderFacts, OrderQuery, OrderRow
from dragoman.stores.interface.trust import TrustEventRow
from dragoman.testing.promises.orders import GRANT, order, past_order, refuse, settlement
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    END_OF_TIME,
    HERE,
    addition,
    creation,
    head_of,
    status,
    submit,
    write,
)

_DAY_MS = 24 * 3600 * 1000


def ordered(task_id: str, one: Order | None = None, scope: Scope = HERE) -> Create:
    """Return the first write of a task with an order."""
    return replace(creation(task_id, scope=scope), order=one or order())


async def end(
    store: GatewayStore, task_id: str, state: TaskState = TaskState.COMPLETED, scope: Scope = HERE
) -> None:
    """End a task."""
    head = await head_of(store, task_id, scope)
    await write(store, addition(head, status(task_id, state, 2_000), state=state, at=2_000))


async def has(store: GatewayStore, owner: str) -> tuple[int, int]:
    """Return what a user can spend, and what is reserved."""
    found = await store.accounting.ledger.balance(owner) or Balance()
    return found.available, found.held


async def order_of(store: GatewayStore, task_id: str) -> OrderRow:
    """Return the one order of an id."""
    (found,) = await store.accounting.ledger.facts(task_id)
    return found.order


async def check(store: GatewayStore) -> None:
    """Find the ledger whole, by the store's own check and by its chain."""
    ledger = store.accounting.ledger
    assert (await ledger.verify()).differences == []
    prior = GENESIS
    for number, posted in enumerate(await ledger.transfers(0, 10_000), 1):
        assert posted.number == number
        assert posted_hash(prior, posted) == posted.hash
        prior = posted.hash


def purchase(n: int = 1, amount: int = 5) -> Post:
    """Return a transfer that sells credits to alice."""
    legs = [Leg(USER, "alice", "purchase", amount), Leg(SOLD, "", "purchase", -amount)]
    return Post(Transfer(transfer_id("purchase", n), "purchase", 1_000), legs, GRANT)


class LedgerPromises:
    """Tests that take an open, empty store from a fixture `store`, made with `SampleRules`."""

    # Orders and the writes of their tasks

    async def test_a_price_is_reserved_with_the_task_and_paid_with_its_end(
        self, store: GatewayStore
    ) -> None:
        """The payee's account is opened with the grant by the first transfer that touches it."""
        await write(store, ordered("t"))
        assert await has(store, "alice") == (GRANT - 10, 10)
        assert (await order_of(store, "t")).state is None
        await end(store, "t")
        assert await has(store, "alice") == (GRANT - 10, 0)
        assert await has(store, "bob") == (GRANT + 10, 0)
        found = await order_of(store, "t")
        assert (found.state, found.charged, found.held) == (TaskState.COMPLETED, 10, 0)
        await check(store)

    async def test_a_task_that_begins_and_ends_in_one_write_is_settled(
        self, store: GatewayStore
    ) -> None:
        """An order need not be written before it is settled."""
        done = replace(creation("t", state=TaskState.COMPLETED), order=order())
        await write(store, done)
        assert await has(store, "bob") == (GRANT + 10, 0)
        await check(store)

    async def test_a_hold_that_is_refused_refuses_its_write_alone(
        self, store: GatewayStore
    ) -> None:
        """Others of the same moment happen, and nothing is left of the one that was refused."""
        dear = ordered("dear", order(GRANT))
        outcomes = await submit(store, ordered("one"), dear, ordered("two"))
        assert [type(one.error) for one in outcomes] == [type(None), HoldRefused, type(None)]
        refusal = outcomes[1].error
        assert isinstance(refusal, HoldRefused)
        assert (refusal.balance, refusal.needed) == (GRANT - 10, GRANT)
        assert await store.head(HERE, dear.task_id) is None
        assert await store.accounting.ledger.facts("dear") == []
        assert await has(store, "alice") == (GRANT - 20, 20)
        await check(store)

    async def test_a_write_that_is_refused_charges_nothing(self, store: GatewayStore) -> None:
        """Neither a stale fence nor an id that exists moves money."""
        await write(store, ordered("t"))
        head = await head_of(store, "t")
        late = addition(head, status("t", TaskState.COMPLETED), state=TaskState.COMPLETED)
        stale = replace(late, fence=head.fence + 1, next_fence=head.fence + 2)
        outcomes = await submit(store, stale, ordered("t"))
        assert all(one.is_refused for one in outcomes)
        assert await has(store, "alice") == (GRANT - 10, 10)
        await check(store)

    async def test_a_task_that_ends_again_is_not_settled_again(self, store: GatewayStore) -> None:
        """What it came to first stays."""
        await write(store, ordered("t"))
        await end(store, "t")
        await end(store, "t", TaskState.FAILED)
        assert (await order_of(store, "t")).state is TaskState.COMPLETED
        assert await has(store, "alice") == (GRANT - 10, 0)
        await check(store)

    async def test_orders_outlive_their_tasks_and_leave_the_lists_with_them(
        self, store: GatewayStore
    ) -> None:
        """An order is found by the task's number and id for ever."""
        await write(store, ordered("t"))
        await end(store, "t")
        ledger = store.accounting.ledger
        assert await store.prune(ended_before=END_OF_TIME, keep=0) == 1
        found = await order_of(store, "t")
        assert await ledger.order(found.task) == found
        assert await ledger.order_in(HERE, "t") is None
        assert await ledger.orders(HERE, OrderQuery(), limit=10, offset=0) == ([], 0)
        await check(store)

    async def test_orders_are_listed_by_scope_state_and_agent_newest_first(
        self, store: GatewayStore
    ) -> None:
        """Two scopes may have tasks of one id."""
        ledger = store.accounting.ledger
        for task_id in ("a", "b", "c"):
            await write(store, ordered(task_id))
        unassigned = Order(requester=Principal.read("alice"), price=1, held=1)
        await write(store, ordered("d", unassigned))
        await write(store, ordered("a", scope=ELSEWHERE[0]))
        await end(store, "b")

        async def listed(query: OrderQuery, limit: int = 10, offset: int = 0) -> list[str]:
            rows, total = await ledger.orders(HERE, query, limit=limit, offset=offset)
            assert total == len((await ledger.orders(HERE, query, limit=99, offset=0))[0])
            return [row.task_id for row in rows]

        assert await listed(OrderQuery()) == ["d", "c", "b", "a"]
        assert await listed(OrderQuery(), 2, 1) == ["c", "b"]
        assert await listed(OrderQuery(states=(TaskState.COMPLETED,))) == ["b"]
        assert await listed(OrderQuery(agent="a1")) == ["c", "b", "a"]
        assert await listed(OrderQuery(is_assigned=False)) == ["d"]
        assert await listed(OrderQuery(agent="other")) == []
        both = await ledger.facts("a")
        assert [one.order.task for one in both] == sorted(
            (one.order.task for one in both), reverse=True
        )
        there = await ledger.order_in(ELSEWHERE[0], "a")
        assert there == both[0].order != await ledger.order_in(HERE, "a")
        page = await store.page(Query(HERE, 10, ordered_from="a1"))
        assert page.total == 3

    # Effects

    async def test_effects_happen_whole_or_not_at_all(self, store: GatewayStore) -> None:
        """One that does not fit undoes those before it, of every kind."""
        accounting, ledger = store.accounting, store.accounting.ledger
        await accounting.apply([purchase()])
        before, row = await ledger.verify(), past_order(7)
        event = TrustEventRow(at=1, agent="a1", type="task_completed", score=3, reason="x", task=7)
        await refuse(
            accounting,
            [
                PutOrder(row),
                purchase(2),
                OpenAccount("carol", GRANT, 1),
                PutCheckout(Checkout("c", "alice", "p", 1, 1, 1)),
                AppendEvents([event]),
                AddPayer("alice"),
                PutRating(row, 5, "", 1, None),
                PutDispute(row, "no", 1),
                purchase(),
            ],
        )
        assert await ledger.verify() == before
        assert await ledger.balance("carol") is None
        assert await ledger.checkout("c") is None
        assert await ledger.facts("t7") == []
        contents = await accounting.trust.contents()
        assert (contents.lines, contents.orders, contents.payers) == ([], [], set())
        assert await accounting.trust.disputes(limit=9) == ([], 0)

    async def test_a_transfer_is_made_once_and_covered(self, store: GatewayStore) -> None:
        """A repetition is refused, and so is one that takes more than there is."""
        accounting = store.accounting
        await accounting.apply([purchase()])
        await refuse(accounting, [purchase()])
        await refuse(accounting, [purchase(2, -GRANT - 6)])
        reserved = Reserve(Transfer(transfer_id("r"), "hold", 1_000), "alice", GRANT + 5)
        await accounting.apply([reserved])
        await refuse(accounting, [purchase(3, -1)])
        assert await has(store, "alice") == (0, GRANT + 5)

    async def test_an_account_is_opened_once_with_the_grant(self, store: GatewayStore) -> None:
        """All balances together are zero."""
        ledger = store.accounting.ledger
        opened = OpenAccount("alice", GRANT, 1_000)
        await store.accounting.apply([opened, opened])
        await store.accounting.apply([opened])
        found = await ledger.balances(10, 0)
        assert found == [
            ("fees", "", Balance()),
            (ISSUED, "", Balance(-GRANT)),
            (SOLD, "", Balance()),
            (USER, "alice", Balance(GRANT)),
        ]
        assert await ledger.balances(1, 3) == found[3:]
        (granted,) = await ledger.transfers(0, 10)
        assert await ledger.transfer(granted.id) == granted
        await check(store)

    async def test_the_time_of_transfers_never_goes_back(self, store: GatewayStore) -> None:
        """Whatever clocks say."""
        for n, at in ((1, 5_000), (2, 1_000)):
            post = purchase(n)
            late = replace(post, transfer=post.transfer._replace(at=at))
            await store.accounting.apply([late])
        found = await store.accounting.ledger.transfers(0, 10)
        assert [one.at for one in found] == [5_000] * 3
        assert await store.accounting.ledger.transfers(1, 1) == found[1:2]
        await check(store)

    async def test_an_order_is_changed_only_as_it_was(self, store: GatewayStore) -> None:
        """Of two decisions on the same order the second is refused."""
        await write(store, ordered("t"))
        before = await order_of(store, "t")
        ended = replace(before, held=0, ended_at=9, state=TaskState.FAILED)
        effects = [SetOrder(before, ended), settlement(before, 0, 9)]
        await store.accounting.apply(effects)
        for again in (effects, effects[1:]):
            await refuse(store.accounting, again)
        assert await order_of(store, "t") == ended
        assert await has(store, "alice") == (GRANT, 0)

    async def test_a_purchase_is_paid_once(self, store: GatewayStore) -> None:
        """An event of the provider is recorded once, and a purchase paid once."""
        ledger = store.accounting.ledger
        checkout = Checkout("c", "alice", "starter", 5, 100, 1_000)
        await store.accounting.apply([PutCheckout(checkout)])
        assert await ledger.checkout("c") == checkout
        assert not await ledger.is_payment_recorded("e")
        paid = [RecordPayment("e", "c", 2_000), MarkPaid("c", 2_000)]
        await store.accounting.apply(paid)
        for again in (paid[:1], paid[1:], [MarkPaid("other", 1)]):
            await refuse(store.accounting, again)
        assert await ledger.is_payment_recorded("e")
        assert await ledger.checkout("c") == replace(checkout, paid_at=2_000)

    # Reads

    async def test_a_statement_has_the_lines_of_some_kinds_latest_first(
        self, store: GatewayStore
    ) -> None:
        """Pages go by offset, or by the number of a line."""
        ledger = store.accounting.ledger
        for n in (1, 2, 3):
            await store.accounting.apply([purchase(n, n)])
        page = await ledger.statement("alice", ["purchase"], limit=2)
        assert [line.amount for line in page.lines] == [3, 2] and page.total == 3
        rest = await ledger.statement("alice", ["purchase"], limit=2, offset=2)
        assert [line.amount for line in rest.lines] == [1]
        last = page.lines[-1].number
        assert await ledger.statement("alice", ["purchase"], limit=9, before=last) == rest
        both = await ledger.statement("alice", ["purchase", "initial_grant"], limit=9)
        assert [line.balance for line in both.lines] == [
            GRANT + 6,
            GRANT + 3,
            GRANT + 1,
            GRANT,
        ]
        assert (await ledger.statement("bob", ["purchase"], limit=9)).lines == []

    async def test_days_have_what_was_spent_and_earned(self, store: GatewayStore) -> None:
        """Days before the time that was asked for are left out."""
        for n, day in ((1, 3), (2, 5), (3, 5)):
            row = replace(past_order(n, charged=7), held=0)
            opened = OpenAccount("alice", GRANT, day * _DAY_MS)
            await store.accounting.apply([opened, settlement(row, 7, day * _DAY_MS + 5)])
        ledger = store.accounting.ledger
        late = AccountDay("1970-01-06", 14, 0)
        assert await ledger.days("alice", 4 * _DAY_MS) == [late]
        assert await ledger.days("alice", 0) == [AccountDay("1970-01-04", 7, 0), late]
        assert await ledger.days("bob", 5 * _DAY_MS) == [AccountDay("1970-01-06", 0, 14)]

    async def test_what_is_in_escrow_is_found_by_its_sides_and_by_its_time(
        self, store: GatewayStore
    ) -> None:
        """A disputed order is in escrow, and never due."""
        accounting, ledger = store.accounting, store.accounting.ledger
        rows = [
            replace(past_order(1), escrow=DELIVERED, release_at=3_000),
            replace(past_order(2), escrow=DELIVERED, release_at=2_500),
            replace(past_order(3), escrow=DISPUTED, release_at=1),
            replace(past_order(4), escrow="released", release_at=1),
        ]
        disputed = PutDispute(rows[2], "It is empty.", 2_100)
        await accounting.apply([*(PutOrder(row) for row in rows), disputed])
        for side in ("alice", "bob"):
            found, total = await ledger.in_escrow(Principal.read(side), limit=2, after=3)
            assert (found, total) == ([rows[1], rows[0]], 3)
            assert (await ledger.in_escrow(Principal.read(side), limit=1))[0] == [rows[2]]
        assert await ledger.in_escrow(Principal.read("eve"), limit=2) == ([], 0)
        due = await ledger.due(3_000, 10)
        assert [one.order for one in due] == [rows[1], rows[0]]
        assert await ledger.due(3_000, 1) == due[:1]
        assert await ledger.due(2_499, 10) == []

    async def test_facts_of_an_order_say_what_was_recorded_about_it(
        self, store: GatewayStore
    ) -> None:
        """Events, a rating, a dispute and how that was decided."""
        accounting, ledger = store.accounting, store.accounting.ledger
        row = past_order(1)
        event = TrustEventRow(at=1, agent="a1", type="dispute_opened", score=0, reason="", task=1)
        await accounting.apply([PutOrder(row)])
        assert await ledger.facts("t1") == [OrderFacts(row)]
        rated = PutRating(row, 4, "slow", 1, None)
        await accounting.apply([PutDispute(row, "no", 2), AppendEvents([event])])
        # Decided before there was a dispute.
        await refuse(accounting, [rated])
        await accounting.apply([replace(rated, dispute="")])
        known = frozenset({"dispute_opened"})
        assert await ledger.facts("t1") == [OrderFacts(row, known, 4, "")]
        decided = DecideDispute(1, "upheld", "", 3)
        await accounting.apply([decided])
        assert await ledger.facts("t1") == [OrderFacts(row, known, 4, "upheld")]
        for again in (decided, PutDispute(row, "again", 4), replace(rated, dispute="upheld")):
            await refuse(accounting, [again])

    async def test_an_order_without_its_task_is_stale(self, store: GatewayStore) -> None:
        """It is reported by the check too."""
        ledger = store.accounting.ledger
        await write(store, ordered("t"))
        assert await ledger.stale() == []
        row = replace(past_order(99), ended_at=0, state=None)
        await store.accounting.apply([PutOrder(row)])
        (found,) = await ledger.stale()
        assert (found.order, found.state) == (row, None)
        (difference,) = (await ledger.verify()).differences
        assert "has ended, and its order has not" in difference

    async def test_a_head_that_is_not_in_the_chain_is_reported(self, store: GatewayStore) -> None:
        """A head that was noted down shows later that no end was cut off."""
        ledger = store.accounting.ledger
        await store.accounting.apply([purchase()])
        head = (await ledger.verify()).head
        await store.accounting.apply([purchase(2)])
        report = await ledger.verify(head)
        assert report.is_whole and report.head != head
        assert (report.transfers, report.entries) == (3, 6)
        (difference,) = (await ledger.verify("ab" * 32)).differences
        assert "the end of the ledger is gone" in difference
