"""The tool with which a model asks the person, and answers as the R system spells them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.serving import app_of
from harness.waiting import within

from dragoman import Agent, App, Client, Settings, TaskState, Turn
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelRequest
from dragoman.agents.request_input import MAX_PROMPT, RequestInput
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall
from dragoman.client.requests import requests_of
from dragoman.config import StoreSettings
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.requests import narrowed, open_requests, replies

FORM = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def results(request: ModelRequest) -> str:
    return " | ".join(said.text for said in request.messages if said.role == "tool")


def asking(*asked: dict[str, Any]) -> Agent:
    calls = [ToolCall(f"c{n}", "request_input", one) for n, one in enumerate(asked)]
    return AgentLoop(ScriptedModel(calls, results), tools=[RequestInput()]).agent("L", "Thinks.")


def inputs(**values: Any) -> list[Part]:
    data = {"inputs": [{"inputId": name, "value": value} for name, value in values.items()]}
    return [Part(data=data)]


def user_message(parts: list[Part]) -> Message:
    return Message(MessageId("m"), Role.USER, parts)


async def test_a_model_asks_for_four_kinds_of_input_and_one_message_answers_them(
    tmp_path: Path,
) -> None:
    """R-045, M-022: also when the process that asked is gone."""
    asked: list[dict[str, Any]] = [
        {"type": "confirmation", "prompt": "Sure?"},
        {"type": "clarification", "prompt": "Where to?"},
        {"type": "selection", "prompt": "Which?", "options": ["red", "blue"]},
        {"type": "data", "prompt": "Who?", "schema": FORM},
    ]
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db")))
    async with Client(app=App(asking(*asked), settings=settings)) as client:
        answer = await within(client.send("x"))
        assert answer.state is TaskState.INPUT_REQUIRED
        assert answer.task is not None
        requests = open_requests(answer.task.status)
    assert [one.kind for one in requests] == ["confirmation", "text", "choice", "form"]
    assert requests[2].choices == ["red", "blue"] and requests[3].schema == FORM
    said: list[Any] = [True, "Oslo", "blue", {"age": 7}]
    values = dict(zip((one.request_id for one in requests), said, strict=True))
    async with Client(app=App(asking(*asked), settings=settings)) as client:
        answer = await within(client.send(inputs(**values), task_id=answer.task_id))
    assert answer.state is TaskState.COMPLETED
    assert answer.text == 'yes | Oslo | blue | {"age":7}'


async def test_a_plain_message_answers_what_a_model_asked() -> None:
    """R-045: the oldest question, as questions of an author's code are answered."""
    app = app_of(asking({"type": "confirmation", "prompt": "Sure?"}))
    async with Client(app=app) as client:
        answer = await within(client.send("x"))
        answer = await within(client.send("perhaps", task_id=answer.task_id))
        assert answer.state is TaskState.INPUT_REQUIRED
        assert answer.text.startswith("That does not fit")
        answer = await within(client.send("no", task_id=answer.task_id))
    assert answer.text == "no"


@pytest.mark.parametrize(
    ("asked", "result", "read"),
    [
        ({"type": "confirmation"}, {"value": True}, "yes"),
        ({"type": "clarification"}, "Oslo", "Oslo"),
        ({"type": "clarification"}, {"city": "Oslo"}, '{"city":"Oslo"}'),
        ({"type": "selection", "options": ["red", "blue"]}, {"value": "blue"}, "blue"),
        ({"type": "data", "schema": FORM}, {"value": {"age": 7}}, '{"age":7}'),
    ],
)
async def test_a_model_reads_the_result_and_not_the_words_around_it(
    asked: dict[str, Any], result: Any, read: str
) -> None:
    """R-041, R-045."""
    async with Client(app=app_of(asking({"prompt": "?"} | asked))) as client:
        answer = await within(client.send("x"))
        (request,) = requests_of(answer)
        told = Part(data={"toolUseId": request.request_id, "result": result})
        parts = [Part(text="Here is what you asked for."), told]
        answer = await within(client.send(parts, task_id=answer.task_id))
    assert answer.text == read


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"type": "riddle", "prompt": "?"}, "Invalid enum value"),
        ({"type": "clarification"}, "missing required field"),
        ({"type": "clarification", "prompt": " "}, "prompt has 1 to 100000 characters"),
        (
            {"type": "clarification", "prompt": "x" * (MAX_PROMPT + 1)},
            "prompt has 1 to 100000 characters",
        ),
        ({"type": "selection", "prompt": "Which?"}, "a selection needs options"),
        ({"type": "selection", "prompt": "Which?", "options": ["a", "a"]}, "no two alike"),
        ({"type": "data", "prompt": "?", "schema": {"pattern": "(a+)+$"}}, "leave out pattern"),
        (
            {"type": "data", "prompt": "?", "schema": {"items": {"$ref": "#/a"}}},
            "leave out $ref",
        ),
        ({"type": "data", "prompt": "?", "schema": {"minimum": "x"}}, "minimum has no value"),
        (
            {"type": "data", "prompt": "?", "schema": {"properties": {"a": 5}}},
            "JSON Schemas are objects",
        ),
    ],
)
async def test_what_cannot_be_asked_is_told_to_the_model(asked: dict[str, Any], says: str) -> None:
    async with Client(app=app_of(asking(asked))) as client:
        answer = await within(client.send("x"))
    assert answer.state is TaskState.COMPLETED
    assert says in answer.text


async def test_a_prompt_of_the_longest_length_is_asked() -> None:
    prompt = "x" * MAX_PROMPT
    async with Client(app=app_of(asking({"type": "clarification", "prompt": prompt}))) as client:
        answer = await within(client.send("x"))
    assert answer.state is TaskState.INPUT_REQUIRED and answer.text == prompt


def test_a_part_has_at_most_twenty_inputs() -> None:
    """R-045."""
    twenty = {f"q{n}": n for n in range(20)}
    found = replies(user_message(inputs(**twenty)))
    assert {reply.request_id: reply.result for reply in found} == twenty
    assert replies(user_message(inputs(**twenty, q20=20))) == []
    for data in ({"inputs": {"a": 1}}, {"inputs": ["a"]}, {"inputs": [{"inputId": "a"}]}):
        assert replies(user_message([Part(data=data)])) == []


async def test_each_question_is_given_its_own_input_alone() -> None:
    """R-045: the other ones of a part may be secrets."""
    assert narrowed(user_message(inputs(a=1, b="secret")), "a").parts == inputs(a=1)
    agent = Agent("Two", "Asks twice.")

    @agent.skill
    async def run(text: str, turn: Turn) -> str:
        first, second = await asyncio.gather(turn.ask("a?"), turn.ask("b?"))
        return f"{first.text}/{second.text}"

    async with Client(app=app_of(agent)) as client:
        answer = await within(client.send("x"))
        assert answer.task is not None
        one, two = (request.request_id for request in open_requests(answer.task.status))
        answer = await within(client.send(inputs(**{two: "2", one: "1"}), task_id=answer.task_id))
    assert answer.text == "1/2"
