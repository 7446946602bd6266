"""Limits on how many a caller has at once, over three replicas on a real database."""

import asyncio
from collections.abc import Sequence

import pytest
from harness.waiting import eventually, within

from dragoman.http.sharing.shared_seats import SharedSeats
from dragoman.model.identity import Principal
from tests.http.sharing import Three

ALICE, BOB = Principal("", "alice"), Principal("", "bob")


async def enter(seats: SharedSeats, who: Principal = ALICE) -> bool:
    """Take a seat, as a stream does."""
    await seats.prepare(who)
    if seats.is_full(who):
        return False
    seats.enter(who)
    return True


async def enter_at_once(seats: Sequence[SharedSeats]) -> int:
    return sum(await within(asyncio.gather(*map(enter, seats))))


@pytest.mark.parametrize("most", [2, 30, 200])
async def test_all_replicas_together_have_as_many_as_the_limit_says(
    three: Three, most: int
) -> None:
    seats = three.seats(most)
    assert most * 0.95 <= await enter_at_once(seats * most) <= most * 1.05
    # Another caller has its own.
    assert await enter(seats[0], BOB)


async def test_one_replica_may_have_all_of_them(three: Three) -> None:
    one, other, _ = three.seats(60)
    assert await enter(one) and await enter(other)
    assert 57 <= await enter_at_once([one] * 100) + 2 <= 63


async def test_a_seat_that_one_replica_gives_back_is_another_s(three: Three) -> None:
    one, other, _ = three.seats(2)
    assert await enter(one) and await enter(one) and not await enter(other)
    one.leave(ALICE)

    async def is_let_in() -> bool:
        return await enter(other)

    # Given back once it lay idle for a moment.
    assert await eventually(is_let_in)
    assert not await enter(one)


async def test_a_replica_that_is_gone_has_no_seats(three: Three) -> None:
    one, other, _ = three.seats(2)
    assert await enter(one) and await enter(one) and not await enter(other)
    one.close()
    await three.stores[0].vanish()

    async def is_let_in() -> bool:
        return await enter(other)

    assert await eventually(is_let_in)


async def test_a_replica_that_was_taken_for_dead_keeps_its_seats(three: Three) -> None:
    one, other, _ = three.seats(3)
    assert await enter(one) and await enter(one)
    former = three.stores[0].worker
    await three.rows(0, "UPDATE workers SET gone_at = now() WHERE number = $1", former)

    async def is_known_again() -> bool:
        if three.stores[0].worker == former:
            return False
        rows = await three.rows(
            1,
            "SELECT sum(taken) FROM seats JOIN workers ON number = worker WHERE gone_at IS NULL "
            "AND worker = $1",
            three.stores[0].worker,
        )
        return rows[0][0] == 2

    await eventually(is_known_again)
    assert [await enter(other) for _ in range(2)] == [True, False]


async def test_without_the_store_each_replica_has_an_equal_share(three: Three) -> None:
    seats = three.seats(30)
    for one in seats:
        assert await enter(one)
    for limits in three.limits:
        limits.is_away = True
    assert 27 <= await enter_at_once(seats * 30) + 3 <= 33


async def test_seats_that_were_drawn_and_not_heard_of_are_free_again(three: Three) -> None:
    one, other, _ = three.seats(4)
    assert await enter(one)
    three.limits[0].is_cut = True
    await one.prepare(ALICE)
    three.limits[0].is_cut = False

    async def is_let_in() -> bool:
        return await enter(other)

    # Also those that only the store takes for taken.
    for _ in range(3):
        await eventually(is_let_in)
    assert not await enter(other)


async def test_few_seats_of_many_cost_no_round_trip(three: Three) -> None:
    seats = three.seats(300)
    for one in seats:
        assert await enter_at_once([one] * 6) == 6
    before = three.trips
    for n in range(20):
        who = Principal("", f"caller {n}")
        assert await enter(seats[0], who)
        seats[0].leave(who)
    assert three.trips == before
