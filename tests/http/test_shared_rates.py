"""Rates that three replicas count together on a real database: spread evenly or not, at once or
over time, and with the store away."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import asyncpg
import pytest
from harness.waiting import eventually, within

from dragoman.config.formats import Rate
from dragoman.errors import RateLimited
from dragoman.http.rates import Bucketing, TaskQuota
from dragoman.model.identity import Principal
from dragoman.stores.postgres import limits as database_limits
from tests.http.sharing import REPLICAS, Three

ALICE, BOB = Principal("", "alice"), Principal("", "bob")


async def ask(buckets: Bucketing, who: Principal = ALICE) -> bool:
    """Ask once, as a request does."""
    await buckets.prepare(who)
    return not buckets.take(who, time.monotonic())


async def ask_at_once(buckets: Sequence[Bucketing]) -> int:
    return sum(await within(asyncio.gather(*map(ask, buckets))))


@pytest.mark.parametrize("limit", [2, 30, 100, 3000])
async def test_a_burst_over_all_replicas_is_cut_at_the_limit(three: Three, limit: int) -> None:
    buckets = three.buckets(Rate(limit, 3600))
    admitted = await ask_at_once(buckets * limit)
    assert limit * 0.95 <= admitted <= limit * 1.05


async def test_a_burst_at_one_replica_gets_all_there_is(three: Three) -> None:
    one, other, _ = three.buckets(Rate(100, 3600))
    # All know how many they are.
    assert await ask(other) and await ask(one)
    assert 93 <= await ask_at_once([one] * 300) <= 103


@pytest.mark.parametrize("weights", [(1, 1, 1), (8, 1, 1), (1, 0, 0)])
async def test_over_time_as_many_are_let_in_as_the_rate_says(
    three: Three, weights: tuple[int, ...]
) -> None:
    rate, seconds = Rate(80, 2), 3.0
    buckets = three.buckets(rate)
    began = time.monotonic()
    admitted = 0

    async def keep_asking(one: Bucketing, pause: float) -> None:
        nonlocal admitted
        for n in range(int(seconds / pause)):
            # By the clock: a machine that is late catches up.
            await asyncio.sleep(max(0.0, began + n * pause - time.monotonic()))
            is_in = await ask(one)
            admitted += is_in

    # Three times the limit, in all.
    pace = 3 * rate.count / rate.seconds / sum(weights)
    asking = [
        keep_asking(one, 1 / (pace * weight))
        for one, weight in zip(buckets, weights, strict=True)
        if weight
    ]
    await within(asyncio.gather(*asking))
    took = time.monotonic() - began
    fair = rate.count + rate.count / rate.seconds * took
    assert admitted <= 1.1 * fair
    # A machine that is far behind does not ask three times as often.
    assert admitted >= 0.9 * fair or took > 1.5 * seconds


async def test_a_caller_far_below_its_limit_is_never_refused_and_costs_few_round_trips(
    three: Three,
) -> None:
    buckets = three.buckets(Rate(6000, 60))
    for _ in range(300):
        for one in buckets:
            assert await ask(one)
    # Some portions, and not one for each of 900.
    assert three.trips < 90


async def test_callers_that_ask_seldom_do_not_reach_the_store(three: Three) -> None:
    buckets = three.buckets(Rate(600, 60))
    for one in buckets:
        # How many replicas there are is known from the first draw.
        assert await ask(one, BOB)
    before = three.trips
    for n in range(50):
        for one in buckets:
            assert await ask(one, Principal("", f"caller {n}"))
    assert three.trips == before


async def test_what_one_replica_does_not_use_goes_back_to_the_others(three: Three) -> None:
    one, other, third = three.buckets(Rate(100, 36_000))
    assert await ask(one) and await ask(other) and await ask(third)
    # The others have portions now, which they do not use for a while.
    held = sum(one._portion(ALICE).tokens for one in (one, other))
    assert held
    await eventually(lambda: not any(one._portion(ALICE).tokens for one in (one, other)))
    await eventually(lambda: three.trips >= 5)
    assert 97 <= await ask_at_once([third] * 200) + 3 <= 101


async def test_two_callers_and_two_limits_have_buckets_of_their_own(three: Three) -> None:
    mine, _, _ = three.buckets(Rate(2, 3600))
    others, _, _ = three.buckets(Rate(2, 3600), "another")
    for buckets, who in ((mine, ALICE), (mine, BOB), (others, ALICE)):
        assert [await ask(buckets, who) for _ in range(3)] == [True, True, False]


async def test_a_caller_beyond_its_limit_is_refused_and_not_kept_waiting(three: Three) -> None:
    one, _, _ = three.buckets(Rate(50, 1))
    # Round trips during which something flows in.
    three.limits[0].seconds = 0.1
    assert await ask_at_once([one] * 300) < 200


async def test_a_refused_caller_is_told_when_to_come_and_is_let_in_then(three: Three) -> None:
    one, other, _ = three.buckets(Rate(2, 1))
    assert await ask(one) and await ask(other) and not await ask(one)
    assert 0 < one.wait(ALICE, time.monotonic()) <= 0.5
    assert one.left(ALICE, time.monotonic())[0] == 0
    await eventually(lambda: not one.wait(ALICE, time.monotonic()))
    assert await within(asyncio.gather(ask(one))) == [True]


async def test_what_happened_is_counted_everywhere(three: Three) -> None:
    one, other, _ = three.buckets(Rate(4, 3600))
    for _ in range(4):
        one.count(ALICE, time.monotonic())
    await eventually(lambda: one.wait(ALICE, time.monotonic()))
    # The other one learns it with the first that it counts.
    assert not other.wait(ALICE, time.monotonic())
    other.count(ALICE, time.monotonic())
    await eventually(lambda: other.wait(ALICE, time.monotonic()))


async def test_while_the_store_is_away_each_replica_gives_an_equal_share(three: Three) -> None:
    buckets = three.buckets(Rate(90, 36_000))
    for one in buckets:
        assert await ask(one)
    for limits in three.limits:
        limits.is_away = True
    admitted = await ask_at_once(buckets * 90)
    # And what each had drawn before.
    assert 70 <= admitted <= 99
    for limits in three.limits:
        limits.is_away = False
    # Once it is back, what was given meanwhile counts.
    trips = three.trips
    await eventually(lambda: three.trips >= trips + REPLICAS)
    assert await ask_at_once(buckets * 30) <= 99 - admitted


async def test_a_database_that_keeps_a_request_waiting_counts_as_away(
    three: Three, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_limits, "_ANSWER_WITHIN", 0.05)
    one, _, _ = three.buckets(Rate(30, 3600))
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE limits")
            assert await within(ask(one))
        assert three.limits[0].trips == 1
    finally:
        await other.close()


async def test_whatever_goes_wrong_with_the_store_a_request_is_answered(three: Three) -> None:
    one, _, _ = three.buckets(Rate(30, 3600))
    three.limits[0].error, three.limits[0].is_away = RuntimeError("a mistake of ours"), True
    assert await within(ask(one))
    assert three.trips == 1


async def test_a_quota_of_tasks_is_one_for_all_replicas(three: Three) -> None:
    quotas = [TaskQuota(one, is_shared=True) for one in three.buckets(Rate(6, 86_400))]
    begun = 0
    for quota in quotas * 4:
        await quota.prepare(ALICE)
        with contextlib.suppress(RateLimited):
            quota.begin(ALICE, 1)
            begun += 1
    assert begun == 6
    # What came to nothing is there again.
    quotas[0].give_back(ALICE, 1)
    await quotas[0].prepare(ALICE)
    quotas[0].begin(ALICE, 1)


async def test_several_tasks_at_once_are_counted_whole_or_not_at_all(three: Three) -> None:
    quota, other, _ = (TaskQuota(one, is_shared=True) for one in three.buckets(Rate(5, 86_400)))
    await quota.prepare(ALICE)
    quota.begin(ALICE, 4)
    await eventually(lambda: three.trips == 2)
    await other.prepare(ALICE)
    with pytest.raises(RateLimited):
        other.begin(ALICE, 2)
    other.begin(ALICE, 1)
