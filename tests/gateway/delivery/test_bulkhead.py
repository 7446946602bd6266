"""Places at an agent are bounded, given in order, and never lost by those who go away."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

import pytest
from harness.waiting import eventually, within

from dragoman.errors import Overloaded
from dragoman.gateway.delivery.bulkhead import Bulkhead


@contextlib.asynccontextmanager
async def slot(bulkhead: Bulkhead, deadline: float | None = None) -> AsyncGenerator[None]:
    await bulkhead.acquire(deadline)
    try:
        yield
    finally:
        bulkhead.release()


class Guests:
    """Calls that hold their places until they are let go."""

    def __init__(self, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self.served: list[int] = []
        self._doors: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def call(self, name: int, deadline: float | None = None) -> None:
        self._doors[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, deadline))

    async def _hold(self, name: int, deadline: float | None) -> None:
        async with slot(self.bulkhead, deadline):
            self.served.append(name)
            await self._doors[name].wait()

    async def release(self, name: int) -> None:
        self._doors[name].set()
        await within(self.tasks[name])

    async def settled(self, running: int, waiting: int) -> None:
        house = self.bulkhead
        await eventually(lambda: (house.running, house.waiting) == (running, waiting))


async def test_so_many_run_so_many_wait_and_the_next_is_told_so() -> None:
    guests = Guests(Bulkhead(running=2, waiting=3))
    for name in range(5):
        guests.call(name)
    await guests.settled(2, 3)
    with pytest.raises(Overloaded, match="try again later"):
        async with slot(guests.bulkhead):
            pytest.fail("there was no place")
    for name in range(5):
        await guests.release(name)
    await guests.settled(0, 0)
    assert guests.served == [0, 1, 2, 3, 4]


async def test_whoever_comes_later_does_not_overtake_those_who_wait() -> None:
    guests = Guests(Bulkhead(running=1, waiting=3))
    for name in range(3):
        guests.call(name)
    await guests.settled(1, 2)
    # The place is free and promised in one moment: nobody who asks in it may have it.
    guests._doors[0].set()
    guests.call(3)
    for name in range(4):
        await guests.release(name)
    assert guests.served == [0, 1, 2, 3]


async def test_a_wait_ends_at_its_deadline() -> None:
    guests = Guests(Bulkhead(running=1, waiting=3, now=lambda: 100.0))
    guests.call(0)
    await guests.settled(1, 0)
    for deadline in (50.0, 100.0, 100.01):
        with pytest.raises(Overloaded, match="in time"):
            await within(guests.bulkhead.acquire(deadline))
    await guests.settled(1, 0)
    await guests.release(0)
    await guests.settled(0, 0)


async def test_one_who_is_cancelled_while_waiting_gives_up_its_turn() -> None:
    guests = Guests(Bulkhead(running=1, waiting=3))
    for name in range(3):
        guests.call(name)
    await guests.settled(1, 2)
    guests.tasks[1].cancel()
    # Before the cancelled one has noticed, the place comes free.
    await guests.release(0)
    await guests.settled(1, 0)
    assert guests.served == [0, 2]
    await guests.release(2)
    await guests.settled(0, 0)


async def test_one_who_is_cancelled_in_the_moment_of_its_turn_hands_it_on() -> None:
    bulkhead = Bulkhead(running=1, waiting=3)
    guests = Guests(bulkhead)
    async with slot(bulkhead):
        guests.call(1)
        guests.call(2)
        await guests.settled(1, 2)
    # The first was given the place and has not run since.
    guests.tasks[1].cancel()
    await eventually(lambda: guests.served == [2])
    await guests.release(2)
    await guests.settled(0, 0)


async def test_an_error_inside_frees_the_place() -> None:
    bulkhead = Bulkhead(running=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError):
            async with slot(bulkhead):
                raise ValueError
    assert bulkhead.running == 0


async def test_one_agent_that_never_answers_takes_no_place_of_another() -> None:
    dead, well = Guests(Bulkhead(4, 4)), Bulkhead(4, 4)
    for name in range(8):
        dead.call(name)
    await dead.settled(4, 4)
    async with slot(well), slot(well), slot(well), slot(well):
        assert well.running == 4
    for name in range(8):
        await dead.release(name)


async def test_no_place_is_lost_or_given_twice_whoever_is_cancelled_when() -> None:
    chance = random.Random(7)
    for _ in range(200):
        bulkhead = Bulkhead(running=2, waiting=20)
        inside = most = 0

        async def call(bulkhead: Bulkhead = bulkhead, turns: int = chance.randrange(5)) -> None:
            nonlocal inside, most
            async with slot(bulkhead):
                inside += 1
                most = max(most, inside)
                try:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        calls = [asyncio.create_task(call()) for _ in range(12)]
        for _ in range(20):
            chance.choice(calls).cancel()
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        await within(asyncio.gather(*calls, return_exceptions=True))
        assert (bulkhead.running, bulkhead.waiting, inside) == (0, 0, 0)
        assert most <= 2
