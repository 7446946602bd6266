"""What callers get who send: the answer, the ids, the turns of a task, over each store."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Message, Turn
from dragoman.errors import (
    ExtensionRequired,
    InvalidParams,
    Overloaded,
    PushNotSupported,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.card import AgentExtension
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.push import PushConfig
from dragoman.model.task import TaskState
from dragoman.service import Call, TaskPage
from dragoman.stores.interface import Create, Done, Write
from dragoman.stores.memory import MemoryStore
from tests.engine.engines import GatedStore, House, message, state, texts
from tests.engine.stage import Stage, drafted, says, text_of

S = TaskState


@pytest.mark.requirement("T-19")
async def test_a_send_that_waits_is_answered_when_the_task_rests(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="echo")
    assert (state(task), text_of(task), texts(task)) == (S.COMPLETED, "hi", ["hi"])
    assert await house.get(task.id) == task
    assert task.history[0].task_id == task.id
    assert task.history[0].context_id == task.context_id


async def test_a_task_that_rests_leaves_nothing_for_the_collector(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    await house.send("hi", skill="echo")
    gc.collect()
    gc.disable()
    collected: list[int] = []
    try:
        for _ in range(3):
            for _ in range(50):
                await house.send("hi", skill="echo")
            collected.append(gc.collect())
        # A ring of objects for each task would stop the loop for as long as it takes to find them.
        # It would be found each time; what an earlier test left behind is found once.
        assert min(collected) < 50
    finally:
        gc.enable()


@pytest.mark.requirement("T-19")
async def test_a_send_that_does_not_wait_is_answered_when_the_task_is_durable(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="held", wait=False)
    assert state(task) in (S.SUBMITTED, S.WORKING)
    assert not state(await house.get(task.id)).is_resting
    stage.go_on.set()
    assert text_of(await house.reaches(task.id, S.COMPLETED)) == "hi"


@pytest.mark.requirement("T-23")
async def test_patience_ends_a_wait_but_not_the_task(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="held", patience=0.01)
    assert not state(task).is_terminal
    stage.go_on.set()
    await house.reaches(task.id, S.COMPLETED)


async def test_patience_lasts_until_the_task_is_recorded(gated: House, stage: Stage) -> None:
    await gated.start(stage.agent)
    store = gated.store
    assert isinstance(store, GatedStore)
    store.shut()
    sending = asyncio.ensure_future(gated.send("hi", skill="held", patience=0.01))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sending), 0.1)
    store.lift()
    assert not state(await within(sending)).is_terminal
    stage.go_on.set()


@pytest.mark.requirement("T-22")
async def test_a_caller_that_goes_away_does_not_end_the_task(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    waiting = asyncio.ensure_future(house.send("hi", skill="held"))
    await within(stage.started.wait())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stage.go_on.set()
    await eventually(house.count)
    (shown,) = (await house.list()).tasks
    await house.reaches(shown.reading.task.id, S.COMPLETED)


async def test_a_short_task_is_one_write(stage: Stage) -> None:
    writes: list[Write] = []

    class Counting(MemoryStore):
        def submit(self, write: Write, done: Done) -> None:
            writes.append(write)
            super().submit(write, done)

    house = House(Counting, keeps_object=True)
    await house.start(stage.agent)
    await house.send("hi", skill="echo")
    (only,) = writes
    assert isinstance(only, Create)
    assert only.standing.state is S.COMPLETED
    assert only.snapshot is not None


async def test_a_new_task_gets_ids_of_its_own_and_keeps_the_callers_context(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    one, two = await house.send("a"), await house.send("a")
    assert len({one.id, two.id, one.context_id, two.context_id}) == 4
    three = await house.send("a", context="mine")
    four = await house.send("b", context="mine")
    assert three.context_id == four.context_id == "mine"
    assert three.id != four.id
    assert await house.get(three.id) == three


async def test_an_unknown_task_is_not_found(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    with pytest.raises(TaskNotFound):
        await house.send("hi", task="nowhere")
    with pytest.raises(TaskNotFound):
        await house.get("nowhere")
    with pytest.raises(TaskNotFound):
        await house.cancel("nowhere")
    with pytest.raises(TaskNotFound):
        await house.subscribe("nowhere").rest()
    assert await house.count() == 0


async def test_a_task_may_get_the_id_its_caller_chose_where_that_is_allowed(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    await house.send("hi", task="chosen", names_task=True)
    assert text_of(await house.get("chosen")) == "hi"


async def test_many_messages_that_name_one_new_task_at_once_all_go_to_it(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    said = [message(f"{n}", task="chosen", skill="held") for n in range(6)]
    sending = [house.send(one, wait=False, names_task=True) for one in said]
    answers = await within(asyncio.gather(*sending))
    assert {answer.id for answer in answers} == {"chosen"}
    assert len(stage.runs) == 1
    stage.go_on.set()
    done = await house.reaches("chosen", S.COMPLETED)
    assert sorted(one for one in texts(done) if one.isdigit()) == [f"{n}" for n in range(6)]
    assert await house.count() == 1


async def test_a_task_that_began_and_ended_while_its_id_was_looked_for_is_not_begun_again(
    house: House, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code would have run a second time before the store refused it."""
    await house.start(stage.agent)
    head = house.store.head

    async def overtaken(*about: Any) -> Any:
        found = await head(*about)
        monkeypatch.setattr(house.store, "head", head)
        await house.send("first", task="chosen", names_task=True)
        return found

    monkeypatch.setattr(house.store, "head", overtaken)
    with pytest.raises(UnsupportedOperation) as refused:
        await house.send("second", task="chosen", names_task=True)
    assert refused.value.facts["reason"] == "TASK_TERMINAL"
    assert stage.runs == ["first"]
    assert (text_of(await house.get("chosen")), await house.count()) == ("first", 1)


@pytest.mark.requirement("T-49", "T-51")
async def test_the_task_of_another_owner_is_not_found(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    done = await house.send("hi", owner="alice")
    live = await house.send("hi", owner="alice", skill="held", wait=False)
    for task_id in (done.id, live.id):
        with pytest.raises(TaskNotFound):
            await house.get(task_id, owner="bob")
        with pytest.raises(TaskNotFound):
            await house.cancel(task_id, owner="bob")
        with pytest.raises(TaskNotFound):
            await house.send("more", owner="bob", task=task_id)
        for after in (None, 1):
            with pytest.raises(TaskNotFound):
                await house.subscribe(task_id, after, owner="bob").rest()
    assert (await house.list(owner="bob")).total_size == 0
    assert state(await house.get(live.id, owner="alice")) is S.WORKING


@pytest.mark.requirement("T-2")
async def test_a_task_that_ended_takes_no_message(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi")
    late = message("more", task=task.id)
    for _ in range(2):
        with pytest.raises(UnsupportedOperation) as refused:
            await house.send(late)
        assert refused.value.facts["reason"] == "TASK_TERMINAL"
    assert await house.get(task.id) == task
    assert stage.runs == ["hi"]


@pytest.mark.requirement("T-2")
async def test_a_message_refused_while_the_end_is_being_written_leaves_no_trace(
    gated: House, stage: Stage
) -> None:
    await gated.start(stage.agent)
    store = gated.store
    assert isinstance(store, GatedStore)
    task = await gated.send("hi", skill="held", wait=False)
    store.shut()
    stage.go_on.set()
    late = message("more", task=task.id)
    await eventually(lambda: drafted(gated, task) is S.COMPLETED)
    with pytest.raises(UnsupportedOperation):
        await gated.send(late)
    store.lift()
    done = await gated.reaches(task.id, S.COMPLETED)
    assert texts(done) == ["hi"]
    with pytest.raises(UnsupportedOperation):
        await gated.send(late)


async def test_a_message_in_the_wrong_context_is_refused(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    with pytest.raises(InvalidParams) as refused:
        await house.send("this", task=task.id, context="another")
    assert refused.value.field == "message.contextId"
    assert texts(await house.get(task.id)) == ["hi"]
    done = await house.send("this", task=task.id, context=task.context_id)
    assert state(done) is S.COMPLETED


async def test_what_is_not_offered_is_refused(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    operation = ops.SendMessage(message=message("hi"), push=PushConfig("http://127.0.0.1"))
    with pytest.raises(PushNotSupported):
        await house.engine.answer(Call(operation=operation))
    with pytest.raises(PushNotSupported):
        await house.engine.answer(Call(operation=ops.GetPush(task_id=TaskId("t"))))
    assert stage.runs == []


async def test_streams_are_refused_where_the_agent_does_not_stream(house: House) -> None:
    agent = Agent("Still", "Does not stream.", streaming=False)
    agent.skill(_echo)
    await house.start(agent)
    task = await house.send("hi")
    with pytest.raises(UnsupportedOperation):
        await house.stream("hi").rest()
    with pytest.raises(UnsupportedOperation):
        await house.subscribe(task.id).rest()
    assert await house.count() == 1


async def test_a_required_extension_must_be_asked_for(house: House) -> None:
    agent = Agent("Strict", "x", extensions=[AgentExtension("urn:x", required=True)])
    agent.skill(_echo)
    await house.start(agent)
    with pytest.raises(ExtensionRequired):
        await house.send("hi")
    with pytest.raises(ExtensionRequired):
        await house.stream("hi").rest()
    for operation, total in (
        (ops.ListTasks(), 0),
        (ops.SendMessage(message=message("hi")), None),
        (ops.ListTasks(), 1),
    ):
        call = Call(operation=operation, extensions=frozenset({"urn:x"}))
        reply = await within(house.engine.answer(call))
        assert total is None or (isinstance(reply, TaskPage) and reply.total_size == total)


async def _echo(text: str) -> str:
    return text


# Direct replies


@pytest.mark.requirement("T-24", "T-67")
@pytest.mark.parametrize("wait", [True, False])
async def test_a_direct_reply_makes_no_task(house: House, stage: Stage, wait: bool) -> None:
    await house.start(stage.agent)
    reply = await house.send("you", skill="reply", wait=wait, context="mine")
    assert isinstance(reply, Message)
    assert (reply.text, reply.context_id, reply.task_id) == ("hello you", "mine", "")
    assert await house.count() == 0
    stream = await house.stream("you", skill="reply").rest()
    assert stream.reply is not None and stream.opening is None
    assert stream.reply.message_id != reply.message_id


# Turns


@pytest.mark.requirement("T-4", "T-27", "T-26")
@pytest.mark.parametrize(
    ("skill", "waiting"), [("asks", S.INPUT_REQUIRED), ("authorizes", S.AUTH_REQUIRED)]
)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_task_that_waits_for_its_caller_goes_on_with_the_answer(
    house: House, stage: Stage, skill: str, waiting: TaskState, restarts: bool
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill=skill)
    assert state(task) is waiting
    assert task.status.message is not None
    asked = task.status.message.text
    if restarts:
        assert await house.restart() == 0
        assert await house.get(task.id) == task
    done = await house.send("this", task=task.id, skill=skill)
    assert texts(done) == ["hi", asked, "this"]
    assert text_of(done) == "hi, this"
    assert state(done) is S.COMPLETED
    assert done.status.message is None
    assert await house.get(task.id) == done


@pytest.mark.requirement("T-21")
async def test_needing_credentials_ends_the_wait(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    assert state(await house.send("hi", skill="authorizes")) is S.AUTH_REQUIRED


@pytest.mark.requirement("T-3")
async def test_messages_to_a_running_task_are_worked_on_in_order_before_it_completes(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("first", skill="held", wait=False)
    waiting: list[asyncio.Future[Any]] = []
    for n in range(5):
        sending = house.send(f"more {n}", task=task.id, skill="echo")
        waiting.append(asyncio.ensure_future(sending))
        await eventually(lambda said=n + 2: says(house, task, said))
    assert stage.runs == ["first"]
    stage.go_on.set()
    answers = await asyncio.gather(*waiting)
    assert stage.runs == ["first", *(f"more {n}" for n in range(5))]
    assert {state(answer) for answer in answers} == {S.COMPLETED}
    done = await house.get(task.id)
    assert texts(done) == stage.runs
    assert answers == [done] * 5
    ends = [
        event
        for event in (await house.subscribe(task.id, 1).rest()).events
        if isinstance(event, StatusUpdate) and event.status.state.is_resting
    ]
    assert len(ends) == 1


@pytest.mark.requirement("T-3", "T-4")
async def test_a_question_finds_the_message_that_already_waits(house: House) -> None:
    go_on, work = asyncio.Event(), asyncio.Event()
    agent = Agent("Slow", "Asks late.")

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        await go_on.wait()
        answer = await turn.ask("which?")
        await work.wait()
        return answer.text

    await house.start(agent)
    task = await house.send("hi", wait=False)
    answering = asyncio.ensure_future(house.send("this", task=task.id))
    await eventually(lambda: says(house, task, 2))
    # Before the question: a stream that begins after it would show nothing of it.
    stream = house.subscribe(task.id)
    await stream.until(lambda s: s.opening is not None)
    go_on.set()
    await stream.until(lambda s: len(s.recorded) >= 2)
    assert state(await house.get(task.id)) is S.WORKING
    assert not answering.done()
    work.set()
    assert text_of(await answering) == "this"
    await stream.close()


async def test_a_wait_is_not_ended_by_a_question_asked_before_its_message(
    gated: House, stage: Stage
) -> None:
    """The write of the question may end after the message arrived, which it does not know."""
    await gated.start(stage.agent)
    store = gated.store
    assert isinstance(store, GatedStore)
    agent, go_on = Agent("Slow", "Asks late."), asyncio.Event()

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        await go_on.wait()
        return (await turn.ask("which?")).text

    await gated.restart(agent)
    task = await gated.send("hi", wait=False)
    store.shut()
    go_on.set()
    await eventually(lambda: drafted(gated, task) is S.INPUT_REQUIRED)
    await asyncio.sleep(0)
    answering = asyncio.ensure_future(gated.send("this", task=task.id))
    await asyncio.sleep(0)
    store.lift()
    assert state(await answering) is S.COMPLETED


async def test_no_more_messages_wait_behind_a_task_than_allowed(house: House, stage: Stage) -> None:
    await house.start(stage.agent, max_queued_messages=2)
    task = await house.send("first", skill="held", wait=False)
    for n in range(2):
        await house.send(f"more {n}", task=task.id, wait=False)
    with pytest.raises(Overloaded):
        await house.send("too much", task=task.id, wait=False)
    stage.go_on.set()
    assert texts(await house.reaches(task.id, S.COMPLETED)) == ["first", "more 0", "more 1"]


@pytest.mark.parametrize("skill", ["echo", "asks"])
async def test_times_are_of_the_clock_that_all_workers_share(
    house: House, stage: Stage, skill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of this one is a day behind the store."""
    await house.start(stage.agent)
    monkeypatch.setattr(type(house.store), "clock_offset", 24 * 3600 * 1000)
    before = datetime.now(UTC)
    task = await house.send("hi", skill=skill)
    told = datetime.fromisoformat(task.status.timestamp)
    assert abs(told - before - timedelta(days=1)) < timedelta(hours=1)
