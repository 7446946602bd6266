"""Trust in a running gateway: scores that follow what ended, and what is told of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.clock import Clock
from harness.waiting import eventually

from dragoman.errors import ConfigError, InvalidParams, StoreUnavailable
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust import recording
from dragoman.gateway.trust.export import verify_file
from dragoman.gateway.trust.scores import TrustRules
from dragoman.gateway.trust.trust import Trust
from dragoman.model.identity import LOCAL, Principal
from dragoman.stores.interface.effects import AccountingStore, PutOrder
from dragoman.stores.memory.accounting import MemoryAccounting
from tests.gateway.money.order_stores import KINDS, location, ordering, ordering_file
from tests.gateway.trust.ended_orders import DAY, NOW, Past, Roll, agent, past_orders


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW / 1000)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AccountingStore]:
    place = ordering(request.param, await location(request, tmp_path), synchronous="off")
    await place.store.open()
    yield place.accounting
    await place.store.close()


@pytest.fixture
async def trust(store: AccountingStore, clock: Clock) -> AsyncIterator[Trust]:
    trust = Trust(store, Roll(agent("a"), agent("b", days=73)), now=clock)
    await trust.open()
    yield trust
    await trust.close()


async def did(store: AccountingStore, *past: Past) -> list[str]:
    """Record orders that ended."""
    found = [order.task for order in (await store.trust.contents()).orders]
    rows = past_orders(max(found, default=0), *past)
    await store.apply([PutOrder(row) for row in rows])
    return [row.task_id for row in rows]


async def test_a_store_that_refuses_at_the_start_is_asked_again(
    store: AccountingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica whose connection is lost while it records outcomes starts all the same."""
    await did(store, Past())
    observe = recording.observe

    async def refused(*_: object) -> int:
        monkeypatch.setattr(recording, "observe", observe)
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(recording, "observe", refused)
    trust = Trust(store, Roll(agent("a")), now=clock)
    await trust.open()
    try:
        await eventually(lambda: trust.score("a") == 72)
    finally:
        await trust.close()


async def test_an_outcome_moves_the_score_soon_after_its_task_ended(
    store: AccountingStore, trust: Trust
) -> None:
    assert trust.score("a") == trust.score("nobody") == 50
    await did(store, Past())
    trust.ended()

    await eventually(lambda: trust.score("a") != 50)
    assert trust.score("a") == 72 and trust.score("b") == 50
    assert trust.performance.figures("a", "s").tasks == 1


async def test_what_ended_while_nobody_was_there_counts_from_the_start_on(
    store: AccountingStore, clock: Clock
) -> None:
    await did(store, *[Past(seconds=300)] * 250)
    first = Trust(store, Roll(agent("a")), now=clock)
    await first.open()
    await first.close()
    second = Trust(store, Roll(agent("a")), now=clock)
    await second.open()
    await second.close()
    assert first.score("a") == second.score("a") == 63
    assert first.performance.figures("a") == second.performance.figures("a")
    assert second.performance.figures("a").tasks == 250
    assert (await second.verify()).events == 250


async def test_two_that_look_at_the_same_moment_record_each_outcome_once_and_agree(
    store: AccountingStore, trust: Trust, clock: Clock
) -> None:
    other = Trust(store, Roll(agent("a"), agent("b", days=73)), now=clock)
    await did(store, *[Past()] * 5, *[Past(agent="b", state="failed")] * 3)
    done = await asyncio.gather(trust.digest(), other.digest())
    assert sum(done) == 8
    await asyncio.gather(trust.digest(), other.digest())
    assert [one.score(id) for one in (trust, other) for id in "ab"] == [72, 26] * 2
    assert (await trust.verify()).scores == {"a": 72, "b": 26}


async def test_a_requester_who_pays_for_the_first_time_counts_at_every_agent(
    store: AccountingStore, trust: Trust
) -> None:
    await did(store, Past(requester="bob"))
    await trust.digest()
    assert trust.score("a") == 50
    await did(store, Past(agent="b", requester="bob", charged=1))
    await trust.digest()
    assert trust.score("a") == 72 and (await trust.verify()).scores["a"] == 72


async def test_scores_follow_the_days_without_anybody_doing_anything(
    store: AccountingStore, trust: Trust, clock: Clock
) -> None:
    await did(store, Past())
    await trust.digest()
    clock.now += 365 * DAY / 1000
    await trust.digest()
    assert trust.score("a") == 87


async def test_a_standing_has_the_shape_of_the_api_and_says_what_the_memory_says(
    store: AccountingStore, trust: Trust
) -> None:
    task, _ = await did(store, Past(agent="b", seconds=300), Past(agent="b", state="failed"))
    await trust.rate("b", TaskReference(task), Principal.read(""), 5, "good")
    found = await trust.reputation("b-name")
    assert found is not None
    assert found.document() == {
        "agentId": "b",
        "agentName": "b-name",
        "trustScore": 58,
        "badge": "Established",
        "components": {"reliability": 50.0, "speed": 50.0, "quality": 100.0, "tenure": 20.0},
        "taskStats": {"total": 2, "completed": 1, "failed": 1},
        "ratingStats": {"avgRating": 5.0, "count": 1},
    }
    assert trust.score("b") == 58
    assert found.sentences()[0] == "b-name has 58 of 100: Established."
    assert await trust.reputation("nobody") is None


async def test_the_history_is_paged_with_the_latest_first(
    store: AccountingStore, trust: Trust
) -> None:
    tasks = await did(store, *[Past()] * 3, Past(agent="b"))
    await trust.digest()
    await trust.rate("a", TaskReference(tasks[0]), Principal.read(""), 2, "slow")
    page, total = await trust.history("a", limit=2)
    assert total == 4 and [one["eventType"] for one in page] == [
        "rating_received",
        "task_completed",
    ]
    assert page[0]["score"] == 2 and page[0]["comment"] == "slow"
    assert page[0]["taskId"] == tasks[0] and page[0]["createdAt"] == NOW
    rest, _ = await trust.history("a", limit=1000, offset=2)
    assert [one["taskId"] for one in rest] == [tasks[1], tasks[0]]


async def test_disputes_and_violations_move_scores_at_once(
    store: AccountingStore, clock: Clock
) -> None:
    strict = Trust(store, Roll(agent("a")), rules=TrustRules("corvid"), now=clock)
    tasks = await did(store, *[Past()] * 3)
    await strict.digest()
    assert strict.score("a") == 73
    await strict.dispute("a", TaskReference(tasks[0]), LOCAL, "nothing was done")
    await strict.resolve(TaskReference(tasks[0]), is_upheld=True)
    assert strict.score("a") == 63
    with pytest.raises(InvalidParams):
        await strict.resolve(TaskReference(tasks[0]), is_upheld=False)
    for _ in range(3):
        await strict.violation("a", "another origin")
    assert strict.score("a") == 0


async def test_an_export_is_checked_without_the_store(
    store: AccountingStore, trust: Trust, tmp_path: Path
) -> None:
    await did(store, *[Past()] * 3, Past(agent="b", state="failed"))
    await trust.digest()
    told = await trust.export(tmp_path / "trust.jsonl")
    assert verify_file(tmp_path / "trust.jsonl") == told
    assert told.scores == {"a": trust.score("a"), "b": trust.score("b")}


async def test_a_store_that_was_tampered_with_does_not_verify(tmp_path: Path) -> None:
    file = ordering_file(tmp_path / "tasks.db", synchronous="off")
    await file.store.open()
    trust = Trust(file.accounting, Roll(agent("a")))
    await did(file.accounting, Past())
    await trust.digest()
    assert (await trust.verify()).problem == ""
    await file.tamper("UPDATE trust_days SET failed = 9")
    assert "sums" in (await trust.verify()).problem
    await file.store.close()


def test_a_policy_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="corvid, nexus"):
        Trust(MemoryAccounting(), Roll(), rules=TrustRules("mine"))
