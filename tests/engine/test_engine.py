"""What callers get from the engine, over each store: sending, reading, following, cancelling."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from house import GatedStore, House, Stream, eventually, message, within

from dragoman import Agent, Message, Turn
from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.engine.lifecycle import evolve
from dragoman.errors import (
    ExtensionRequired,
    InvalidParams,
    Overloaded,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.card import AgentExtension
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.push import PushConfig
from dragoman.model.task import Task, TaskState
from dragoman.service import Call, TaskPage
from dragoman.stores.interface import Create, Done, Write
from dragoman.stores.memory import MemoryStore

S = TaskState


class Stage:
    """Skills a test can watch and hold up."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.agent = Agent("Stage", "Does as it is told.")
        skill = self.agent.skill

        @skill
        async def echo(text: str) -> str:
            self.runs.append(text)
            return text

        @skill
        async def held(text: str, turn: Turn) -> str:
            self.runs.append(text)
            self.started.set()
            await self.go_on.wait()
            return text

        @skill
        async def chunks(text: str) -> AsyncIterator[str]:
            for n in range(int(text)):
                yield f"{n} "

        @skill
        async def reply(text: str, turn: Turn) -> Message:
            self.runs.append(text)
            self.started.set()
            if text == "held":
                await self.go_on.wait()
            return turn.reply(f"hello {text}")

        @skill
        async def asks(text: str, turn: Turn) -> str:
            self.runs.append(text)
            answer = await turn.ask("which?")
            return f"{text}, {answer.text}"

        @skill
        async def authorizes(text: str, turn: Turn) -> str:
            answer = await turn.authorize("sign in")
            return f"{text}, {answer.text}"

        @skill
        async def story(text: str, turn: Turn) -> str:
            """Everything a log can hold, over three turns."""
            await turn.say("once")
            async with turn.artifact(name="tale") as tale:
                for word in ("upon", "a", "time"):
                    await tale.write(word)
            first = await turn.ask("and then?")
            await turn.say(first.text)
            await turn.artifact("ever", name="tale 2")
            second = await turn.authorize("prove it")
            async with turn.artifact(name="tale 3") as tale:
                for n in range(30):
                    await tale.write(f"{n} ")
            return second.text


@pytest.fixture
def stage() -> Stage:
    return Stage()


def state(task: Task) -> TaskState:
    return task.status.state


def text_of(task: Task) -> str:
    return "".join(str(part.text) for artifact in task.artifacts for part in artifact.parts)


def texts(task: Task) -> list[str]:
    return [said.text for said in task.history]


def drafted(house: House, task: Task) -> TaskState | None:
    """Return the state a task has reached, be it written or not."""
    log = house.engine._holdings.get(house.scope, task.id)
    return log.draft.state if log is not None and log.draft is not None else None


async def says(house: House, task: Task, count: int) -> bool:
    return len((await house.get(task.id)).history) == count


# Sending


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
    try:
        for _ in range(50):
            await house.send("hi", skill="echo")
        # A ring of objects for each task would stop the loop for as long as it takes to find them.
        assert gc.collect() < 50
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
    assert state(task) is S.WORKING
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
    assert state(await within(sending)) is S.WORKING
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
    operation = ops.SendMessage(message=message("hi", task="chosen"))
    await within(house.engine.answer(Call(operation=operation, client_task_id=True)))
    assert text_of(await house.get("chosen")) == "hi"


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


# The same message again


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
    waiting = [
        asyncio.ensure_future(house.send(f"more {n}", task=task.id, skill="echo")) for n in range(5)
    ]
    await eventually(lambda: says(house, task, 6))
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
    go_on.set()
    stream = house.subscribe(task.id)
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


# Following


def fold(stream: Stream) -> Task:
    """Return the task as a reader of the stream knows it; history is not in streams."""
    assert stream.opening is not None
    task = stream.opening
    for event in stream.events:
        task = evolve(task, event)
    return task


def bare(task: Task) -> Task:
    return msgspec.structs.replace(task, history=[])


async def tell_story(house: House) -> Task:
    task = await house.send("tell", skill="story")
    task = await house.send("more", task=task.id, skill="story")
    return await house.send("end", task=task.id, skill="story")


@pytest.mark.requirement("T-8", "T-10", "T-15")
async def test_a_stream_is_the_task_and_then_its_events_without_a_gap(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = await house.stream("300", skill="chunks").rest()
    assert stream.opening is not None and stream.opened_at == 1
    assert state(stream.opening) is S.SUBMITTED
    assert stream.seqs == list(range(2, 2 + len(stream.seqs)))
    chunks = [event for event in stream.events if isinstance(event, ArtifactUpdate)]
    assert "".join(str(chunk.artifact.parts[0].text) for chunk in chunks) == "".join(
        f"{n} " for n in range(300)
    )
    assert [chunk.append for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [chunk.last_chunk for chunk in chunks].count(True) == 1 and chunks[-1].last_chunk
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 1
    last = stream.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert fold(stream) == await house.get(stream.opening.id)


@pytest.mark.requirement("T-12", "T-18", "T-17")
async def test_resuming_at_any_position_gives_exactly_the_rest(house: House, stage: Stage) -> None:
    """The first Task is the state as of the position, or chunks would be applied twice."""
    await house.start(stage.agent)
    task = await tell_story(house)
    assert state(task) is S.COMPLETED
    whole = await house.subscribe(task.id, 1).rest()
    head = await house.store.head(house.engine._scope(Call(operation=ops.ListTasks())), task.id)
    assert head is not None
    last = head.standing.last_seq
    assert whole.seqs[-1] == last > 40
    for position in range(last + 1):
        stream = await house.subscribe(task.id, position).rest()
        assert stream.opened_at == max(position, 1)
        assert stream.seqs == [seq for seq in whole.seqs if seq > position]
        assert bare(fold(stream)) == bare(task)
    await house.restart()
    for position in (1, last // 2, last):
        stream = await house.subscribe(task.id, position).rest()
        assert bare(fold(stream)) == bare(task)


@pytest.mark.requirement("T-11", "T-12")
async def test_two_subscribers_see_the_same_from_where_they_began(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="held", wait=False)
    early = house.subscribe(task.id)
    assert await early.step()
    for n in range(10):
        await house.send(f"{n}", task=task.id, skill="chunks", wait=False)
    late = house.subscribe(task.id)
    assert await late.step()
    reading = [asyncio.ensure_future(stream.rest()) for stream in (early, late)]
    stage.go_on.set()
    await within(asyncio.gather(*reading))
    assert set(early.seqs) >= set(late.seqs)
    shared = [recorded.body for recorded in early.recorded if recorded.seq > late.opened_at]
    assert [recorded.body for recorded in late.recorded] == shared
    assert early.seqs == sorted(set(early.seqs))
    done = await house.get(task.id)
    assert bare(fold(early)) == bare(fold(late)) == bare(done)


@pytest.mark.requirement("T-11", "T-16")
async def test_a_reader_that_leaves_harms_nobody(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    leaving, staying = house.stream(message("hi", skill="held")), None
    assert await leaving.step() and leaving.opening is not None
    staying = house.subscribe(leaving.opening.id)
    await staying.step()
    reading = asyncio.ensure_future(leaving.step())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await leaving.close()
    stage.go_on.set()
    await staying.rest()
    assert state(fold(staying)) is S.COMPLETED


@pytest.mark.requirement("T-11", "T-15")
async def test_a_reader_that_lags_far_behind_misses_nothing(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    slow = house.stream("3000", skill="chunks")
    assert await slow.step() and slow.opening is not None
    done = await house.reaches(slow.opening.id, S.COMPLETED)
    await slow.rest()
    assert slow.seqs == list(range(2, 2 + len(slow.seqs)))
    assert fold(slow) == done


@pytest.mark.requirement("T-13")
async def test_a_task_that_ended_is_followed_only_from_a_position(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="echo")
    for position in (None, 5, 99, -1, 1 << 60):
        with pytest.raises(UnsupportedOperation):
            await house.subscribe(task.id, position).rest()
    assert (await house.subscribe(task.id, 2).rest()).seqs == [3, 4]
    at_the_end = await house.subscribe(task.id, 4).rest()
    assert (at_the_end.opening, at_the_end.recorded) == (task, [])


@pytest.mark.requirement("T-12")
@pytest.mark.parametrize("position", [99, -1, 1 << 60, None])
async def test_a_position_the_log_never_had_is_as_good_as_none(
    house: House, stage: Stage, position: int | None
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    stream = house.subscribe(task.id, position)
    assert await stream.step()
    assert (stream.opening, stream.opened_at) == (task, 4)
    await stream.close()


@pytest.mark.requirement("T-9")
async def test_a_stream_of_a_further_message_begins_with_the_task_that_has_it(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    stream = await house.stream("this", task=task.id, skill="asks").rest()
    assert stream.opening is not None
    assert texts(stream.opening) == ["hi", "which?", "this"]
    # Not the question that was just answered: a client stops where input is required.
    assert (state(stream.opening), stream.opening.status.message) == (S.WORKING, None)
    states = [e.status.state for e in stream.events if isinstance(e, StatusUpdate)]
    assert states == [S.COMPLETED]
    assert fold(stream) == await house.get(task.id)


@pytest.mark.requirement("T-14")
async def test_a_send_stream_ends_when_input_is_required_and_a_subscription_does_not(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = await house.stream("hi", skill="asks").rest()
    assert state(fold(stream)) is S.INPUT_REQUIRED
    assert stream.opening is not None
    following = house.subscribe(stream.opening.id)
    assert await following.step()
    reading = asyncio.ensure_future(following.rest())
    await asyncio.sleep(0)
    assert not reading.done()
    await house.send("this", task=stream.opening.id, skill="asks")
    assert state(fold(await within(reading))) is S.COMPLETED


@pytest.mark.requirement("T-14", "T-58")
async def test_a_send_stream_stays_open_while_credentials_are_awaited(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = house.stream("hi", skill="authorizes")
    await stream.until(
        lambda s: any(
            isinstance(e, StatusUpdate) and e.status.state is S.AUTH_REQUIRED for e in s.events
        )
    )
    reading = asyncio.ensure_future(stream.rest())
    await asyncio.sleep(0)
    assert not reading.done() and stream.opening is not None
    await house.send("ok", task=stream.opening.id, skill="authorizes")
    assert state(fold(await within(reading))) is S.COMPLETED


# Cancelling; what code does about it is in test_worker


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


# Listing


@pytest.mark.requirement("T-35", "T-36", "T-37", "T-38")
async def test_a_list_is_walked_by_its_tokens(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    assert (await house.list()).tasks == []
    tasks = [await house.send(f"{n}") for n in range(7)]
    await house.send("theirs", owner="bob")
    seen: list[Task] = []
    token = ""
    for expected in (3, 3, 1):
        page = await house.list(page_size=3, page_token=token, include_artifacts=True)
        assert (len(page.tasks), page.total_size, page.page_size) == (expected, 7, 3)
        seen += [reply.reading.task for reply in page.tasks]
        token = page.next_page_token
        assert bool(token) == (len(seen) < 7)
    assert seen == list(reversed(tasks))
    for owner, query in (("bob", {}), ("", {"state": S.COMPLETED})):
        page = await house.list(page_size=3)
        with pytest.raises(InvalidParams):
            await house.list(owner=owner, page_token=page.next_page_token, **query)


async def test_a_list_shows_artifacts_only_when_asked(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    done = await house.send("hi")
    asked = await tell_part(house)
    for include in (False, True):
        page = await house.list(include_artifacts=include)
        shown = {reply.reading.task.id: reply.reading.task for reply in page.tasks}
        for task in (done, asked):
            expected = task if include else msgspec.structs.replace(task, artifacts=[])
            assert shown[task.id] == expected


async def tell_part(house: House) -> Task:
    """Return a task whose snapshot is older than its log."""
    task = await house.send("tell", skill="story")
    return await house.send("more", task=task.id, skill="story")


@pytest.mark.requirement("T-35")
async def test_a_list_can_begin_at_a_time(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi")
    head = await house.store.head(house.engine._scope(Call(operation=ops.ListTasks())), task.id)
    assert head is not None
    at = head.standing.status_at * 1000
    for since, count in ((at - 1, 1), (at, 1), (at + 1, 0), (at + 1000, 0)):
        assert (await house.list(status_since=since)).total_size == count


# Limits and lost races


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
    assert (engine._holdings._logs, engine._holdings._workers, engine._holdings._arriving) == (
        {},
        {},
        {},
    )
    assert engine._holdings.bell._waiting == {}
