"""Whatever an agent's code does, its task ends well and the server goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from harness.waiting import within

from dragoman import Agent, TaskFailed, Turn
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Call
from tests.engine.engines import House, message, sentence, state

S = TaskState
SECRET = "password=hunter2"


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


async def test_extended_cards_are_not_the_engines_affair(house: House) -> None:
    await house.start(Scripted("nothing"))
    with pytest.raises(UnsupportedOperation):
        await house.engine.answer(Call(operation=ops.GetExtendedCard()))


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
