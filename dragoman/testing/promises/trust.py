"""What a store of trust promises: a chain of events, each once, and sums that follow from them."""

import hashlib

import msgspec
from msgspec.structs import replace

from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import (
    AddDay,
    AddPayer,
    AppendEvents,
    DecideDispute,
    PutDispute,
    PutOrder,
    PutRating,
    SetObserved,
)
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.trust import (
    NOTHING,
    UNIT,
    DisputeRow,
    SumWindow,
    TrustDay,
    TrustEventRow,
    TrustSums,
)
from dragoman.testing.promises.orders import past_order, refuse

_ALL = SumWindow(cap=20, recent=-1, active=-1)


def event(type: str, task: int = 0, agent: str = "a1", at: int = 5) -> TrustEventRow:
    """Return an observation."""
    return TrustEventRow(at=at, agent=agent, type=type, score=1, reason="x", task=task)


class TrustPromises:
    """Tests that take an open, empty store from a fixture `store`."""

    async def test_events_are_numbered_and_chained(self, store: GatewayStore) -> None:
        """Each has the hash of the one before, and is filed under what it says."""
        accounting, trust = store.accounting, store.accounting.trust
        assert await trust.last_number() == 0
        await accounting.apply([AppendEvents([event("task_completed", 1), event("violation")])])
        await accounting.apply([AppendEvents([event("violation", agent="a2")]), AppendEvents([])])
        found = await trust.after(0, 10)
        assert [one.number for one in found] == [1, 2, 3]
        assert await trust.last_number() == 3
        assert await trust.after(1, 1) == found[1:2]
        prev = NOTHING
        for line, one in zip((await trust.contents()).lines, found, strict=True):
            assert msgspec.json.encode(one) == line.body
            assert (line.agent, line.type, line.task, line.at) == (
                one.agent,
                one.type,
                one.task,
                one.at,
            )
            assert one.prev == prev
            prev = line.hash
            assert hashlib.sha256(line.body).hexdigest() == prev

    async def test_a_task_has_one_event_of_a_type(self, store: GatewayStore) -> None:
        """Violations are of no task: there may be many."""
        accounting = store.accounting
        await accounting.apply([AppendEvents([event("task_completed", 1)])])
        day = AddDay(("a1", "alice", False, 0), TrustDay(completed=1))
        await refuse(accounting, [day, AppendEvents([event("task_completed", 1)])])
        assert await accounting.trust.totals("a1") == TrustDay()
        await accounting.apply([AppendEvents([event("violation"), event("violation")])])
        assert await accounting.trust.last_number() == 3

    async def test_outcomes_are_observed_once_and_as_they_were(self, store: GatewayStore) -> None:
        """One that was charged since the decision is decided on again."""
        accounting, trust = store.accounting, store.accounting.trust
        rows = [past_order(1), past_order(2, TaskState.FAILED), past_order(3)]
        open_row = replace(past_order(4), ended_at=0, state=None)
        await accounting.apply([PutOrder(row) for row in (*rows, open_row)])
        found = await trust.unobserved(2)
        assert [one.order for one in found] == rows[:2]
        await refuse(accounting, [SetObserved([rows[0], replace(rows[1], charged=5)])])
        await accounting.apply([SetObserved(rows[:2])])
        assert [one.order for one in await trust.unobserved(9)] == rows[2:]
        await refuse(accounting, [SetObserved(rows)])
        orders = (await trust.contents()).orders
        assert [(one.task, one.is_observed) for one in orders] == [
            (1, True),
            (2, True),
            (3, False),
        ]

    async def test_sums_count_days_of_requesters_that_paid(self, store: GatewayStore) -> None:
        """Of the local user too, and never of the agent's own owner."""
        accounting, trust = store.accounting, store.accounting.trust
        day = TrustDay(completed=1, failed=1, response_ms=10, ratings=1, rating_sum=4)
        days = [
            AddDay((agent, requester, is_own, number), day)
            for agent, requester, is_own, number in (
                ("a1", "", False, 1),
                ("a1", "paid", False, 2),
                ("a1", "paid", False, 2),
                ("a1", "new", False, 3),
                ("a1", "owner", True, 4),
                ("a2", "", False, 9),
            )
        ]
        await accounting.apply([*days, AddPayer("paid"), AddPayer("paid"), AddPayer("owner")])
        sums = TrustSums(
            3 * UNIT, 3 * UNIT, 30, 3 * UNIT, 12 * UNIT, 3 * UNIT, 3 * UNIT, 6 * UNIT, 2
        )
        figures = await trust.figures(["a1"], _ALL)
        assert figures.sums == {"a1": sums} and figures.violations == {}
        assert (await trust.figures(None, _ALL)).sums.keys() == {"a1", "a2"}
        later = (await trust.figures(["a1"], SumWindow(20, 1, 2))).sums["a1"]
        assert (later.recent_completed, later.active) == (2 * UNIT, 0)
        assert await trust.totals("a1") == TrustDay(5, 5, 0, 5, 20)
        assert sorted(await trust.agents_of("")) == ["a1", "a2"]
        assert (await trust.contents()).payers == {"owner", "paid"}

    async def test_of_a_day_only_so_much_counts(self, store: GatewayStore) -> None:
        """Each task of a day with more counts less, in exact integers."""
        day = TrustDay(completed=30, failed=10, response_ms=3_001, ratings=40, rating_sum=90)
        await store.accounting.apply([AddDay(("a1", "", False, 1), day)])
        window = SumWindow(cap=20, recent=-1, active=-1)
        found = (await store.accounting.trust.figures(None, window)).sums["a1"]
        assert (found.completed, found.failed) == (15 * UNIT, 5 * UNIT)
        assert (found.response_ms, found.ratings, found.rating_sum) == (1500, 20 * UNIT, 45 * UNIT)

    async def test_a_day_that_is_taken_back_is_as_good_as_none(self, store: GatewayStore) -> None:
        """Sums may fall: a dispute was upheld."""
        key = ("a1", "alice", False, 1)
        added = [AddDay(key, TrustDay(completed=1)), AddDay(key, TrustDay(completed=-1))]
        await store.accounting.apply(added)
        assert (await store.accounting.trust.contents()).days == []

    async def test_the_history_of_an_agent_is_paged_latest_first(self, store: GatewayStore) -> None:
        """With the comments of ratings, by task."""
        accounting, trust = store.accounting, store.accounting.trust
        row = past_order(1)
        events = [event("task_completed", 1), event("rating_received", 1), event("violation")]
        rated = PutRating(row, 4, "slow", 6, None)
        await accounting.apply([PutOrder(row), rated, AppendEvents(events)])
        await accounting.apply([AppendEvents([event("violation", agent="a2")])])
        page = await trust.history("a1", limit=2, offset=1)
        assert [one.type for one in page.events] == ["rating_received", "task_completed"]
        assert (page.comments, page.total) == ({1: "slow"}, 3)
        figures = await trust.figures(None, _ALL)
        assert figures.violations == {"a1": [5], "a2": [5]}
        assert (await trust.figures(["a2"], _ALL)).violations == {"a2": [5]}

    async def test_disputes_without_a_decision_are_listed_oldest_first(
        self, store: GatewayStore
    ) -> None:
        """A decision takes one off the list."""
        accounting, trust = store.accounting, store.accounting.trust
        rows = [past_order(n) for n in (1, 2, 3)]
        for row in rows:
            await accounting.apply([PutOrder(row), PutDispute(row, f"no {row.task}", 7)])
        await accounting.apply([DecideDispute(1, "rejected", "", 8)])
        found, total = await trust.disputes(limit=1)
        assert found == [DisputeRow(2, "t2", "a1", "alice", "no 2", 7)] and total == 2
        # One that is decided meanwhile hides none of the next page.
        await accounting.apply([DecideDispute(2, "rejected", "", 9)])
        assert [one.task for one in (await trust.disputes(limit=9, after=2))[0]] == [3]
