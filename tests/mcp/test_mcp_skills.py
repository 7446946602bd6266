"""MCP tools as skills: their names, their arguments, and what becomes of what they return."""

import asyncio
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.serving import Site, hosting, serving
from harness.waiting import within

from dragoman import Client
from dragoman.errors import ConfigError, InvalidParams
from dragoman.mcp.argument_schema import Schema
from dragoman.mcp.skills import McpAgent, McpSkill, mcp_agent, tags_of, title_of
from dragoman.mcp.tools import McpTools
from dragoman.model.task import TaskState
from tests.mcp import fifty


@asynccontextmanager
async def fifty_skills(**more: Any) -> AsyncGenerator[tuple[Site, Client]]:
    """Serve the fifty tools as an agent, and give a client of it."""
    async with hosting(fifty.server.streamable_http_app()) as url:
        tools = McpTools(f"{url}/mcp", **more)
        agent = McpAgent(tools, await within(tools.offered()))
        async with serving(agent) as site, Client(site.url) as client:
            yield site, client


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("corvid_github_star_repo", "GitHub Star Repo"),
        ("corvid_list_prs", "List PRs"),
        ("open_pr", "Open PR"),
        ("call-api", "Call API"),
        ("a2a_invoke", "A2A Invoke"),
        ("readFile", "Read File"),
        ("HTTPGet", "HTTP Get"),
        ("draw.picture", "Draw Picture"),
        ("_", "_"),
    ],
)
def test_the_name_of_a_tool_is_told_as_people_write_it(name: str, title: str) -> None:
    assert title_of(name) == title


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("corvid_github_star_repo", ["github"]),
        ("corvid_send_message", ["communication"]),
        ("a2a_invoke", ["agents"]),
        ("search_files", ["files", "search"]),
        ("corvid_frobnicate", ["general"]),
    ],
)
def test_tags_are_the_categories_of_a_tool(name: str, tags: list[str]) -> None:
    assert tags_of(name) == tags


async def test_the_card_has_every_tool_with_its_schema() -> None:
    async with fifty_skills() as (site, client):
        assert client.card.name == "fifty", "as the server calls itself"
        skills = {skill.id: skill for skill in client.card.skills}
        assert len(skills) == 50
        assert skills["corvid_github_star_repo"].name == "GitHub Star Repo"
        card = (await site.http.get("/.well-known/agent-card.json")).json()
        (schemas,) = [
            extension["params"]["schemas"]
            for extension in card["capabilities"]["extensions"]
            if "skill-schemas" in extension["uri"]
        ]
        assert schemas["add_3"] == fifty.NUMBERS


async def test_arguments_are_data_or_the_one_text() -> None:
    wanted: list[tuple[Any, str, list[str]]] = [
        ({"n": 4}, "add_3", ["7"]),
        # As callers write it who know one kind of number.
        ({"n": 4.0}, "add_3", ["7"]),
        ('{"n": 4}', "add_3", ["7"]),
        ("hello", "echo", ["hello"]),
        ({"text": "hello"}, "echo", ["hello"]),
    ]
    async with fifty_skills() as (_, client):
        for content, skill, texts in wanted:
            answer = await within(client.send(content, metadata={"skillId": skill}))
            assert answer.state is TaskState.COMPLETED
            assert [part.text for part in answer.parts if isinstance(part.text, str)] == texts


async def test_what_a_tool_returns_becomes_parts() -> None:
    async with fifty_skills() as (_, client):
        answer = await within(client.send({"n": 4}, metadata={"skillId": "add_3"}))
        assert answer.data == {"sum": 7}
        drawn = await within(client.send({}, metadata={"skillId": "draw.picture"}))
        (file,) = drawn.files
        assert (file.raw, file.media_type) == (b"\x89PNG\r\n\x1a\n", "image/png")
        failed = await within(client.send({}, metadata={"skillId": "fail"}))
        assert (failed.state, failed.text) == (TaskState.FAILED, "the tool is broken")


async def test_what_does_not_fit_is_refused_before_there_is_a_task() -> None:
    refused: list[tuple[Any, str | None, str]] = [
        ({"n": "many"}, "add_3", "arguments.n: is not of type integer"),
        ({"n": 4.5}, "add_3", "arguments.n: is not of type integer"),
        ({}, "add_3", "arguments: lacks n"),
        ("three", "add_3", "an object is needed, with n"),
        ({"text": 1}, "echo", "arguments.text: is not of type string"),
        ("hello", None, "names no skill"),
        ("hello", "nothing", "is none of"),
    ]
    async with fifty_skills() as (site, client):
        for content, skill, reason in refused:
            with pytest.raises(InvalidParams, match=reason) as told:
                await within(client.send(content, metadata={"skillId": skill} if skill else {}))
            assert "many" not in str(told.value), "values are not for error texts"
        assert await site.total() == 0


async def test_a_call_whose_result_is_recorded_is_not_made_again() -> None:
    """As the code sees it that runs again after a crash: the step has its result already."""
    steps: list[str] = []

    class Recorded:
        async def step(self, name: str, function: Any) -> Any:
            steps.append(name)
            return {"content": [{"type": "text", "text": "as recorded"}]}

    # Nobody listens there: a call that is made fails.
    tools = McpTools("http://127.0.0.1:9/mcp")
    skill = McpSkill(tools, fifty.TOOLS[0])
    (part,) = await within(skill.function({"text": "x"}, Recorded()))
    assert (part.text, steps) == ("as recorded", ["tool echo"])


async def test_nothing_is_left_open_when_the_agent_is_not_served_any_more() -> None:
    async with hosting(fifty.server.streamable_http_app()) as url:
        tools = McpTools(f"{url}/mcp")
        agent = McpAgent(tools, await within(tools.offered()))
        await within(tools.close())
        before = asyncio.all_tasks()
        async with serving(agent) as site:
            answer = await site.send("hello", metadata={"skillId": "echo"})
            assert answer["status"]["state"] == "TASK_STATE_COMPLETED"
        mine = [task for task in asyncio.all_tasks() - before if "mcp_line" in repr(task)]
        assert mine == []


async def test_a_result_that_is_too_large_to_keep_fails_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.mcp.skills.MAX_RESULT_BYTES", 1000)
    async with fifty_skills() as (_, client):
        large = "x" * 1001
        failed = await within(client.send({"text": large}, metadata={"skillId": "echo"}))
        assert failed.state is TaskState.FAILED
        assert failed.text == "the tool echo returned more than a step can keep"


async def test_only_permitted_tools_are_skills() -> None:
    async with fifty_skills(allowed=["echo"]) as (_, client):
        assert [skill.id for skill in client.card.skills] == ["echo"]
        # The only one is meant by a message that names none.
        assert (await within(client.send("hello"))).text == "hello"
        with pytest.raises(InvalidParams):
            await within(client.send({"n": 1}, metadata={"skillId": "add_1"}))


def test_a_reference_to_elsewhere_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **_: fetched.append(given))
    schema = Schema({"type": "object", "properties": {"n": {"$ref": "http://example.com/schema"}}})
    with warnings.catch_warnings():
        # A package that goes there warns first, which would be enough to keep it from going.
        warnings.simplefilter("ignore")
        schema.check({"n": 1}, "arguments")
    assert fetched == []


def test_a_schema_that_is_none_leaves_the_last_word_to_the_server() -> None:
    Schema({"type": "nonsense"}).check({"n": 1}, "arguments")
    Schema({"type": "object", "properties": {"n": {"pattern": "(?<a"}}}).check({"n": "1"}, "a")


def test_an_agent_of_no_server_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="there is no such program; does it run"):
        mcp_agent("no-such-program-anywhere")
