"""Questions with a shape, several at once, and tools of the caller: over the engine's restarts."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from harness.databases import new_database
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.authoring.forms import schema_of
from dragoman.engine.running.questions import Questions
from dragoman.errors import InputTimeout, RequestFailed
from dragoman.model.message import Message, Part
from dragoman.model.requests import (
    INPUT_REQUEST,
    REQUESTS_URI,
    TOOL_RESULT,
    TOOL_USE,
    Request,
    open_requests,
)
from dragoman.model.task import Task, TaskState
from dragoman.testing.clock import ManualClock
from tests.engine.engines import House, house_over, message

S = TaskState


# What is asked and answered without a restart is the same over all of them.
ONE_STORE = pytest.mark.parametrize("house", ["sqlite"], indirect=True)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    database = await new_database(request) if request.param == "postgres" else ""
    house = house_over(request.param, tmp_path, database)
    house.clock = ManualClock()
    yield house
    await house.stop()


def made(function: Callable[..., Any]) -> Agent:
    agent = Agent("Tester", "Is tested.")
    agent.skill(id="work")(function)
    return agent


def asked(task: Task) -> list[Request]:
    assert task.status.state is S.INPUT_REQUIRED, task.status
    return open_requests(task.status)


def reply(task: Task, *answers: tuple[Request, Any]) -> Message:
    parts = [part for request, result in answers for part in request.answered(result)]
    return msgspec.structs.replace(message("", task=task.id), parts=parts)


def text(task: Task) -> str:
    assert task.status.state is S.COMPLETED, task.status
    return "".join(str(part.text) for artifact in task.artifacts for part in artifact.parts)


# Shapes


@ONE_STORE
@pytest.mark.parametrize("said", ["b", "B ", "2"])
async def test_a_choice_is_answered_by_its_text_or_its_number(house: House, said: str) -> None:
    async def work(text: str, turn: Turn) -> str:
        return await turn.choose("Which?", ["a", "b"])

    await house.start(made(work))
    task = await house.send("go")
    (request,) = asked(task)
    assert (request.kind, request.choices, request.prompt) == ("choice", ["a", "b"], "Which?")
    assert task.status.message is not None
    assert task.status.message.extensions == [REQUESTS_URI]
    assert [part.type for part in task.status.message.parts] == ["text/plain", INPUT_REQUEST]
    assert text(await house.send(said, task=task.id)) == "b"


async def test_what_is_no_choice_is_asked_again_with_the_reason(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        return await turn.choose("Which?", ["a", "b"])

    await house.start(made(work))
    task = await house.send("go")
    again = await house.send("c", task=task.id)
    (request,) = asked(again)
    assert request.problem == "That does not fit: it is one of a, b."
    assert request.request_id == asked(task)[0].request_id
    await house.restart()
    assert text(await house.send("a", task=task.id)) == "a"


@ONE_STORE
@pytest.mark.parametrize(("said", "is_so"), [("Yes", True), ("no", False), ("n", False)])
async def test_a_confirmation_is_yes_or_no(house: House, said: str, is_so: bool) -> None:
    async def work(text: str, turn: Turn) -> str:
        return str(await turn.confirm("Sure?"))

    await house.start(made(work))
    task = await house.send("go")
    (request,) = asked(await house.send("perhaps", task=task.id))
    assert request.kind == "confirmation"
    assert text(await house.send(said, task=task.id)) == str(is_so)


@ONE_STORE
async def test_a_confirmation_that_is_not_awaited_is_no_yes(house: House) -> None:
    did: list[str] = []

    async def work(text: str, turn: Turn) -> None:
        if turn.confirm("Sure?"):  # `await` is missing
            did.append("it")

    await house.start(made(work))
    task = await house.send("go")
    assert task.status.state is S.FAILED
    assert not did


@ONE_STORE
async def test_a_confirmation_may_be_gathered(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        (answer,) = await asyncio.gather(turn.confirm("Sure?"))
        return str(answer)

    await house.start(made(work))
    task = await house.send("go")
    assert text(await house.send("yes", task=task.id)) == "True"


@dataclasses.dataclass
class Address:
    street: str
    number: int
    kind: Literal["home", "work"] = "home"


FORMS: list[Any] = [
    Address,
    {
        "type": "object",
        "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["street", "number"],
    },
]


@ONE_STORE
@pytest.mark.parametrize("form", FORMS, ids=["type", "schema"])
async def test_a_form_is_filled_in_and_checked(house: House, form: Any) -> None:
    async def work(text: str, turn: Turn) -> str:
        found = await turn.fill("Where?", form)
        return found.street if isinstance(found, Address) else found["street"]

    await house.start(made(work))
    task = await house.send("go")
    (request,) = asked(task)
    assert request.kind == "form" and request.schema
    task = await house.send(reply(task, (request, {"street": "Elm", "number": "x"})))
    (request,) = asked(task)
    assert "$.number" in request.problem and "int" in request.problem
    assert text(await house.send(reply(task, (request, {"street": "Elm", "number": 3})))) == "Elm"


@ONE_STORE
async def test_a_tool_of_the_callers_is_a_request_and_its_result_the_answer(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        try:
            found = await turn.tool("search", {"q": text}, returns=dict[str, int])
        except RequestFailed as error:
            return str(error)
        return str(found["hits"])

    await house.start(made(work))
    task = await house.send("cats")
    (request,) = asked(task)
    assert (request.kind, request.name, request.args) == ("tool", "search", {"q": "cats"})
    assert task.status.message is not None
    assert task.status.message.parts[-1].media_type == TOOL_USE
    assert text(await house.send(reply(task, (request, {"hits": 3})))) == "3"
    task = await house.send("dogs")
    (request,) = asked(task)
    failed = msgspec.structs.replace(message("", task=task.id), parts=request.failed("no net"))
    assert text(await house.send(failed)) == "The tool search has no answer: no net"


@dataclasses.dataclass
class Hits:
    count: int


@ONE_STORE
async def test_the_result_of_a_tool_comes_in_the_type_that_was_wanted(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        found = await turn.tool("search", {"q": text}, returns=Hits)
        assert isinstance(found, Hits)
        return str(found.count + 1)

    await house.start(made(work))
    task = await house.send("cats")
    (request,) = asked(task)
    assert request.schema == schema_of(Hits), "the caller is told what has to fit"
    task = await house.send(reply(task, (request, {"count": "many"})))
    (request,) = asked(task)
    assert request.name == "search", "what does not fit is asked for again"
    assert text(await house.send(reply(task, (request, {"count": 3})))) == "4"


@ONE_STORE
async def test_a_tool_has_one_description_of_its_result(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        either: Any = turn.tool
        with pytest.raises(TypeError, match="returns= or by schema="):
            await either(text, returns=Hits, schema={})
        return "refused"

    await house.start(made(work))
    assert text(await house.send("cats")) == "refused"


@ONE_STORE
async def test_what_fits_none_of_several_tools_is_for_the_one_that_is_left(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        one, two = await asyncio.gather(turn.tool("one", {}), turn.tool("two", {}))
        return f"{one} {two}"

    await house.start(made(work))
    task = await house.send("x")
    first, _ = asked(task)
    assert (await house.send("said", task=task.id)).status.state is S.INPUT_REQUIRED
    assert text(await house.send(reply(task, (first, "given")))) == "given said"


@ONE_STORE
async def test_what_fits_no_tool_at_all_begins_a_turn_with_its_own_arguments(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        if text != "x":
            return f"then {text}"
        one, two = await asyncio.gather(turn.tool("one", {}), turn.tool("two", {}))
        return f"{one} {two}"

    await house.start(made(work))
    task = await house.send("x")
    first, second = asked(task)
    await house.send("said", task=task.id)
    done = await house.send(reply(task, (first, "a"), (second, "b")))
    done = await house.reaches(done.id, S.COMPLETED)
    parts = [part.text for artifact in done.artifacts for part in artifact.parts]
    assert parts == ["a b", "then said"]


@ONE_STORE
async def test_a_bare_question_looks_as_ever_and_takes_a_result_by_the_id_of_its_message(
    house: House,
) -> None:
    async def work(text: str, turn: Turn) -> str:
        return (await turn.ask("Who?")).text

    await house.start(made(work))
    task = await house.send("go")
    said = task.status.message
    assert said is not None and [part.text for part in said.parts] == ["Who?"]
    assert said.metadata == {} and said.extensions == []
    result = Part(data={"toolUseId": said.message_id, "result": "Ada"}, media_type=TOOL_RESULT)
    answer = msgspec.structs.replace(message("", task=task.id), parts=[result])
    assert text(await house.send(answer)) == "Ada"


# Several at once


def many(order: list[str] | None = None) -> Agent:
    async def work(text: str, turn: Turn) -> str:
        async def one(deed: Any) -> str:
            found = await deed
            if order is not None:
                order.append(str(found))
            return str(found)

        found = await asyncio.gather(
            one(turn.tool("look", 1)), one(turn.choose("Which?", ["a", "b"])), one(turn.tool("see"))
        )
        return " ".join(found)

    return made(work)


@pytest.mark.parametrize("restarts", [False, True])
async def test_open_requests_are_all_shown_and_answered_in_any_order(
    house: House, restarts: bool
) -> None:
    await house.start(many())
    task = await house.send("go")
    look, which, see = asked(task)
    assert [look.name, which.kind, see.name] == ["look", "choice", "see"]
    for request, result, left in ((see, "S", [look, which]), (look, "L", [which])):
        if restarts:
            await house.restart()
        task = await house.send(reply(task, (request, result)))
        assert [one.request_id for one in asked(task)] == [one.request_id for one in left]
    if restarts:
        await house.restart()
    assert text(await house.send("b", task=task.id)) == "L b S"


@ONE_STORE
async def test_each_wait_goes_on_with_its_own_answer(house: House) -> None:
    order: list[str] = []
    await house.start(many(order))
    task = await house.send("go")
    look, which, see = asked(task)
    task = await house.send(reply(task, (see, "S")))
    await eventually(lambda: order == ["S"])
    task = await house.send(reply(task, (which, "b")))
    await eventually(lambda: order == ["S", "b"])
    assert text(await house.send(reply(task, (look, "L")))) == "L b S"


@pytest.mark.parametrize("restarts", [False, True])
async def test_one_message_may_answer_several(house: House, restarts: bool) -> None:
    await house.start(many())
    task = await house.send("go")
    look, which, see = asked(task)
    if restarts:
        await house.restart()
    task = await house.send(reply(task, (see, "S"), (look, "L")))
    assert [one.request_id for one in asked(task)] == [which.request_id]
    assert text(await house.send(reply(task, (which, "a")))) == "L a S"


@ONE_STORE
async def test_a_stream_that_stops_at_a_question_has_all_of_them(house: House) -> None:
    await house.start(many())
    stream = await house.stream("go").rest()
    (last,) = [event for event in stream.events if event.status.state is S.INPUT_REQUIRED]  # type: ignore[union-attr]
    assert len(open_requests(last.status)) == 3  # type: ignore[union-attr]


@ONE_STORE
async def test_an_answer_that_comes_again_answers_nothing_else(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        one = await turn.choose("First?", ["a", "b"])
        two = await turn.ask("Second?")
        return f"{one} {two.text}"

    await house.start(made(work))
    task = await house.send("go")
    (first,) = asked(task)
    task = await house.send(reply(task, (first, "a")))
    again = await house.send(reply(task, (first, "b")))
    assert [one.prompt for one in asked(again)] == ["Second?"]
    assert text(await house.send("two", task=task.id)) == "a two"


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_late_answer_begins_no_turn(house: House, restarts: bool) -> None:
    gate, is_past, runs = asyncio.Event(), asyncio.Event(), list[str]()

    async def work(text: str, turn: Turn) -> str:
        runs.append(text)
        found = await turn.choose("Which?", ["a", "b"])
        is_past.set()
        await gate.wait()
        return found

    await house.start(made(work))
    task = await house.send("go")
    (first,) = asked(task)
    await house.send(reply(task, (first, "a")), wait=False)
    await within(is_past.wait())
    await house.send(reply(task, (first, "b")), wait=False)
    if restarts:
        is_past.clear()
        await house.restart()
        await within(is_past.wait())
    gate.set()
    assert text(await house.reaches(task.id, S.COMPLETED)) == "a"
    assert runs == ["go"] * (1 + restarts)


@ONE_STORE
async def test_an_answer_that_came_when_its_question_was_given_up_is_for_the_next(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[asyncio.Task[Message]] = []
    arrived = Questions.arrived

    def give_up(questions: Questions) -> None:
        arrived(questions)
        for one in waiting:
            one.cancel()

    monkeypatch.setattr(Questions, "arrived", give_up)

    async def work(text: str, turn: Turn) -> str:
        waiting.append(asyncio.create_task(turn.ask("First?")))
        await asyncio.wait(waiting)
        assert waiting.pop().cancelled()
        return (await turn.ask("Second?")).text

    await house.start(made(work))
    task = await house.send("go")
    assert text(await house.send("one", task=task.id)) == "one"


# Time


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_question_that_nobody_answers_in_time_fails_the_task(
    house: House, restarts: bool
) -> None:
    async def work(text: str, turn: Turn) -> str:
        return (await turn.ask("Who?", timeout=300)).text

    clock = house.clock
    assert isinstance(clock, ManualClock)
    await house.start(made(work))
    task = await house.send("go")
    await house.engine.sweep()
    assert (await house.get(task.id)).status.state is S.INPUT_REQUIRED
    if restarts:
        await house.die()
    clock.move_to(clock.now() + 301_000)
    if restarts:
        await house.start(made(work))
    done = await house.reaches(task.id, S.FAILED)
    assert done.status.message is not None
    assert done.status.message.text == "Input timeout: no answer within 300 s."


@pytest.mark.parametrize("restarts", [False, True])
async def test_code_may_go_on_without_an_answer(house: House, restarts: bool) -> None:
    async def work(text: str, turn: Turn) -> str:
        try:
            await turn.confirm("Sure?", timeout=10)
        except InputTimeout as late:
            assert late.facts == {"taskId": turn.task_id, "timeoutSeconds": 10}
        return f"{await turn.choose('Which?', ['a', 'b'], timeout=20, default='b')}"

    clock = house.clock
    assert isinstance(clock, ManualClock)
    await house.start(made(work))
    task = await house.send("go")
    assert asked(task)[0].due
    for seconds in (10, 20):
        if restarts:
            await house.die()
        clock.move_to(clock.now() + seconds * 1000)
        if restarts:
            await house.start(made(work))
        if seconds == 10:

            async def is_choosing() -> bool:
                found = open_requests((await house.get(task.id)).status)
                return bool(found) and found[0].kind == "choice"

            await eventually(is_choosing)
    done = await house.reaches(task.id, S.COMPLETED)
    assert text(done) == "b"
    assert "Continuing without an answer." in [said.text for said in done.history]


async def test_an_answer_in_time_ends_the_alarm(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        first = await turn.ask("First?", timeout=10)
        return f"{first.text} {(await turn.ask('Second?')).text}"

    clock = house.clock
    assert isinstance(clock, ManualClock)
    await house.start(made(work))
    task = await house.send("go")
    await house.send("one", task=task.id)
    clock.move_to(clock.now() + 100_000)
    await house.engine.sweep()
    await house.restart()
    assert (await house.store.overdue("tester", clock.now())) == []
    assert text(await house.send("two", task=task.id)) == "one two"


async def test_the_deadline_of_a_task_ends_it_though_a_question_has_more_time(house: House) -> None:
    agent = Agent("Tester", "Is tested.")

    @agent.skill(deadline=5)
    async def work(text: str, turn: Turn) -> str:
        return (await turn.ask("Who?", timeout=100)).text

    clock = house.clock
    assert isinstance(clock, ManualClock)
    await house.start(agent)
    task = await house.send("go")
    await house.die()
    clock.move_to(clock.now() + 6_000)
    await house.start(agent)
    done = await house.reaches(task.id, S.FAILED)
    assert done.status.message is not None
    assert done.status.message.text == "The task did not end in time."


# What else comes


@ONE_STORE
async def test_what_is_said_beside_a_request_leaves_it_open(house: House) -> None:
    gate = asyncio.Event()

    async def work(text: str, turn: Turn) -> str:
        async def talk() -> None:
            await gate.wait()
            await turn.say("Still here")

        found, _ = await asyncio.gather(turn.tool("look"), talk())
        return found

    await house.start(made(work))
    task = await house.send("go")
    (before,) = asked(task)
    gate.set()

    async def is_said() -> bool:
        said = (await house.get(task.id)).status.message
        return said is not None and said.text == "Still here"

    await eventually(is_said)
    (request,) = asked(await house.get(task.id))
    assert request.request_id == before.request_id
    assert text(await house.send(reply(task, (request, "L")))) == "L"


@ONE_STORE
async def test_an_answer_by_id_is_no_argument_of_the_skill(house: House) -> None:
    """Two answers of one moment: the second comes while the code works on the first."""

    async def work(number: int, turn: Turn) -> str:
        one, two = await asyncio.gather(turn.tool("a"), turn.tool("b"))
        return f"{one} {two}"

    await house.start(made(work))
    task = await house.send("1")
    first, second = asked(task)
    await asyncio.gather(
        house.send(reply(task, (first, {"x": 1})), wait=False),
        house.send(reply(task, (second, {"y": 2})), wait=False),
    )
    assert text(await house.reaches(task.id, S.COMPLETED)) == "{'x': 1} {'y': 2}"
