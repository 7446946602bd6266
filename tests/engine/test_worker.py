"""Whatever an agent's code does, its task comes to rest and its caller learns no secret."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from house import House, eventually, house_over, message, within

from dragoman import Agent, TaskFailed, Turn
from dragoman.engine import holdings
from dragoman.engine.replay import Replay
from dragoman.engine.worker import Ended, Plan, Worker
from dragoman.errors import InvalidParams, Overloaded, TaskNotCancelable, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, AttemptStarted, StatusUpdate
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Call

S = TaskState
SECRET = "password=hunter2"


@pytest.fixture
def agent() -> Agent:
    return Agent("Tester", "Is tested.")


def state(task: Task) -> TaskState:
    return task.status.state


def sentence(task: Task) -> str:
    return task.status.message.text if task.status.message else ""


# What code raises


@pytest.mark.requirement("T-6")
@pytest.mark.parametrize("when", ["at once", "after an event", "after a pause", "in a thread"])
async def test_an_exception_is_an_incident_and_its_text_stays_here(
    house: House, agent: Agent, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    if when == "in a thread":

        @agent.skill
        def breaks(text: str) -> str:
            raise RuntimeError(SECRET)
    else:

        @agent.skill(id="breaks")
        async def breaks_async(text: str, turn: Turn) -> str:
            if when == "after an event":
                await turn.artifact("half", name="half")
            if when == "after a pause":
                await asyncio.sleep(0)
            raise RuntimeError(SECRET)

    await house.start(agent)
    with caplog.at_level(logging.ERROR, "dragoman"):
        task = await house.send("hi")
    assert state(task) is S.FAILED
    assert sentence(task).startswith("The agent failed. Incident ")
    incident = sentence(task).split()[-1].rstrip(".")
    assert any(incident in record.getMessage() for record in caplog.records)
    assert SECRET in caplog.text
    stream = await house.stream("again").rest()
    shown = [task, await house.get(task.id), stream.opening, *stream.events]
    for each in shown:
        assert SECRET.encode() not in encode(each)
        assert b"RuntimeError" not in encode(each)


@pytest.mark.requirement("T-6")
async def test_an_exception_of_code_that_may_reply_is_a_failed_task(
    house: House, agent: Agent
) -> None:
    @agent.skill
    async def breaks(text: str) -> Message:
        await asyncio.sleep(0)
        raise RuntimeError(SECRET)

    await house.start(agent)
    said = message("hi")
    answers = await asyncio.gather(*(house.send(said) for _ in range(3)))
    assert {state(answer) for answer in answers} == {S.FAILED}
    assert len({answer.id for answer in answers}) == 1


@pytest.mark.requirement("T-6")
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(
    house: House, agent: Agent
) -> None:
    """Something the code waited for was cancelled; the task must not stay working for ever."""

    @agent.skill
    async def waits(text: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    await house.start(agent)
    assert state(await house.send("hi")) is S.FAILED


@pytest.mark.requirement("T-6")
@pytest.mark.parametrize("threaded", [False, True])
async def test_code_that_exits_ends_its_task_and_not_the_server(
    house: House, agent: Agent, threaded: bool
) -> None:
    if threaded:

        @agent.skill
        def leaves(text: str) -> str:
            raise SystemExit(3)
    else:

        @agent.skill(id="leaves")
        async def leaves_async(text: str) -> str:
            raise SystemExit(3)

    await house.start(agent)
    assert state(await house.send("hi")) is S.FAILED


async def test_a_failure_in_the_authors_words_is_shown_as_it_is(house: House, agent: Agent) -> None:
    @agent.skill
    async def fails(text: str) -> str:
        raise TaskFailed("The oven is off.")

    await house.start(agent)
    task = await house.send("hi")
    assert (state(task), sentence(task)) == (S.FAILED, "The oven is off.")


async def test_a_task_is_rejected_with_its_reason(house: House, agent: Agent) -> None:
    @agent.skill
    async def picky(text: str, turn: Turn) -> str:
        if text == "later":
            await turn.say("let me see")
        turn.reject("Not on Sundays.")

    await house.start(agent)
    for text in ("now", "later"):
        task = await house.send(text)
        assert (state(task), sentence(task)) == (S.REJECTED, "Not on Sundays.")


async def test_a_task_is_completed_early_with_a_last_word(house: House, agent: Agent) -> None:
    @agent.skill
    async def early(text: str, turn: Turn) -> str:
        turn.complete("That was easy.")

    await house.start(agent)
    task = await house.send("hi")
    assert (state(task), sentence(task)) == (S.COMPLETED, "That was easy.")


@pytest.mark.requirement("T-5")
async def test_a_reply_after_the_task_began_belongs_to_the_task(house: House, agent: Agent) -> None:
    @agent.skill
    async def late(text: str, turn: Turn) -> Message:
        await turn.say("working on it")
        return turn.reply("done")

    await house.start(agent)
    task = await house.send("hi")
    assert isinstance(task, Task)
    assert (state(task), sentence(task)) == (S.COMPLETED, "done")


class Scripted:
    """An agent that does one thing to its worker, without the help an author has."""

    name = "scripted"
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def withdraw(self, replay: Replay) -> None:
        pass

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None: ...

    def __init__(self, act: str) -> None:
        self.act = act

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        return Plan(self.run)

    async def run(self, worker: Worker) -> Message | None:
        match self.act:
            case "append to nothing":
                worker.artifact(Artifact("a", [Part(text="x")]), append=True)
            case "submit again":
                worker.status(S.SUBMITTED)
            case "go on after the end":
                worker.status(S.COMPLETED)
                worker.artifact(Artifact("a", [Part(text=SECRET)]))
            case "end twice":
                worker.status(S.REJECTED)
                worker.status(S.FAILED)
            case _:
                pass
        return None


@pytest.mark.requirement("E-1", "T-8")
@pytest.mark.parametrize("act", ["append to nothing", "submit again"])
async def test_code_that_breaks_the_rules_of_events_fails_its_task(house: House, act: str) -> None:
    await house.start(Scripted(act))
    task = await house.send("hi")
    assert state(task) is S.FAILED
    assert sentence(task).startswith("The agent gave an invalid response")


@pytest.mark.requirement("T-1", "T-15")
@pytest.mark.parametrize(
    ("act", "end"), [("go on after the end", S.COMPLETED), ("end twice", S.REJECTED)]
)
async def test_what_code_does_after_the_end_did_not_happen(
    house: House, act: str, end: TaskState
) -> None:
    await house.start(Scripted(act))
    stream = await house.stream("hi").rest()
    assert stream.opening is not None
    task = await house.get(stream.opening.id)
    assert (state(task), task.artifacts) == (end, [])
    assert stream.seqs == [2, 3]


@pytest.mark.requirement("T-6")
async def test_code_that_does_nothing_completes_its_task(house: House) -> None:
    await house.start(Scripted("nothing"))
    assert state(await house.send("hi")) is S.COMPLETED


# Limits


@pytest.mark.requirement("T-52")
async def test_a_log_that_grows_beyond_its_events_ends_as_failed(
    house: House, agent: Agent
) -> None:
    @agent.skill
    async def endless(text: str) -> AsyncIterator[str]:
        while True:
            yield "x"

    await house.start(agent, max_events=50)
    stream = await house.stream("hi").rest()
    assert stream.opening is not None
    assert stream.seqs == list(range(2, 51))
    task = await house.get(stream.opening.id)
    assert (state(task), sentence(task)) == (
        S.FAILED,
        "The task grew beyond its limit of 50 events.",
    )
    assert len(task.artifacts[0].parts) == 47


@pytest.mark.requirement("T-52")
async def test_a_log_that_grows_beyond_its_bytes_ends_as_failed(house: House, agent: Agent) -> None:
    @agent.skill
    def endless(text: str) -> Iterator[str]:
        while True:
            yield "x" * 1000

    await house.start(agent, max_task_bytes=600_000)
    task = await house.send("hi")
    assert state(task) is S.FAILED
    assert 300_000 < len(encode(task)) < 600_000
    assert await house.get(task.id) == task


async def test_a_message_larger_than_a_task_is_refused(house: House, agent: Agent) -> None:
    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        return (await turn.ask("more?")).text

    await house.start(agent, max_task_bytes=2000)
    with pytest.raises(InvalidParams):
        await house.send("x" * 3000)
    assert await house.count() == 0
    task = await house.send("hi")
    large = message("x" * 3000, task=task.id)
    for _ in range(2):
        with pytest.raises(UnsupportedOperation):
            await house.send(large)
    assert await house.get(task.id) == task
    assert state(await house.send("small", task=task.id)) is S.COMPLETED


async def test_a_task_larger_than_memory_should_hold_is_whole(house: House, agent: Agent) -> None:
    @agent.skill
    async def large(text: str, turn: Turn) -> AsyncIterator[str]:
        for n in range(100):
            yield f"{n}".ljust(10_000)
        answer = await turn.ask("more?")
        yield answer.text

    await house.start(agent)
    task = await house.send("hi")
    assert state(task) is S.INPUT_REQUIRED
    done = await house.send("no", task=task.id)
    parts = [str(part.text).strip() for part in done.artifacts[0].parts]
    assert parts[:101] == [*(f"{n}" for n in range(100)), "no"]
    assert await house.get(done.id) == done
    await house.restart()
    assert await house.get(done.id) == done


# Cancelling


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
    await eventually(lambda: not house.engine._holdings._workers)
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
    accepted = await house.engine._accept(Call(operation=operation), operation)
    assert accepted.worker is not None
    accepted.worker.cancel()
    await eventually(house.count)
    task = await house.reaches(accepted.task_id, S.CANCELED)
    assert (state(task), ran) == (S.CANCELED, [])


@pytest.mark.requirement("T-34")
async def test_code_in_a_thread_that_looks_stops_when_it_is_cancelled(
    house: House, agent: Agent
) -> None:
    started, let_look, stopped = threading.Event(), threading.Event(), threading.Event()

    @agent.skill
    def looks(text: str, turn: Turn) -> str:
        started.set()
        assert let_look.wait(10)
        if turn.cancelled:
            stopped.set()
        return "never"

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await asyncio.to_thread(started.wait, 10)
    worker = house.engine._holdings._workers[house.scope, task.id]
    cancelling = asyncio.ensure_future(house.cancel(task.id))
    await eventually(lambda: worker.is_cancelled)
    let_look.set()
    assert state(await cancelling) is S.CANCELED
    assert await asyncio.to_thread(stopped.wait, 10)


@pytest.mark.requirement("T-34")
async def test_code_in_a_thread_that_does_not_look_is_left_behind(
    house: House, agent: Agent
) -> None:
    started, leave, left = threading.Event(), threading.Event(), threading.Event()

    @agent.skill
    def blocks(text: str, turn: Turn) -> str:
        started.set()
        assert leave.wait(10)
        with pytest.raises(Ended):
            turn.say("still here")
        left.set()
        return "late"

    await house.start(agent, cancel_grace=0.05)
    task = await house.send("hi", wait=False)
    await asyncio.to_thread(started.wait, 10)
    canceled = await house.cancel(task.id)
    assert state(canceled) is S.CANCELED
    leave.set()
    assert await asyncio.to_thread(left.wait, 10)
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
    assert await asyncio.to_thread(freed.wait, 10)
    freed.clear()
    await house.send("hi again")
    await house.stop()
    assert await asyncio.to_thread(freed.wait, 10)


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


# Taking over


class Sturdy:
    """An agent that remembers, over restarts of the engine, how often it was started."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()
        self.agent = Agent("Sturdy", "Comes back.")

        @self.agent.skill
        async def work(text: str, turn: Turn) -> str:
            self.attempts.append((text, turn.attempt))
            await turn.artifact("half", name="half", id=f"half {turn.attempt}")
            await self.go_on.wait()
            return f"{text} {turn.attempt}"


@pytest.mark.requirement("T-7")
async def test_unfinished_tasks_run_again_after_a_restart(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    tasks = [await house.send(f"{n}", wait=False) for n in range(5)]
    await eventually(lambda: len(sturdy.attempts) == 5)
    assert await house.restart() == 5
    sturdy.go_on.set()
    for n, task in enumerate(tasks):
        done = await house.reaches(task.id, S.COMPLETED)
        assert done.artifacts[-1].parts[0].text == f"{n} 2"
        assert [said.text for said in done.history] == [f"{n}"]
    assert sorted(sturdy.attempts) == sorted((f"{n}", k) for n in range(5) for k in (1, 2))
    assert await house.restart() == 0


@pytest.mark.requirement("T-7", "T-12")
async def test_a_stream_goes_on_over_a_restart(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    stream = house.stream("hi")
    await stream.until(lambda s: any(isinstance(e, ArtifactUpdate) for e in s.events))
    assert stream.opening is not None
    seen = stream.seqs[-1]
    await house.restart()
    sturdy.go_on.set()
    rest = await house.subscribe(stream.opening.id, seen).rest()
    assert rest.opened_at == seen
    assert all(not isinstance(event, AttemptStarted) for event in rest.events)
    last = rest.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert rest.seqs == sorted(set(rest.seqs)) and rest.seqs[0] > seen


@pytest.mark.requirement("T-7")
async def test_a_task_is_given_up_after_its_attempts(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent, max_attempts=3)
    task = await house.send("hi", wait=False)
    for attempt in (2, 3):
        await eventually(lambda attempt=attempt: len(sturdy.attempts) == attempt - 1)
        await eventually(lambda: _is_written(house))
        assert await house.restart() == 1
    await eventually(lambda: len(sturdy.attempts) == 3)
    await eventually(lambda: _is_written(house))
    assert await house.restart() == 1
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 3 attempts."
    assert [attempt for _, attempt in sturdy.attempts] == [1, 2, 3]
    await eventually(lambda: _is_written(house))
    assert await house.restart() == 0


def _is_written(house: House) -> bool:
    return all(log.is_idle for log in house.engine._holdings._logs.values())


@pytest.mark.requirement("T-7")
async def test_the_worker_of_before_cannot_write_after_a_take_over(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", wait=False)
    await eventually(lambda: len(sturdy.attempts) == 1)
    await eventually(lambda: _is_written(house))
    # As a process that was only paused would: it lives on while another takes its task.
    before = await house.succeed()
    await eventually(lambda: len(sturdy.attempts) == 2)
    await eventually(lambda: _is_written(house))
    with pytest.raises(Overloaded):
        late = SendMessage(message=message("late", task=task.id))
        await within(before.answer(Call(operation=late)))
    sturdy.go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "hi 2"
    assert [said.text for said in done.history] == ["hi"]
    await before.stop()


@pytest.mark.requirement("T-7")
async def test_a_task_whose_skill_is_gone_fails_instead_of_staying(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", skill="work", wait=False)
    other = Agent("Sturdy", "Has other skills.")

    @other.skill
    async def rest(text: str) -> str:
        return text

    assert await house.restart(other) == 1
    assert state(await house.reaches(task.id, S.FAILED)) is S.FAILED


@pytest.mark.requirement("T-7", "T-62")
async def test_a_task_begun_by_a_message_in_the_agents_role_is_taken_over_too(
    house: House,
) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    task = await house.send("hi", role=Role.AGENT, wait=False)
    assert await house.restart() == 1
    sturdy.go_on.set()
    assert state(await house.reaches(task.id, S.COMPLETED)) is S.COMPLETED


@pytest.mark.requirement("T-7")
async def test_a_task_at_its_limit_does_not_keep_the_engine_from_starting(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent, max_events=100)
    task = await house.send("hi", wait=False)
    await eventually(lambda: len(sturdy.attempts) == 1)
    for n in range(8):
        await house.send(f"{n}", task=task.id, wait=False)
    assert await house.restart(sturdy.agent, max_events=10) == 1
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The task grew beyond its limit of 10 events."


@pytest.mark.requirement("T-7", "T-3")
async def test_a_task_that_was_answered_but_not_gone_on_with_is_taken_over(house: House) -> None:
    """An answer that was taken in is worked on, whenever the process ends."""
    agent, go_on = Agent("Asker", "Asks."), asyncio.Event()

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        if text != "this":
            await turn.ask("which?")
        await go_on.wait()
        return text

    await house.start(agent)
    task = await house.send("hi")
    await house.send("this", task=task.id, wait=False)
    assert await house.restart() == 1
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "hi"
    assert [m.parts[0].text for m in done.history] == ["hi", "which?", "this"]


@pytest.mark.requirement("T-7", "T-3")
async def test_messages_that_waited_are_worked_on_in_order_after_a_restart(house: House) -> None:
    agent, go_on = Agent("Queue", "Takes its time."), asyncio.Event()
    ran: list[str] = []

    @agent.skill
    async def held(text: str) -> str:
        ran.append(text)
        await go_on.wait()
        return text

    await house.start(agent)
    task = await house.send("first", wait=False)
    for text in ("second", "third"):
        await house.send(text, task=task.id, wait=False)
    await eventually(lambda: ran == ["first"])
    assert await house.restart() == 1
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert ran == ["first", "first", "second", "third"]
    assert [said.text for said in done.history] == ["first", "second", "third"]


async def test_waiting_callers_are_told_when_the_engine_stops(house: House) -> None:
    sturdy = Sturdy()
    await house.start(sturdy.agent)
    waiting = asyncio.ensure_future(house.send("hi"))
    await eventually(lambda: len(sturdy.attempts) == 1)
    await eventually(lambda: _is_written(house))
    await house.stop()
    with pytest.raises(Overloaded):
        await waiting
    await house.start(sturdy.agent)
    page = await house.list()
    assert page.total_size == 1
    sturdy.go_on.set()
    await house.reaches(page.tasks[0].reading.task.id, S.COMPLETED)


async def test_extended_cards_are_not_the_engines_affair(house: House) -> None:
    await house.start(Scripted("nothing"))
    with pytest.raises(UnsupportedOperation):
        await house.engine.answer(Call(operation=ops.GetExtendedCard()))


# Which skill a further message is for


def two_skills(agent: Agent) -> list[str]:
    """Give the agent a default skill that takes a number, and one that asks for a place."""
    seen: list[str] = []

    @agent.skill(default=True)
    async def double(number: int) -> int:
        seen.append(f"double {number}")
        return 2 * number

    @agent.skill
    async def travel(where: str, turn: Turn) -> str:
        seen.append(f"travel {where}")
        answer = await turn.ask("From where?")
        return f"{answer.text} to {where}"

    return seen


async def test_an_answer_goes_to_the_code_that_asked_whatever_the_default_skill_takes(
    house: House, agent: Agent
) -> None:
    seen = two_skills(agent)
    await house.start(agent)
    task = await house.send("Rome", skill="travel")
    done = await house.send("Oslo", task=task.id)
    assert [a.parts[0].text for a in done.artifacts] == ["Oslo to Rome"]
    assert seen == ["travel Rome"]


async def test_after_a_restart_an_answer_goes_to_the_skill_its_task_began_with(
    house: House, agent: Agent
) -> None:
    seen = two_skills(agent)
    await house.start(agent)
    task = await house.send("Rome", skill="travel")
    await house.restart()
    assert state(await house.send("Oslo", task=task.id)) is S.COMPLETED
    assert seen == ["travel Rome", "travel Rome"]


async def test_after_a_crash_every_message_without_an_answer_is_worked_on_in_order(
    house: House, agent: Agent
) -> None:
    gate, seen = asyncio.Event(), list[str]()

    @agent.skill
    async def note(text: str, turn: Turn) -> str:
        await gate.wait()
        seen.append(f"{text} {turn.attempt}")
        return text

    await house.start(agent)
    task = await house.send("one", wait=False)
    for text in ("two", "three"):
        await house.send(text, task=task.id, wait=False)
    gate.set()
    # Stopped before the code's next slice: nothing of it is done.
    assert await house.restart() == 1
    await house.reaches(task.id, S.COMPLETED)
    assert seen == ["one 2", "two 2", "three 2"]


async def test_a_task_with_one_huge_artifact_is_listed_as_it_stands(
    house: House, agent: Agent
) -> None:
    @agent.skill
    async def huge(text: str) -> str:
        return "x" * 2_000_000

    await house.start(agent)
    task = await house.send("hi")
    assert state(task) is S.COMPLETED
    page = await house.list()
    assert [reply.reading.task.status.state for reply in page.tasks] == [S.COMPLETED]


async def test_after_a_crash_an_answer_that_fits_no_argument_reaches_the_code_that_asks(
    house: House, agent: Agent
) -> None:
    gate = asyncio.Event()

    @agent.skill
    async def add(number: int, turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        await gate.wait()
        return f"{number} {answer.text} {turn.metadata}"

    await house.start(agent)
    task = await house.send("7")
    await house.send("yes", task=task.id, wait=False)
    assert await house.restart() == 1
    gate.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[0].parts[0].text == "7 yes {}"


async def test_code_that_made_way_can_record_nothing_more(house: House, agent: Agent) -> None:
    left = asyncio.Event()

    @agent.skill
    async def stubborn(text: str, turn: Turn) -> str:
        try:
            await turn.ask("And?")
        finally:
            try:
                await turn.say("on my way out")
            finally:
                left.set()
        return "never"

    await house.start(agent, max_live_tasks=1)
    waiting = await house.send("first")
    assert state(await house.send("second")) is S.INPUT_REQUIRED
    await within(left.wait())
    assert await house.get(waiting.id) == waiting


async def test_a_call_that_waits_for_a_thread_never_begins_once_it_is_canceled(
    house: House, agent: Agent
) -> None:
    release, begun = threading.Event(), list[str]()

    @agent.skill
    def block(text: str) -> str:
        begun.append(text)
        release.wait(10)
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


async def test_a_task_whose_disk_failed_for_a_moment_is_taken_up_again(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, go_on = house_over("sqlite", tmp_path), asyncio.Event()
    monkeypatch.setattr(holdings, "RETRY_AFTER", 0.0)

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        await go_on.wait()
        return f"attempt {turn.attempt}"

    await house.start(agent)
    task = await house.send("hi", wait=False)

    def full(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(holdings, "RETRY_AFTER", 0.0)
        raise apsw.FullError("no space left")

    monkeypatch.setattr(house.store._writer, "_apply", full)
    go_on.set()
    done = await house.reaches(task.id, S.COMPLETED)
    # The disk's fault is not the code's.
    assert done.artifacts[0].parts[0].text == "attempt 1"
    await house.stop()
