"""Tools of a loop that its caller executes."""

import asyncio
from pathlib import Path
from typing import Any

from harness.serving import app_of
from harness.waiting import within

from dragoman import Agent, App, Client, Settings, TaskState
from dragoman.agents.client_tools import ClientTools
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelRequest
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import Tool, ToolCall
from dragoman.config import StoreSettings
from dragoman.errors import RequestFailed
from dragoman.model.requests import Request, open_requests

LOOK = Tool(name="look", description="Looks at the caller's screen.")


def results(request: ModelRequest) -> str:
    return ", ".join(said.text for said in request.messages if said.role == "tool")


def agent(runs: list[int]) -> Agent:
    def add(a: int) -> int:
        runs.append(a)
        return a + 1

    calls = [ToolCall(f"c{n}", "look", {"n": n}) for n in range(3)]
    model = ScriptedModel([ToolCall("c9", "add", {"a": 1}), *calls], results)
    loop = AgentLoop(model, tools=[add, ClientTools(LOOK)])
    return loop.agent("Loop", "Thinks.")


async def test_the_caller_executes_its_tools_beside_each_other() -> None:
    barrier = asyncio.Barrier(3)

    async def look(n: int) -> Any:
        await within(barrier.wait())
        if n == 1:
            raise RequestFailed("the screen is off")
        return f"seen {n}" if n else {"seen": n}

    app = app_of(agent([]))
    async with Client(app=app, tools={"look": look}) as client:
        answer = await within(client.send("x"))
    failed = "RequestFailed: The tool look has no answer: the screen is off"
    assert answer.text == f'2, {{"seen":0}}, {failed}, seen 2'


async def test_results_that_come_in_any_order_after_restarts_reach_their_calls(
    tmp_path: Path,
) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db")))
    runs: list[int] = []
    requests: list[Request] = []
    task_id = text = ""
    # The failed one is answered first, and the process ends after each answer.
    for number in (None, 1, 2, 0):
        app = App(agent(runs), settings=settings)
        async with app.running(), Client(app=app) as client:
            if number is None:
                answer = await within(client.send("x"))
                assert answer.task is not None
                requests = open_requests(answer.task.status)
                task_id = answer.task_id
            else:
                request = requests[number]
                parts = request.failed("no") if number == 1 else request.answered(f"seen {number}")
                answer = await within(client.send(parts, task_id=task_id))
            state, text = answer.state, answer.text
        assert state is (TaskState.INPUT_REQUIRED if number != 0 else TaskState.COMPLETED)
    failed = "RequestFailed: The tool look has no answer: no"
    assert text == f"2, seen 0, {failed}, seen 2"
    assert runs == [1]


async def test_a_plain_message_cancels_no_open_tool_and_the_model_reads_it_next() -> None:
    """R-045: who wants to go on without a tool says so by its id."""
    calls = [ToolCall(f"c{n}", "look", {"n": n}) for n in range(2)]

    def begin(request: ModelRequest) -> Any:
        return calls if request.messages[-1].text == "x" else "Fine."

    model = ScriptedModel(begin, "Done.")
    loop = AgentLoop(model, tools=[ClientTools(LOOK)])
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        answer = await within(client.send("x"))
        answer = await within(client.send("never mind", task_id=answer.task_id))
        assert answer.state is TaskState.INPUT_REQUIRED
        assert answer.task is not None
        open_now = open_requests(answer.task.status)
        assert len(open_now) == 2
        parts = [*open_now[0].failed("not needed"), *open_now[1].failed("not needed")]
        answer = await within(client.send(parts, task_id=answer.task_id))
        answer = await within(client.wait(answer.task_id, until="terminal"))
    failed = "RequestFailed: The tool look has no answer: not needed"
    told = [said.text for said in model.requests[1].messages if said.role == "tool"]
    assert told == [failed, failed]
    assert model.requests[2].messages[-1].text == "never mind"
    assert answer.state is TaskState.COMPLETED
