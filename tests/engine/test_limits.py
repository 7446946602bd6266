"""How much runs and is held in memory, and races that are lost in the store."""

import asyncio
from typing import Any

import pytest
from harness.waiting import within

from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.errors import (
    Overloaded,
    TaskNotCancelable,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.task import Task, TaskState
from dragoman.service import Call
from dragoman.stores.memory import MemoryStore
from tests.engine.engines import House, message, state, texts
from tests.engine.stage import Stage, text_of

S = TaskState


async def test_no_more_tasks_run_than_allowed(house: House, stage: Stage) -> None:
    await house.start(stage.agent, max_live_tasks=3)
    tasks = [await house.send(f"{n}", skill="held", wait=False) for n in range(3)]
    refused = message("too much", skill="held")
    with pytest.raises(Overloaded):
        await house.send(refused)
    assert await house.count() == 3
    stage.go_on.set()
    for task in tasks:
        await house.reaches(task.id, S.COMPLETED)
    assert state(await house.send(refused)) is S.COMPLETED


async def test_code_that_waits_for_its_caller_makes_way(house: House, stage: Stage) -> None:
    await house.start(stage.agent, max_live_tasks=2)
    waiting = [await house.send(f"{n}", skill="asks") for n in range(2)]
    held = [
        asyncio.ensure_future(house.send(f"held {n}", skill="held", wait=False)) for n in range(3)
    ]
    outcomes = await asyncio.gather(*held, return_exceptions=True)
    assert [isinstance(outcome, Overloaded) for outcome in outcomes] == [False, False, True]
    for task in waiting:
        assert state(await house.get(task.id)) is S.INPUT_REQUIRED
    stage.go_on.set()
    for task in outcomes[:2]:
        assert isinstance(task, Task)
        await house.reaches(task.id, S.COMPLETED)
    again = await house.send("so", task=waiting[0].id, skill="asks")
    assert texts(again) == ["0", "which?", "so"]
    assert text_of(again) == "0, so"


async def test_an_answer_to_code_that_was_just_dismissed_is_not_lost(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent, max_live_tasks=1)
    waiting = await house.send("hi", skill="asks")
    other, answered = await asyncio.gather(
        house.send("other", skill="echo"), house.send("this", task=waiting.id, skill="echo")
    )
    assert state(other) is S.COMPLETED
    assert (answered.id, state(answered)) == (waiting.id, S.COMPLETED)


async def test_who_loses_a_race_in_the_store_is_told_to_try_again(
    house: House, stage: Stage
) -> None:
    """Two engines on one store stand for two processes: the log stays as the winner wrote it."""
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    rival = Engine(stage.agent, house.store, Settings())
    operation = ops.SendMessage(message=message("rival", task=task.id, skill="asks"))
    won = await within(rival.answer(Call(operation=operation)))
    with pytest.raises((Overloaded, UnsupportedOperation)):
        await house.send("late", task=task.id, skill="asks")
    assert await house.get(task.id) == won.reading.task  # type: ignore[union-attr]
    assert texts(await house.get(task.id)) == ["hi", "which?", "rival"]
    await rival.stop()


async def test_a_cancel_that_loses_in_the_store_is_told_to_try_again(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    rival = Engine(stage.agent, house.store, Settings())
    operation = ops.SendMessage(message=message("rival", task=task.id, skill="echo"))
    await within(rival.answer(Call(operation=operation)))
    with pytest.raises((Overloaded, TaskNotCancelable)):
        await house.cancel(task.id)
    assert state(await house.get(task.id)) is S.COMPLETED
    await rival.stop()


async def test_two_tasks_for_one_key_in_the_store_leave_one(stage: Stage) -> None:
    class Forgetful(MemoryStore):
        """Does not see the key in time, as a replica that asks before the other has written."""

        blind = True

        async def known(self, scope: Any, key: bytes) -> Any:
            return None if self.blind else await super().known(scope, key)

    house = House(Forgetful, keeps_object=True)
    await house.start(stage.agent)
    said = message("hi", skill="echo")
    first = await house.send(said)
    with pytest.raises(Overloaded):
        await house.send(said)
    assert await house.count() == 1
    house.store.blind = False  # type: ignore[attr-defined]
    assert await house.send(said) == first
    await house.stop()


async def test_nothing_is_left_in_memory_of_tasks_that_ended(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    for n in range(5):
        await house.send(f"{n}", skill="echo")
        await house.send(f"{n}", skill="reply")
        await house.stream("20", skill="chunks").rest()
        await house.cancel((await house.send("x", skill="asks")).id)
    await asyncio.sleep(0)
    engine = house.engine
    assert (engine._live._logs, engine._live._workers, engine._live._arriving) == (
        {},
        {},
        {},
    )
    assert engine._live.bell._waiting == {}
