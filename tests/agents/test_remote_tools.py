"""Other agents as tools of a loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Site, app_of, serving
from harness.waiting import eventually, within

from dragoman import Agent, Budget, Client, TaskFailed, TaskState, Turn
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelRequest
from dragoman.agents.remote_tools import RemoteAgents
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall
from dragoman.authoring import agent_call
from dragoman.errors import ConfigError
from dragoman.model.events import StatusUpdate
from dragoman.model.message import Message

NAME = "agent__helper__invoke"


def helper(runs: list[str], gate: asyncio.Event | None = None) -> Agent:
    agent = Agent("Helper", "Helps with everything.")

    @agent.skill
    async def help(text: str, turn: Turn) -> str:
        runs.append(text)
        if text == "fail":
            raise TaskFailed("I cannot.")
        if "late" in text and gate is not None:
            await gate.wait()
        if text.startswith("ask"):
            return f"got {(await turn.ask(f'What, {text}?')).text}"
        await turn.say(f"On {text}")
        if gate is not None:
            await gate.wait()
        return f"helped {text}"

    return agent


def calls(*prompts: str) -> list[ToolCall]:
    return [ToolCall(f"c{n}", NAME, {"prompt": prompt}) for n, prompt in enumerate(prompts)]


def results(request: ModelRequest) -> str:
    return ", ".join(said.text for said in request.messages if said.role == "tool")


def chief(url: str, *prompts: str, **more: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(calls(*prompts), results)
    budget = more.pop("budget", None)
    loop = AgentLoop(model, tools=[RemoteAgents(helper=url)], **more)
    return loop.agent("Chief", "Has others work.", budget=budget), model


@asynccontextmanager
async def calling(agent: Agent, store: str = "memory:") -> AsyncGenerator[Client]:
    app = app_of(agent, store=store)
    async with app.running(), Client(app=app) as client:
        yield client


async def test_an_agent_is_a_tool_described_by_its_card() -> None:
    runs: list[str] = []
    async with serving(helper(runs)) as there:
        agent, model = chief(there.url, "a", "b")
        async with calling(agent) as client:
            answer = await within(client.send("x"))
            assert answer.text == "helped a, helped b"
            assert sorted(runs) == ["a", "b"]
        (tool,) = model.requests[0].tools
        assert tool.name == NAME and tool.description.endswith("Helps with everything.")
        assert tool.schema["required"] == ["prompt"]
        children = (await there.call("ListTasks", {}))["tasks"]
        told = await there.call("GetTask", {"id": children[0]["id"]})
        assert told["history"][0]["referenceTaskIds"] == [answer.task_id]


async def test_what_the_other_agent_says_is_said_here_with_its_path() -> None:
    async with serving(helper([])) as there, calling(chief(there.url, "a")[0]) as client:
        answer = await within(client.send("x"))
        assert answer.task is not None
        (said,) = [m for m in answer.task.history if m.text == "On a"]
        assert said.metadata["parentTaskId"] == answer.task_id
        assert said.metadata["path"] == ["agent:helper"]


def through(name: str, url: str) -> Agent:
    """An agent that has the one below do it."""
    model = ScriptedModel(ToolCall("1", f"agent__{name}__invoke", {"prompt": "a"}), "done")
    return AgentLoop(model, tools=[RemoteAgents({name: url})]).agent("Through", "Passes it on.")


async def test_what_an_agent_far_below_says_has_all_of_its_path() -> None:
    async with (
        serving(helper([])) as leaf,
        serving(through("leaf", leaf.url)) as middle,
        calling(through("middle", middle.url)) as client,
    ):
        paths = [said.metadata.get("path") for said in await within(said_by(client))]
        assert paths == [["agent:middle", "agent:leaf"]]


@pytest.mark.parametrize("path", ["agent:x", {"a": 1}, [1, None, "agent:x", ["y"]]])
async def test_a_path_that_is_none_breaks_nothing(path: Any) -> None:
    agent = Agent("Odd", "Says odd things.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        await turn.say("begun", metadata={"path": path})
        return "done"

    async with serving(agent) as there, calling(through("odd", there.url)) as client:
        (said,) = await within(said_by(client))
        assert said.metadata["path"] == ["agent:odd", *(["agent:x"] if len(path) == 4 else [])]


async def said_by(client: Client) -> list[Message]:
    """Return what an agent says while it works."""
    return [
        event.status.message
        async for event in client.stream("go")
        if isinstance(event, StatusUpdate)
        and event.status.state is TaskState.WORKING
        and event.status.message is not None
    ]


async def test_questions_of_several_agents_go_to_the_caller_in_the_order_of_the_calls() -> None:
    gate = asyncio.Event()
    async with (
        serving(helper([], gate)) as there,
        calling(chief(there.url, "ask late", "ask early")[0]) as client,
    ):
        begun = await within(client.send("x", wait=False))
        await asked(there)
        gate.set()
        answer = await within(client.wait(begun.task_id))
        assert answer.state is TaskState.INPUT_REQUIRED and answer.text == "What, ask late?"
        answer = await within(client.send("this", task_id=answer.task_id))
        assert answer.text == "What, ask early?"
        answer = await within(client.send("that", task_id=answer.task_id))
        assert answer.text == "got this, got that"


async def test_a_secret_that_another_agent_asks_for_is_a_secret_here_too(tmp_path: Path) -> None:
    agent = Agent("Helper", "Helps.")

    @agent.skill
    async def help(text: str, turn: Turn) -> str:
        return f"{len((await turn.ask('Password?', sensitive=True)).text)} characters"

    async with (
        serving(agent) as there,
        calling(chief(there.url, "log in")[0], str(tmp_path / "chief.db")) as client,
    ):
        answer = await within(client.send("x"))
        assert answer.state is TaskState.INPUT_REQUIRED and answer.text == "Password?"
        answer = await within(client.send("hunter2-hunter2", task_id=answer.task_id))
        assert answer.text == "15 characters"
        seen = await within(client.get(answer.task_id))
        assert "hunter2" not in repr(seen)
    assert not [one for one in tmp_path.iterdir() if b"hunter2" in one.read_bytes()]


async def asked(site: Site) -> None:
    """Wait until a task there waits for an answer."""

    async def is_asked() -> bool:
        tasks = (await site.call("ListTasks", {}))["tasks"]
        return any("INPUT_REQUIRED" in task["status"]["state"] for task in tasks)

    await eventually(is_asked)


async def test_an_agent_that_fails_or_is_not_there_is_a_failed_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_call, "PATIENCE", 0.0)
    async with serving(helper([])) as there:
        agent, model = chief(there.url, "fail")
        async with calling(agent) as client:
            assert (await within(client.send("x"))).text == "I cannot."
        assert model.requests[1].messages[-1].is_error
        gone = there.url
    agent, model = chief(gone, "a")
    async with calling(agent) as client:
        assert (await within(client.send("x"))).state is TaskState.COMPLETED
    assert model.requests[1].messages[-1].is_error
    assert model.requests[0].tools[0].description == "Has the agent helper do something."


async def test_calls_beyond_the_budget_are_failed_results_in_a_second_run_too(
    tmp_path: Path,
) -> None:
    """Refused calls of one agent are failures of one name: each must keep its own place."""
    runs: list[str] = []
    store = str(tmp_path / "chief.db")
    gate, reached = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        reached.set()
        await gate.wait()
        return "waited"

    def agent(url: str) -> Agent:
        asked = [*calls("a", "b", "c"), ToolCall("c9", "add", {"a": 1})]
        model = ScriptedModel(asked, ToolCall("w", "wait"), results)
        loop = AgentLoop(model, tools=[RemoteAgents(helper=url), wait, add], max_failures=9)
        return loop.agent("Chief", "Has others work.", budget=Budget(calls=1))

    expected = "helped a, BudgetExceeded: The task may make 1 calls, "
    expected += "BudgetExceeded: The task may make 1 calls, 2, waited"
    async with serving(helper(runs)) as there:
        async with calling(agent(there.url), store) as client:
            begun = await within(client.send("x", wait=False))
            await within(reached.wait())
        gate.set()
        async with calling(agent(there.url), store) as client:
            answer = await within(client.wait(begun.task_id))
            assert answer.text == expected
    assert runs == ["a"]


async def test_a_call_that_failed_keeps_its_place_when_a_tool_calls_the_same_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_call, "PATIENCE", 0.0)
    store = str(tmp_path / "chief.db")
    gate, reached = asyncio.Event(), asyncio.Event()
    async with serving(helper([])) as there:
        gone = there.url

    async def again(turn: Turn) -> str:
        return (await turn.call(gone, "a")).text

    async def wait() -> str:
        reached.set()
        await gate.wait()
        return "waited"

    def agent() -> Agent:
        model = ScriptedModel(
            [*calls("a"), ToolCall("c9", "again")], ToolCall("w", "wait"), results
        )
        loop = AgentLoop(model, tools=[RemoteAgents(helper=gone), again, wait])
        return loop.agent("Chief", "Has others work.")

    async with calling(agent(), store) as client:
        begun = await within(client.send("x", wait=False))
        await within(reached.wait())
    gate.set()
    async with calling(agent(), store) as client:
        answer = await within(client.wait(begun.task_id))
        assert answer.state is TaskState.COMPLETED
        assert answer.text.count("Unreachable") == 2 and answer.text.endswith(", waited")


def add(a: int) -> int:
    return a + 1


async def test_a_turn_that_goes_on_takes_up_the_tasks_that_are_under_way(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    store = str(tmp_path / "chief.db")
    async with serving(helper(runs, gate)) as there:
        async with calling(chief(there.url, "a", "b")[0], store) as client:
            begun = await within(client.send("x", wait=False))
            await both(there)
            await linked(client, begun.task_id)
        gate.set()
        async with calling(chief(there.url, "a", "b")[0], store) as client:
            answer = await within(client.wait(begun.task_id))
            assert answer.text == "helped a, helped b"
    assert sorted(runs) == ["a", "b"]


async def both(site: Site) -> None:
    async def are_there() -> bool:
        return await site.total() == 2

    await eventually(are_there)


async def linked(client: Client, task_id: str) -> None:
    """Wait until what both agents said is on record here, which comes after their ids."""

    async def are_said() -> bool:
        task = await client.get(task_id)
        said = [*task.history, *([task.status.message] if task.status.message else [])]
        return sum(message.text.startswith("On ") for message in said) == 2

    await eventually(are_said)


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="rename"):
        RemoteAgents({"a b": "https://a.example.com", "a_b": "https://b.example.com"})
