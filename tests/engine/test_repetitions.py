"""The same message again finds its task, and starts nothing."""

import asyncio

import pytest
from harness.waiting import eventually, within

from dragoman import Message
from dragoman.errors import (
    TaskNotFound,
)
from dragoman.model.task import TaskState
from tests.engine.engines import House, LateStore, message, state, texts
from tests.engine.stage import Stage, fold, text_of

S = TaskState


@pytest.mark.requirement("T-32")
async def test_ten_of_the_same_message_at_once_make_one_task(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    stage.go_on.set()
    said = message("hi", skill="held")
    answers = await asyncio.gather(*(house.send(said) for _ in range(10)))
    assert answers == [answers[0]] * 10
    assert (await house.count(), stage.runs) == (1, ["hi"])
    assert await house.send(said) == answers[0]


@pytest.mark.requirement("T-32")
async def test_the_same_message_while_its_task_runs_joins_it(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    said = message("hi", skill="held")
    first = await house.send(said, wait=False)
    second = await house.send(said, wait=False)
    assert first.id == second.id
    waiting = asyncio.ensure_future(house.send(said))
    following = asyncio.ensure_future(house.stream(said).rest())
    await asyncio.sleep(0)
    stage.go_on.set()
    done = await waiting
    assert (done.id, state(done)) == (first.id, S.COMPLETED)
    stream = await within(following)
    assert stream.opening is not None and stream.opening.id == first.id
    assert fold(stream) == done
    assert (await house.count(), stage.runs) == (1, ["hi"])


@pytest.mark.requirement("T-32")
async def test_the_same_message_after_a_restart_finds_its_task(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    said = message("hi", skill="echo")
    first = await house.send(said)
    await house.restart()
    assert await house.send(said) == first
    stream = await house.stream(said).rest()
    assert stream.opening == first and not stream.recorded
    assert (await house.count(), stage.runs) == (1, ["hi"])


@pytest.mark.requirement("T-32")
async def test_the_same_id_with_other_content_is_another_message(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    tasks = [await house.send(text, id="same") for text in ("one", "two", "one")]
    assert tasks[0].id == tasks[2].id != tasks[1].id
    assert [text_of(task) for task in tasks] == ["one", "two", "one"]


@pytest.mark.requirement("T-32")
async def test_the_same_content_with_another_id_is_another_message(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    assert (await house.send("hi", id="1")).id != (await house.send("hi", id="2")).id


@pytest.mark.requirement("T-32", "T-24")
async def test_ten_of_the_same_message_get_one_direct_reply(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    said = message("held", skill="reply")
    asking = [asyncio.ensure_future(house.send(said)) for _ in range(10)]
    await within(stage.started.wait())
    stage.go_on.set()
    answers = await asyncio.gather(*asking)
    assert isinstance(answers[0], Message)
    assert answers == [answers[0]] * 10
    assert await house.send(said) == answers[0]
    await house.restart()
    assert await house.send(said) == answers[0]
    stream = await house.stream(said).rest()
    assert stream.reply == answers[0]
    assert (await house.count(), stage.runs) == (0, ["held"])


@pytest.mark.requirement("T-32", "T-24")
async def test_a_caller_that_leaves_takes_the_direct_reply_from_no_other(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    said = message("held", skill="reply")
    leaving, staying = (asyncio.ensure_future(house.send(said)) for _ in range(2))
    await within(stage.started.wait())
    leaving.cancel()
    await asyncio.wait([leaving])
    stage.go_on.set()
    answer = await within(staying)
    assert leaving.cancelled() and isinstance(answer, Message)
    assert await house.send(said) == answer
    assert (await house.count(), stage.runs) == (0, ["held"])


@pytest.mark.requirement("T-32")
@pytest.mark.parametrize("skill", ["reply", "held"])
async def test_a_look_that_is_older_than_the_answer_to_the_same_message_starts_no_code(
    stage: Stage, skill: str
) -> None:
    store = LateStore()
    house = House(lambda: store, keeps_object=True)
    await house.start(stage.agent)
    said = message("hi", skill=skill)
    stage.go_on.set()
    store.hold()
    late = asyncio.ensure_future(house.send(said))
    await within(store.is_asked.wait())
    released, store.released = store.released, None
    first = await house.send(said)
    await eventually(lambda: not house.engine._live.count)
    assert released is not None
    released.set()
    assert await within(late) == first
    assert stage.runs == ["hi"]
    await house.stop()


@pytest.mark.requirement("T-32", "T-51")
async def test_the_same_message_of_another_owner_is_theirs(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    said = message("hi")
    one = await house.send(said, owner="alice")
    two = await house.send(said, owner="bob")
    assert one.id != two.id
    assert stage.runs == ["hi", "hi"]


@pytest.mark.requirement("T-32")
async def test_the_same_answer_to_a_question_counts_once(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    answer = message("this", task=task.id, skill="asks")
    done = await asyncio.gather(*(house.send(answer) for _ in range(5)))
    assert done == [done[0]] * 5
    assert texts(done[0]) == ["hi", "which?", "this"]
    assert await house.send(answer) == done[0]


async def test_repetitions_are_new_messages_where_that_is_wanted(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent, idempotency=False)
    said = message("hi")
    assert (await house.send(said)).id != (await house.send(said)).id


@pytest.mark.requirement("T-32", "T-33")
async def test_the_repetition_of_a_forgotten_task_starts_nothing(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    said = message("hi")
    task = await house.send(said)
    assert await house.store.prune(ended_before=0, keep=0) == 1
    with pytest.raises(TaskNotFound):
        await house.send(said)
    with pytest.raises(TaskNotFound):
        await house.cancel(task.id)
    assert stage.runs == ["hi"]
