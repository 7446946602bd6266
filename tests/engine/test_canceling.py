"""Callers who cancel; what code does about it is in `running/test_canceling.py`."""

import asyncio

import pytest
from harness.waiting import within

from dragoman.errors import (
    TaskNotCancelable,
    UnsupportedOperation,
)
from dragoman.model.events import StatusUpdate
from dragoman.model.task import TaskState
from tests.engine.engines import GatedStore, House, LateStore, message, state
from tests.engine.stage import Stage, fold

S = TaskState


@pytest.mark.requirement("T-34")
@pytest.mark.parametrize("skill", ["held", "asks", "authorizes"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_task_can_be_canceled_while_it_runs_or_waits(
    house: House, stage: Stage, skill: str, restarts: bool
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill=skill, wait=skill != "held")
    if restarts:
        await house.restart()
    watching = house.subscribe(task.id)
    assert await watching.step()
    canceled = await house.cancel(task.id)
    assert state(canceled) is S.CANCELED
    assert await house.get(task.id) == canceled
    assert state(fold(await watching.rest())) is S.CANCELED
    stage.go_on.set()
    with pytest.raises(UnsupportedOperation):
        await house.send("more", task=task.id, skill=skill)


@pytest.mark.requirement("T-33", "T-34")
async def test_a_task_that_ended_cannot_be_canceled(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    done = await house.send("hi", skill="echo")
    with pytest.raises(TaskNotCancelable):
        await house.cancel(done.id)
    assert await house.get(done.id) == done
    waiting = await house.send("hi", skill="asks")
    await house.cancel(waiting.id)
    with pytest.raises(TaskNotCancelable):
        await house.cancel(waiting.id)


@pytest.mark.requirement("T-33")
@pytest.mark.parametrize("skill", ["held", "asks"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_cancelling_twice_at_once_gives_both_the_task(
    gated: House, stage: Stage, skill: str, restarts: bool
) -> None:
    await gated.start(stage.agent)
    store = gated.store
    assert isinstance(store, GatedStore)
    task = await gated.send("hi", skill=skill, wait=skill != "held")
    if restarts:
        await gated.restart()
    store.shut()
    first = asyncio.ensure_future(gated.cancel(task.id))
    for _ in range(5):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(gated.cancel(task.id))
    for _ in range(5):
        await asyncio.sleep(0)
    store.lift()
    answers = await within(asyncio.gather(first, second))
    assert [state(answer) for answer in answers] == [S.CANCELED, S.CANCELED]
    assert answers[0] == answers[1]


@pytest.mark.requirement("T-34", "T-1")
@pytest.mark.parametrize("lead", range(6))
async def test_cancel_and_completion_race_to_one_end_that_both_callers_read(
    house: House, stage: Stage, lead: int
) -> None:
    await house.start(stage.agent)
    for n in range(10):
        stage.go_on.clear()
        said = message(f"{n}", skill="held")
        waiting = asyncio.ensure_future(house.send(said))
        task = await house.send(said, wait=False)
        stage.go_on.set()
        for _ in range(lead):
            await asyncio.sleep(0)
        try:
            answer = await house.cancel(task.id)
            assert state(answer) is S.CANCELED
        except TaskNotCancelable:
            answer = await house.get(task.id)
            assert state(answer) is S.COMPLETED
        assert await waiting == answer == await house.get(task.id)
        ends = [
            event
            for event in (await house.subscribe(task.id, 1).rest()).events
            if isinstance(event, StatusUpdate) and event.status.state.is_terminal
        ]
        assert len(ends) == 1


@pytest.mark.requirement("T-34")
async def test_a_read_that_is_older_than_the_end_of_the_task_ends_it_no_second_time(
    stage: Stage,
) -> None:
    store = LateStore()
    house = House(lambda: store, keeps_object=True)
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    # No code of the task is left: both callers have it read.
    await house.restart()
    store.hold()
    second = asyncio.ensure_future(house.cancel(task.id))
    await within(store.is_asked.wait())
    released, store.released = store.released, None
    assert state(await house.cancel(task.id)) is S.CANCELED
    assert released is not None
    released.set()
    assert state(await within(second)) is S.CANCELED
    await house.stop()
