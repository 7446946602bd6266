"""Agents that have other agents do something, as steps of their tasks."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.processes import run
from harness.serving import Site, app_of, serving
from harness.waiting import eventually, within

from dragoman import Agent, Answer, App, Budget, BudgetExceeded, Client, Settings, TaskState, Turn
from dragoman.client.requests import requests_of
from dragoman.config import StoreSettings
from dragoman.errors import A2AError, ConfigError
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message, Part
from dragoman.model.requests import Request
from dragoman.server.operator.tasks.trees import children_of
from dragoman.stores.interface import Survey


def helper(runs: list[str], gate: asyncio.Event | None = None) -> Agent:
    agent = Agent("Helper", "Helps.")

    @agent.skill
    async def help(text: str, turn: Turn) -> str:
        runs.append(text)
        if text == "ask":
            return f"got {(await turn.ask('What?')).text}"
        if gate is not None:
            await gate.wait()
        return f"helped {text}"

    return agent


def chief(url: str, seen: list[Any], budget: Budget | None = None) -> Agent:
    agent = Agent("Chief", "Has others work.", budget=budget)

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        first = await turn.call(url, text)
        seen.append(first)
        return f"chief: {first.text}"

    @agent.skill
    async def twice(text: str, turn: Turn) -> str:
        one, two = await asyncio.gather(turn.call(url, f"{text}1"), turn.call(url, f"{text}2"))
        return f"{one.text} and {two.text}"

    @agent.skill
    async def many(text: str, turn: Turn) -> str:
        for number in range(5):
            try:
                await turn.call(url, f"{number}")
            except BudgetExceeded as error:
                return f"{number}: {error.reason}"
        return "all"

    @agent.skill
    async def watch(text: str, turn: Turn) -> str:
        events = [type(event).__name__ async for event in turn.follow(url, text)]
        return " ".join(events)

    return agent


async def given(there: Site) -> None:
    """Wait until an agent was given a task."""
    await eventually(there.total)


async def children(here: Site, task_id: str) -> list[str]:
    """Return where the tasks are that the code of a task made, as far as they are recorded."""
    store = here.app.store
    (head,) = await store.survey(Survey(limit=1, task_id=TaskId(task_id)))
    return [child.url for child in await children_of(store, head)]


async def test_the_answer_of_another_agent_is_a_step(tmp_path: Path) -> None:
    runs, seen = list[str](), list[Any]()
    async with (
        serving(helper(runs)) as there,
        serving(chief(there.url, seen)) as here,
        Client(here.url) as client,
    ):
        answer = await within(client.send("x"))
        assert answer.text == "chief: helped x"
        assert isinstance(seen[0], Answer)
        (child,) = (await there.call("ListTasks", {}))["tasks"]
        told = await there.call("GetTask", {"id": child["id"]})
        assert told["history"][0]["referenceTaskIds"] == [answer.task_id]
        assert told["metadata"]["depth"] == 2


def announcing(url: str) -> Agent:
    agent = Agent("Herald", "Says what it has others do.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        first = await turn.call(url, text, announce=True)
        if text == "again":
            await turn.ask("Go on?")
        await turn.call(url, text)
        return first.text

    return agent


async def test_the_caller_is_told_when_another_agent_has_begun_and_answered() -> None:
    async with (
        serving(helper([])) as there,
        serving(announcing(there.url)) as here,
        Client(here.url) as client,
    ):
        stream = client.stream("x")
        said: list[Message] = []

        async def read() -> None:
            async for event in stream:
                if isinstance(event, StatusUpdate) and event.status.message is not None:
                    assert event.status.state is TaskState.WORKING
                    said.append(event.status.message)

        await within(read())
        assert [one.text for one in said] == ["Helper has begun.", "Helper has answered."]
        children = {task["id"] for task in (await there.call("ListTasks", {}))["tasks"]}
        (child,) = said[0].reference_task_ids
        assert child in children and said[1].reference_task_ids == [child]
        # Whoever follows knows which tasks belong together, and so does who reads it later.
        assert stream.references == stream.answer.references == {stream.task_id: [child]}
        assert Answer(await client.get(stream.task_id)).references == stream.references
        late = await within(client.send("y"))
        assert [*late.references] == [late.task_id] and len(late.references[late.task_id]) == 1


async def test_what_was_told_of_a_call_is_not_told_again_by_code_that_runs_again(
    tmp_path: Path,
) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "herald.db")))
    async with serving(helper([])) as there:
        app = App(announcing(there.url), settings=settings)
        async with app.running(), Client(app=app) as client:
            asked = await within(client.send("again"))
            assert asked.state is TaskState.INPUT_REQUIRED
        app = App(announcing(there.url), settings=settings)
        async with app.running(), Client(app=app) as client:
            done = await within(client.send("yes", task_id=asked.task_id))
            assert done.task is not None
            told = [one.text for one in done.task.history if one.text.startswith("Helper")]
            assert told == ["Helper has begun.", "Helper has answered."]


async def test_a_question_is_no_answer_to_tell_of() -> None:
    async with (
        serving(helper([])) as there,
        serving(announcing(there.url)) as here,
        Client(here.url) as client,
    ):
        asked = await within(client.send("ask"))
        assert asked.task is not None and asked.text == "What?"
        assert [one.text for one in asked.task.history] == ["ask", "Helper has begun."]


async def test_calls_side_by_side_are_steps_of_their_own(tmp_path: Path) -> None:
    runs = list[str]()
    async with (
        serving(helper(runs)) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        answer = await within(client.send("y", metadata={"skillId": "twice"}))
        assert answer.text == "helped y1 and helped y2"


async def test_a_question_of_the_other_agent_goes_to_the_caller(tmp_path: Path) -> None:
    runs = list[str]()
    async with (
        serving(helper(runs)) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        asked = await within(client.send("ask"))
        assert asked.state is TaskState.INPUT_REQUIRED and asked.text == "What?"
        done = await within(client.send("this", task_id=asked.task_id))
        assert done.text == "chief: got this"
        assert runs == ["ask"]


@pytest.mark.parametrize("result", ["this", {"value": "this"}])
@pytest.mark.parametrize("asks", ["ask", "choose"])
async def test_a_result_with_words_around_it_reaches_the_other_agent(
    asks: str, result: Any
) -> None:
    """R-041: whether or not its question has an id of its own."""
    agent = Agent("Asker", "Asks.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        if text == "choose":
            return await turn.choose("What?", ["this", "that"])
        return (await turn.ask("What?")).text

    async with (
        serving(agent) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        asked = await within(client.send(asks))
        (request,) = requests_of(asked)
        answer = Part(data={"toolUseId": request.request_id, "result": result})
        parts = [Part(text="Here it is."), answer]
        done = await within(client.send(parts, task_id=asked.task_id))
    assert done.text == "chief: this"


def inquirer(name: str, gate: asyncio.Event | None = None) -> Agent:
    agent = Agent(name, "Asks.")

    @agent.skill
    async def help(text: str, turn: Turn) -> str:
        if gate is not None:
            await gate.wait()
        return f"{name}: {(await turn.ask(f'{name}?', sensitive=True)).text}"

    return agent


def both(first: str, second: str) -> Agent:
    agent = Agent("Both", "Calls two.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        one, two = await asyncio.gather(turn.call(first, text), turn.call(second, text))
        return f"{one.text}, {two.text}"

    return agent


@pytest.mark.parametrize("restarts", [False, True])
async def test_each_of_two_agents_that_ask_side_by_side_gets_its_own_answer(
    tmp_path: Path, restarts: bool
) -> None:
    """The second asks first, and both are answered by one message."""
    gate = asyncio.Event()
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "both.db")))
    async with serving(inquirer("A", gate)) as a, serving(inquirer("B")) as b:
        app = App(both(a.url, b.url), settings=settings)
        async with app.running(), Client(app=app) as client:
            begun = await within(client.send("x"))
            assert begun.text == "B?"
            gate.set()
            asked = await asks(client, begun.task_id, 2)
            if not restarts:
                done = await within(answer_all(client, begun.task_id, asked))
        if restarts:
            app = App(both(a.url, b.url), settings=settings)
            async with app.running(), Client(app=app) as client:
                done = await within(answer_all(client, begun.task_id, asked))
        assert done.text == "A: for A?, B: for B?"


async def test_an_answer_to_another_agent_that_comes_again_answers_nothing_else() -> None:
    careful = Agent("Careful", "Asks first.")

    @careful.skill
    async def help(text: str, turn: Turn) -> str:
        return str(await turn.confirm("May I?"))

    agent = Agent("Chief", "Has others work.")
    async with serving(careful) as there:

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            first = await turn.call(there.url, text)
            return f"{first.text} {await turn.confirm('And this?')}"

        async with serving(agent) as here, Client(here.url) as client:
            begun = await within(client.send("x"))
            (asked,) = requests_of(begun)
            again = await within(client.send(asked.answered(True), task_id=begun.task_id))
            assert [one.prompt for one in requests_of(again)] == ["And this?"]
            late = await within(client.send(asked.answered(True), task_id=begun.task_id))
            assert late.state is TaskState.INPUT_REQUIRED
            (other,) = requests_of(late)
            done = await within(client.send(other.answered(False), task_id=begun.task_id))
            assert done.text == "True False"


async def test_what_is_said_goes_to_the_agent_that_asked_first() -> None:
    gate = asyncio.Event()
    async with (
        serving(inquirer("A", gate)) as a,
        serving(inquirer("B")) as b,
        serving(both(a.url, b.url)) as here,
        Client(here.url) as client,
    ):
        begun = await within(client.send("x"))
        assert begun.text == "B?"
        gate.set()
        await asks(client, begun.task_id, 2)
        await within(client.send("for B", task_id=begun.task_id, wait=False))
        (left,) = await asks(client, begun.task_id, 1)
        assert left.prompt == "A?"
        done = await within(client.send("for A", task_id=begun.task_id))
        assert done.text == "A: for A, B: for B"


async def asks(client: Client, task_id: str, count: int) -> list[Request]:
    """Wait until a task waits for so many answers."""

    async def found() -> list[Request]:
        asked = requests_of(await client.get(task_id))
        return asked if len(asked) == count else []

    return await eventually(found)


async def answer_all(client: Client, task_id: str, asked: list[Request]) -> Answer:
    parts = [part for one in asked for part in one.answered(f"for {one.prompt}")]
    await client.send(parts, task_id=task_id)
    return await client.wait(task_id)


async def test_of_two_cards_with_one_name_each_is_its_own_agent() -> None:
    def named(word: str) -> Agent:
        agent = Agent("Helper", "Helps.")

        @agent.skill
        async def help(text: str) -> str:
            return word

        return agent

    agent = Agent("Chief", "Has others work.")
    async with (
        serving(named("one")) as first,
        serving(named("two")) as second,
        Client(first.url) as one,
        Client(second.url) as two,
    ):
        cards = [await one.look(), await two.look()]

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            return " ".join([(await turn.call(card, text)).text for card in cards])

        async with serving(agent) as here, Client(here.url) as client:
            answer = await within(client.send("x"))
            assert answer.text == "one two"
            places = await children(here, answer.task_id)
            assert places == [card.supported_interfaces[0].url for card in cards]


async def test_a_cancel_reaches_an_agent_that_waits_for_an_answer() -> None:
    async with (
        serving(helper([])) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        asked = await within(client.send("ask"))
        assert asked.state is TaskState.INPUT_REQUIRED
        await client.cancel(asked.task_id)
        await all_canceled(there)


async def all_canceled(there: Site) -> None:
    async def is_so() -> bool:
        tasks = (await there.call("ListTasks", {}))["tasks"]
        return all(task["status"]["state"] == "TASK_STATE_CANCELED" for task in tasks)

    await eventually(is_so)


def thrifty(url: str, budget: Budget) -> Agent:
    """Tries until its budget is spent, asks, and tries again."""
    agent = Agent("Thrifty", "Has a budget.", budget=budget)

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        told: list[str] = []
        for number in range(4):
            if number == 3:
                await turn.ask("Go on?")
            try:
                await turn.call(url, "x", task_id="unknown" if text == "fail" else "")
                told.append("made")
            except BudgetExceeded as error:
                told.append(error.reason)
            except A2AError:
                told.append("failed")
        return " ".join(told)

    return agent


@pytest.mark.parametrize(
    ("budget", "text", "came"),
    [
        (Budget(calls=2), "fail", "failed failed INVOCATION_LIMIT INVOCATION_LIMIT"),
        (Budget(calls=2), "do", "made made INVOCATION_LIMIT INVOCATION_LIMIT"),
        (Budget(seconds=1e-6), "do", "TIME_LIMIT TIME_LIMIT TIME_LIMIT TIME_LIMIT"),
    ],
)
async def test_a_budget_is_no_larger_for_a_process_that_ended(
    tmp_path: Path, budget: Budget, text: str, came: str
) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "thrifty.db")))
    async with serving(helper([])) as there:
        app = App(thrifty(there.url, budget), settings=settings)
        async with app.running(), Client(app=app) as client:
            asked = await within(client.send(text))
            assert asked.state is TaskState.INPUT_REQUIRED
        app = App(thrifty(there.url, budget), settings=settings)
        async with app.running(), Client(app=app) as client:
            done = await within(client.send("yes", task_id=asked.task_id))
            assert done.text == came


async def test_a_budget_is_that_of_the_task_and_not_of_each_message() -> None:
    gate, runs = asyncio.Event(), list[str]()
    async with (
        serving(helper(runs, gate)) as there,
        serving(chief(there.url, [], Budget(calls=1))) as here,
        Client(here.url) as client,
    ):
        begun = await within(client.send("x", wait=False))
        await given(there)
        await within(client.send("y", task_id=begun.task_id, wait=False))
        gate.set()
        done = await within(client.wait(begun.task_id))
        assert done.state is TaskState.FAILED
        assert runs == ["x"]


async def test_what_the_other_agent_does_is_seen_as_it_does_it(tmp_path: Path) -> None:
    async with (
        serving(helper([])) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        answer = await within(client.send("z", metadata={"skillId": "watch"}))
        assert answer.text.startswith("Task") and "ArtifactUpdate" in answer.text


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(calls=2), "2: INVOCATION_LIMIT"),
        (Budget(cooldown=60), "1: COOLDOWN"),
        (Budget(agents=1), "all"),
        (Budget(agents=0), "0: UNIQUE_AGENT_LIMIT"),
    ],
)
async def test_a_task_spends_no_more_than_its_budget(budget: Budget, said: str) -> None:
    async with (
        serving(helper([])) as there,
        serving(chief(there.url, [], budget)) as here,
        Client(here.url) as client,
    ):
        answer = await within(client.send("", metadata={"skillId": "many"}))
        assert answer.text == said


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": -1},
        {"calls": "x"},
        {"calls": True},
        {"agents": 1.5},
        {"depth": None},
        {"depth": -1},
        {"seconds": float("nan")},
        {"seconds": -1},
        {"seconds": "x"},
        {"cooldown": float("nan")},
        {"cooldown": float("inf")},
        {"cooldown": None},
        {"money": "NaN"},
    ],
)
def test_a_budget_of_no_amount_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"Budget\({next(iter(wrong))}="):
        Budget(**wrong)


# What one task says to the next


def hurried(url: str, seconds: float) -> Agent:
    agent = Agent("Hurried", "Has little time.")

    @agent.skill(deadline=seconds)
    async def work(text: str, turn: Turn) -> str:
        return (await turn.call(url, text)).text

    return agent


async def test_what_others_are_given_has_the_deadline_of_the_task() -> None:
    times = list[datetime | None]()
    there_agent = Agent("Helper", "Helps.")

    @there_agent.skill(deadline=3600)
    async def help(text: str, turn: Turn) -> str:
        times.append(turn.deadline)
        return "helped"

    async with (
        serving(there_agent) as there,
        serving(hurried(there.url, 60)) as short,
        serving(hurried(there.url, 7200)) as long,
    ):
        for here, most in ((short, 60), (long, 3600)):
            async with Client(here.url) as client:
                assert (await within(client.send("x"))).text == "helped"
            at = times.pop()
            assert at is not None
            assert most - 30 < (at - datetime.now(UTC)).total_seconds() <= most


async def test_a_task_ends_by_the_deadline_that_its_caller_names() -> None:
    async with serving(helper([], asyncio.Event())) as there, Client(there.url) as client:
        soon = (datetime.now(UTC) + timedelta(seconds=0.5)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        late = await within(client.send("x", metadata={"dragoman/deadline": soon}))
        assert late.state is TaskState.FAILED and late.text == "The task did not end in time."


@pytest.mark.parametrize(
    "at", ["2001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"]
)
async def test_nothing_is_done_for_a_caller_whose_time_is_over(at: str) -> None:
    runs = list[str]()
    async with serving(helper(runs)) as there, Client(there.url) as client:
        late = await within(client.send("x", metadata={"dragoman/deadline": at}))
        assert late.state is TaskState.FAILED and late.text == "The task did not end in time."
        assert runs == []


@pytest.mark.parametrize("said", ["tomorrow", "2030-02-31T00:00:00Z", 5, None, ["x"], {}])
async def test_a_deadline_that_is_no_time_says_nothing(said: Any) -> None:
    async with serving(helper([])) as there, Client(there.url) as client:
        done = await within(client.send("x", metadata={"dragoman/deadline": said}))
        assert done.text == "helped x"


async def test_calls_do_not_go_deeper_than_they_may() -> None:
    async with (
        serving(helper([])) as there,
        serving(chief(there.url, [], Budget(depth=3))) as here,
        Client(here.url) as client,
    ):
        assert (await within(client.send("x", metadata={"depth": 3}))).text
        deep = await within(client.send("x", metadata={"depth": 4}))
        assert deep.state is TaskState.FAILED
        assert deep.text == "Invocation depth limit exceeded."


async def test_a_cancel_reaches_the_agents_below() -> None:
    gate, runs = asyncio.Event(), list[str]()
    async with (
        serving(helper(runs, gate)) as there,
        serving(chief(there.url, [])) as here,
        Client(here.url) as client,
    ):
        stream = client.stream("x")

        async def begun() -> None:
            async for _ in stream:
                if runs:
                    return
                await asyncio.sleep(0)

        following = asyncio.create_task(begun())
        await given(there)
        await client.cancel(stream.task_id)
        await all_canceled(there)
        following.cancel()


async def test_code_that_runs_again_goes_on_with_the_task_that_is_under_way(
    tmp_path: Path,
) -> None:
    gate, runs = asyncio.Event(), list[str]()
    store = str(tmp_path / "chief.db")
    async with serving(helper(runs, gate)) as there:
        async with (
            serving(chief(there.url, []), store=store) as here,
            Client(here.url) as client,
        ):
            begun = await within(client.send("x", wait=False))
            await given(there)
            # Recorded before the process ends.
            await eventually(lambda: children(here, begun.task_id))
        gate.set()
        app = app_of(chief(there.url, []), store=store)
        async with app.running(), Client(app=app) as client:
            answer = await within(client.wait(begun.task_id))
            assert answer.text == "chief: helped x"
        assert runs == ["x"]


async def test_a_tree_shows_what_others_were_given(tmp_path: Path) -> None:
    there_store, here_store = str(tmp_path / "there.db"), str(tmp_path / "here.db")
    async with (
        serving(helper([]), store=there_store) as there,
        serving(chief(there.url, []), store=here_store) as here,
    ):
        async with Client(here.url) as client:
            answer = await within(client.send("y", metadata={"skillId": "twice"}))
        words = ("tasks", "tree", answer.task_id, "--store", here_store)
        alone = await asyncio.to_thread(run, *words, cwd=tmp_path)
        assert alone.stdout.count("elsewhere") == 2, alone.stderr
        more = (*words, "--store", there_store, "-o", "json")
        both = await asyncio.to_thread(run, *more, cwd=tmp_path)
        tree = json.loads(both.stdout)
        assert tree["state"] == "TASK_STATE_COMPLETED" and tree["agent"] == "chief"
        assert [child["state"] for child in tree["children"]] == ["TASK_STATE_COMPLETED"] * 2
        unknown = await asyncio.to_thread(
            run, "tasks", "tree", "none", "--store", here_store, cwd=tmp_path
        )
        assert unknown.returncode and "no such task" in unknown.stderr
