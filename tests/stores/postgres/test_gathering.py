"""What many callers ask at once is asked together, and each gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest
from harness.waiting import within

from dragoman.errors import StoreUnavailable
from dragoman.stores.postgres.connections import CannotStore
from dragoman.stores.postgres.gathering import Gathered


class Server:
    """Doubles numbers when it is told to go on; some it cannot take."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.goes_on = asyncio.Event()
        self.value = 2

    async def ask(self, numbers: Sequence[int]) -> list[int]:
        value = self.value
        self.asked.append(list(numbers))
        await self.goes_on.wait()
        if -1 in numbers:
            raise CannotStore("no number")
        if -2 in numbers:
            raise StoreUnavailable("away")
        return [value * number for number in numbers]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_questions_of_one_moment_go_together() -> None:
    server = Server()
    gathered = Gathered(server.ask)
    server.goes_on.set()
    answers = await within(asyncio.gather(*(gathered.one(n) for n in range(600))))
    assert answers == [2 * n for n in range(600)]
    assert len(server.asked) <= 4 and max(map(len, server.asked)) <= 256


async def test_a_question_never_joins_a_query_that_is_under_way() -> None:
    """It would miss what was committed before it was asked."""
    server = Server()
    gathered = Gathered(server.ask)
    early = [asyncio.ensure_future(gathered.one(n)) for n in range(3)]
    await settle()
    later = asyncio.ensure_future(gathered.one(10))
    await settle()
    assert server.asked == [[0, 1, 2], [10]]
    server.value = 3
    last = [asyncio.ensure_future(gathered.one(n)) for n in (20, 21)]
    await settle()
    assert len(server.asked) == 2
    server.goes_on.set()
    assert await within(asyncio.gather(*early, later, *last)) == [0, 2, 4, 20, 60, 63]
    assert server.asked[2:] == [[20, 21]]


async def test_a_question_of_the_moment_in_which_both_queries_end_is_asked() -> None:
    server = Server()
    gathered = Gathered(server.ask)

    async def twice(number: int) -> int:
        return await gathered.one(await gathered.one(number))

    first = asyncio.ensure_future(twice(1))
    await settle()
    second = asyncio.ensure_future(gathered.one(2))
    await settle()
    assert server.asked == [[1], [2]]
    server.goes_on.set()
    assert await within(asyncio.gather(first, second), 10) == [4, 4]


async def test_one_that_cannot_be_asked_fails_alone() -> None:
    server = Server()
    gathered = Gathered(server.ask)
    server.goes_on.set()
    asked = (gathered.one(n) for n in (1, -1, 3))
    first, second, third = await within(asyncio.gather(*asked, return_exceptions=True))
    assert (first, third) == (2, 6) and isinstance(second, CannotStore)


async def test_all_are_told_that_the_server_is_away_and_the_next_are_asked_again() -> None:
    server = Server()
    gathered = Gathered(server.ask)
    server.goes_on.set()
    told = await within(
        asyncio.gather(*(gathered.one(n) for n in (1, -2, 3)), return_exceptions=True)
    )
    assert all(isinstance(one, StoreUnavailable) for one in told)
    assert await within(gathered.one(4)) == 8


async def test_a_caller_that_leaves_keeps_no_other_from_its_answer() -> None:
    server = Server()
    gathered = Gathered(server.ask)
    leaving, staying = (asyncio.ensure_future(gathered.one(n)) for n in (1, 2))
    await settle()
    leaving.cancel()
    server.goes_on.set()
    assert await within(staying) == 4
    with pytest.raises(asyncio.CancelledError):
        await leaving
