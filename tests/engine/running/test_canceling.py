"""What code does about a cancel: it cleans up, goes on, ignores it or is in a thread."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.engine.running.turn_ends import Ended
from dragoman.errors import TaskNotCancelable
from dragoman.model.operations import SendMessage
from dragoman.model.task import TaskState
from dragoman.service import Call
from tests.engine.engines import House, message, state

S = TaskState


@pytest.mark.requirement("T-34")
async def test_code_learns_of_a_cancel_and_may_clean_up(house: House, agent: Agent) -> None:
    started = asyncio.Event()
    seen: list[bool] = []

    @agent.skill
    async def tidy(text: str, turn: Turn) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(turn.cancelled)
            await turn.say("tidied up")
        return "never"

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await within(started.wait())
    canceled = await house.cancel(task.id)
    assert state(canceled) is S.CANCELED
    assert seen == [True]
    assert [said.text for said in canceled.history] == ["hi", "tidied up"]


@pytest.mark.requirement("T-34")
async def test_code_that_completes_instead_of_stopping_wins(house: House, agent: Agent) -> None:
    started = asyncio.Event()

    @agent.skill
    async def stubborn(text: str) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    await house.start(agent)
    waiting = asyncio.ensure_future(house.send("hi"))
    await within(started.wait())
    await eventually(house.count)
    (shown,) = (await house.list()).tasks
    with pytest.raises(TaskNotCancelable):
        await house.cancel(shown.reading.task.id)
    assert state(await waiting) is S.COMPLETED


@pytest.mark.requirement("T-34", "T-1")
async def test_code_that_ignores_a_cancel_is_stopped_after_its_grace(
    house: House, agent: Agent
) -> None:
    started, ignored = asyncio.Event(), asyncio.Event()

    @agent.skill
    async def deaf(text: str, turn: Turn) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ignored.set()
        try:
            await asyncio.Event().wait()
        finally:
            # Too late: the task has ended.
            await turn.artifact("late", name="late")
        return "never"

    await house.start(agent, cancel_grace=0.05)
    task = await house.send("hi", wait=False)
    await within(started.wait())
    canceled = await house.cancel(task.id)
    assert ignored.is_set()
    assert (state(canceled), canceled.artifacts) == (S.CANCELED, [])
    await eventually(lambda: not house.engine._live._workers)
    assert await house.get(task.id) == canceled


@pytest.mark.requirement("T-34")
async def test_code_that_asks_again_when_it_is_cancelled_is_stopped_too(
    house: House, agent: Agent
) -> None:
    @agent.skill
    async def nosy(text: str, turn: Turn) -> str:
        try:
            await turn.ask("more?")
        except asyncio.CancelledError:
            await turn.ask("sure?")
        return "never"

    await house.start(agent, cancel_grace=0.05)
    task = await house.send("hi")
    assert state(await house.cancel(task.id)) is S.CANCELED


@pytest.mark.requirement("T-34")
async def test_a_task_is_canceled_before_its_code_began(house: House, agent: Agent) -> None:
    ran: list[str] = []

    @agent.skill
    async def late(text: str) -> str:
        ran.append(text)
        return text

    await house.start(agent)
    operation = SendMessage(message=message("hi"))
    sending = asyncio.ensure_future(house.engine.answer(Call(operation=operation)))
    # The code begins in the turn of the loop after the one in which its worker is made.
    await eventually(lambda: house.engine.live_tasks)
    (worker,) = house.engine._live._workers.values()
    worker.cancel()
    await within(sending)
    task = await house.reaches(worker.log.task_id, S.CANCELED)
    assert (state(task), ran) == (S.CANCELED, [])


@pytest.mark.requirement("T-34")
async def test_code_in_a_thread_that_looks_stops_when_it_is_cancelled(
    house: House, agent: Agent
) -> None:
    started, let_look, stopped = threading.Event(), threading.Event(), threading.Event()

    @agent.skill
    def looks(text: str, turn: Turn) -> str:
        started.set()
        assert let_look.wait(60)
        if turn.cancelled:
            stopped.set()
        return "never"

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await asyncio.to_thread(started.wait, 60)
    worker = house.engine._live._workers[house.scope, task.id]
    cancelling = asyncio.ensure_future(house.cancel(task.id))
    await eventually(lambda: worker.is_cancelled)
    let_look.set()
    assert state(await cancelling) is S.CANCELED
    assert await asyncio.to_thread(stopped.wait, 60)


@pytest.mark.requirement("T-34")
async def test_code_in_a_thread_that_does_not_look_is_left_behind(
    house: House, agent: Agent
) -> None:
    started, leave, left = threading.Event(), threading.Event(), threading.Event()

    @agent.skill
    def blocks(text: str, turn: Turn) -> str:
        started.set()
        assert leave.wait(60)
        with pytest.raises(Ended):
            turn.say("still here")
        left.set()
        return "late"

    await house.start(agent, cancel_grace=0.05)
    task = await house.send("hi", wait=False)
    await asyncio.to_thread(started.wait, 60)
    canceled = await house.cancel(task.id)
    assert state(canceled) is S.CANCELED
    leave.set()
    assert await asyncio.to_thread(left.wait, 60)
    assert await house.get(task.id) == canceled


async def test_code_in_a_thread_that_waits_for_an_answer_is_freed(
    house: House, agent: Agent
) -> None:
    """A thread that nobody frees is gone for good, and the process cannot end."""
    freed = threading.Event()

    @agent.skill
    def asks(text: str, turn: Turn) -> str:
        try:
            return turn.ask("which?").text
        finally:
            freed.set()

    await house.start(agent)
    task = await house.send("hi")
    assert state(await house.cancel(task.id)) is S.CANCELED
    assert await asyncio.to_thread(freed.wait, 60)
    freed.clear()
    await house.send("hi again")
    await house.stop()
    assert await asyncio.to_thread(freed.wait, 60)


async def test_code_in_a_thread_does_what_code_on_the_loop_does(house: House, agent: Agent) -> None:
    @agent.skill
    def busy(text: str, turn: Turn) -> str:
        turn.say("looking")
        turn.artifact("half", name="half")
        answer = turn.ask("which?")
        return f"{text}, {answer.text}"

    await house.start(agent)
    task = await house.send("hi")
    assert state(task) is S.INPUT_REQUIRED
    done = await house.send("this", task=task.id)
    assert [artifact.parts[0].text for artifact in done.artifacts] == ["half", "hi, this"]
    assert [said.text for said in done.history] == ["hi", "looking", "which?", "this"]


async def test_a_call_that_waits_for_a_thread_never_begins_once_it_is_canceled(
    house: House, agent: Agent
) -> None:
    release, begun = threading.Event(), list[str]()

    @agent.skill
    def block(text: str) -> str:
        begun.append(text)
        release.wait(60)
        return text

    agent.threads = ThreadPoolExecutor(1)
    await house.start(agent)
    busy = await house.send("busy", wait=False)
    await eventually(lambda: begun == ["busy"])
    queued = await house.send("queued", wait=False)
    assert state(await within(house.cancel(queued.id))) is S.CANCELED
    release.set()
    await house.reaches(busy.id, S.COMPLETED)
    agent.threads.shutdown()
    assert begun == ["busy"]
