"""Sleeps and deadlines go on while no process is there."""

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Turn
from dragoman.errors import ConfigError
from dragoman.model.task import TaskState
from dragoman.testing.clock import ManualClock
from tests.authoring.durable.world import World, made, recorded, results
from tests.engine.engines import House, sentence

S = TaskState
DAY = 86_400_000


def clocked(house: House) -> ManualClock:
    house.clock = clock = ManualClock(time.time_ns() // 1_000_000)
    return clock


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_sleep_of_days_ends_when_it_would_have_and_uses_up_no_attempts(
    house: House, world: World, kind: str
) -> None:
    clock = clocked(house)
    began = clock.now()

    async def work(text: str, turn: Turn) -> str:
        await turn.step("order", world.do, "order")
        await turn.sleep(timedelta(days=3))
        return f"{clock.now() - began} {turn.attempt}"

    def plain(text: str, turn: Any) -> str:
        turn.step("order", world.do, "order")
        turn.sleep(timedelta(days=3))
        return f"{clock.now() - began} {turn.attempt}"

    await house.start(made(work if kind == "async" else plain), max_attempts=2)
    task = await house.send("go", wait=False)
    await eventually(lambda: clock.waiting)
    for day in range(1, 6):
        clock.move_to(began + day * DAY // 2)
        assert clock.waiting
        await house.restart()
        await eventually(lambda: clock.waiting)
    assert (await house.get(task.id)).status.state is S.WORKING
    clock.move_to(began + 3 * DAY)
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == [f"{3 * DAY} 6"] and world.deeds == ["order"]


async def test_a_sleep_that_ended_while_nobody_was_there_is_over(house: House) -> None:
    clock = clocked(house)

    async def work(text: str, turn: Turn) -> str:
        await turn.sleep(60)
        return "woken"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await eventually(lambda: clock.waiting)
    await house.die()
    clock.move_to(clock.now() + DAY)
    await house.start(house._agent)
    await house.reaches(task.id, S.COMPLETED)
    assert clock.waiting == 0


async def test_code_that_dies_awake_is_given_up_after_its_attempts(house: House) -> None:
    async def work(text: str, turn: Turn) -> None:
        await turn.sleep(0)
        await asyncio.Event().wait()

    await house.start(made(work), max_attempts=2)
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 1

    await eventually(is_recorded)
    await house.restart()
    assert (await house.get(task.id)).status.state is S.WORKING
    await house.restart()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 2 attempts."


async def test_every_step_gives_the_code_its_attempts_anew(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> str:
        for n in range(4):
            await turn.step(f"step {n}", world.do, str(n))
            if turn.attempt == n + 1:
                await world.stop_here()
        return f"{turn.attempt} attempts"

    await house.start(made(work), max_attempts=2)
    task = await house.send("go", wait=False)
    for _ in range(4):
        await world.is_reached()
        await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["5 attempts"] and world.deeds == ["0", "1", "2", "3"]


# Deadlines


async def test_a_deadline_ends_code_that_runs(house: House, world: World) -> None:
    clock = clocked(house)
    stopped = asyncio.Event()

    async def work(text: str, turn: Turn) -> None:
        try:
            await world.stop_here()
        finally:
            stopped.set()

    await house.start(made(work, deadline=60))
    task = await house.send("go", wait=False)
    await world.is_reached()
    clock.move_to(clock.now() + 50_000)
    await house.engine.sweep()
    assert (await house.get(task.id)).status.state is S.WORKING
    clock.move_to(clock.now() + 20_000)
    await house.engine.sweep()
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The task did not end in time."
    await within(stopped.wait())


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_deadline_ends_code_that_waits_even_over_a_restart(house: House, kind: str) -> None:
    clock = clocked(house)

    async def work(text: str, turn: Turn) -> None:
        await turn.ask("Well?")

    def plain(text: str, turn: Any) -> None:
        turn.ask("Well?")

    skill = work if kind == "async" else plain
    await house.start(made(skill, deadline=timedelta(days=2)))
    early, late = await house.send("go"), await house.send("go")
    await house.restart()
    clock.move_to(clock.now() + DAY)
    await house.engine.sweep()
    assert (await house.send("yes", task=early.id)).status.state is S.COMPLETED
    clock.move_to(clock.now() + 2 * DAY)
    await house.engine.sweep()
    failed = await house.reaches(late.id, S.FAILED)
    assert sentence(failed) == "The task did not end in time."
    assert (await house.get(early.id)).status.state is S.COMPLETED


async def test_code_knows_its_deadline_and_it_stays_the_same(house: House, world: World) -> None:
    clock = clocked(house)
    seen: list[datetime | None] = []

    async def work(text: str, turn: Turn) -> None:
        seen.append(turn.deadline)
        await world.stop_here()

    await house.start(made(work, deadline=3600))
    began = clock.now()
    task = await house.send("go", wait=False)
    await world.is_reached()
    clock.move_to(began + 600_000)
    await house.restart()
    await world.is_reached()
    world.open()
    await house.reaches(task.id, S.COMPLETED)
    first, second = seen
    assert first is not None and first == second
    # The store's day and the clock's begin within the same few seconds.
    assert abs(first.timestamp() * 1000 - began - 3_600_000) < 30_000


async def test_code_without_a_deadline_has_none(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        return str(turn.deadline)

    await house.start(made(work))
    assert results(await house.send("go")) == ["None"]


@pytest.mark.parametrize("deadline", [0, -1, timedelta(0)])
def test_a_deadline_lies_in_the_future(deadline: Any) -> None:
    with pytest.raises(ConfigError, match="a deadline is more than 0 seconds"):
        made(lambda text: text, deadline=deadline)
