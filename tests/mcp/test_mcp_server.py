"""Agents and gateways as MCP servers, with the official client: in process, and on a port behind
our door."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from harness.serving import hosting, serving
from harness.waiting import within
from mcp.client.streamable_http import streamable_http_client

from dragoman import Agent, Client, Settings, Turn
from dragoman.config import StoreSettings, load_settings
from dragoman.egress.egress import Egress
from dragoman.egress.targets import Anywhere
from dragoman.gateway.app import gateway_app
from dragoman.http.rates import USED_UP
from dragoman.mcp.agent_tools import AgentTools
from dragoman.mcp.app import MOST_BYTES, MOST_VALUES, mcp_app
from dragoman.mcp.gateway_api import McpGatewayApi
from dragoman.mcp.gateway_tools import GatewayTools
from dragoman.mcp.offers import Offers
from dragoman.mcp.server import mcp_server

TOKEN = "a-token-of-the-callers-which-is-long"


def workshop() -> tuple[Agent, asyncio.Event]:
    """Return an agent with one of each, and what its slow work waits for."""
    agent, gate = Agent("Work Shop", "Does one of each."), asyncio.Event()

    @agent.skill(default=True)
    async def echo(text: str) -> str:
        """Says it again."""
        return f"echo: {text}"

    @agent.skill
    async def add(a: int, b: int) -> dict[str, int]:
        """Adds."""
        return {"sum": a + b}

    @agent.skill
    async def name(text: str, turn: Turn) -> str:
        """Asks for a name."""
        return f"hello {(await turn.ask('What is your name?')).text}"

    @agent.skill
    async def slowly(text: str, turn: Turn) -> str:
        """Takes its time."""
        await turn.say("I have begun")
        await gate.wait()
        return "at last"

    @agent.skill
    async def broken(text: str, turn: Turn) -> str:
        """Never works."""
        turn.reject("not today")

    return agent, gate


@asynccontextmanager
async def agent_desk(agent: Agent) -> AsyncGenerator[mcp.Client]:
    """Give an MCP client of one agent."""
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(serving(agent))
        desk = AgentTools([Client(site.url)])
        stack.push_async_callback(desk.close)
        yield await stack.enter_async_context(mcp.Client(mcp_server(desk)))


@asynccontextmanager
async def gateway_desk(folder: Path, agent: Agent) -> AsyncGenerator[tuple[mcp.Client, str]]:
    """Give an MCP client of a gateway, and the gateway's address."""
    settings = Settings(stores=StoreSettings(location=str(folder / "gateway.db")))
    app = gateway_app(agent, settings=settings, is_local=True)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(hosting(app))
        await app.listening([url])
        desk = GatewayTools(McpGatewayApi(url, Egress(policy=Anywhere())))
        stack.push_async_callback(desk.close)
        yield await stack.enter_async_context(mcp.Client(mcp_server(desk))), url


async def call(client: mcp.Client, name: str, /, **arguments: Any) -> Any:
    return await within(client.call_tool(name, arguments))


def text(result: Any) -> str:
    (block,) = result.content
    return block.text


async def test_an_agent_is_two_tools_that_say_what_it_can_do() -> None:
    agent, _ = workshop()
    async with agent_desk(agent) as client:
        invoke, look = (await within(client.list_tools())).tools
        assert (invoke.name, look.name) == ("agent__work_shop__invoke", "agent__work_shop__task")
        assert invoke.description and "- add: Add. Adds." in invoke.description
        assert invoke.input_schema["properties"]["skillId"]["enum"] == list(agent.skills)
        assert look.annotations and look.annotations.read_only_hint


async def test_an_agent_answers_asks_back_and_fails_as_a_tool() -> None:
    agent, _ = workshop()
    async with agent_desk(agent) as client:
        invoke = "agent__work_shop__invoke"
        assert text(await call(client, invoke, message="hi")) == "echo: hi"
        added = await call(client, invoke, data={"a": 1, "b": 2}, skillId="add")
        assert added.structured_content["parts"] == [{"data": {"sum": 3}}]
        asked = await call(client, invoke, message="x", skillId="name")
        assert text(asked).startswith("What is your name?\nAnswer by calling this tool again")
        assert asked.structured_content["state"] == "input-required" and not asked.is_error
        task = asked.structured_content["taskId"]
        assert text(await call(client, invoke, message="Ada", taskId=task)) == "hello Ada"
        broken = await call(client, invoke, message="x", skillId="broken")
        assert (text(broken), broken.is_error) == ("not today", True)


async def test_work_that_takes_longer_goes_on_and_can_be_looked_at() -> None:
    agent, gate = workshop()
    told: list[str | None] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with agent_desk(agent) as client:
        arguments = {"message": "x", "skillId": "slowly", "timeoutSeconds": 2}
        begun: Any = await within(
            client.call_tool("agent__work_shop__invoke", arguments, progress_callback=tell)
        )
        assert "I have begun" in told
        task = begun.structured_content["taskId"]
        assert f"{task} is working; agent__work_shop__task says" in text(begun)
        gate.set()
        for _ in range(100):
            look = await call(client, "agent__work_shop__task", taskId=task)
            if look.structured_content["state"] == "completed":
                break
        assert text(look) == "at last"


async def test_a_call_that_makes_no_sense_is_told_to_the_model() -> None:
    agent, _ = workshop()
    async with agent_desk(agent) as client:
        invoke = "agent__work_shop__invoke"
        for arguments, reason in [
            ({}, "lacks message or data"),
            ({"message": 3}, "arguments.message: is not of type string"),
            ({"message": "x", "skillId": "nothing"}, "does not fit the tool's schema (enum)"),
            ({"message": "x", "more": 1}, "something that the tool does not take"),
        ]:
            refused = await call(client, invoke, **arguments)
            assert refused.is_error and reason in text(refused)
        unknown = await call(client, "agent__work_shop__task", taskId="nothing")
        assert (text(unknown), unknown.is_error) == ("Task not found", True)
        with pytest.raises(mcp.MCPError, match="Unknown tool"):
            await call(client, "nothing")


async def test_what_is_unexpected_stays_in_our_log(caplog: pytest.LogCaptureFixture) -> None:
    agent, _ = workshop()
    async with agent_desk(agent) as client:
        # A client that is closed under the tool's feet, and says things that are ours.
        async def stream(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a secret of ours")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "get", stream)
            failed = await call(client, "agent__work_shop__task", taskId="x")
    assert failed.is_error and "secret" not in text(failed)
    assert "a secret of ours" in caplog.text


async def test_a_gateway_is_found_given_work_and_asked_about(tmp_path: Path) -> None:
    agent, _ = workshop()
    async with gateway_desk(tmp_path, agent) as (client, _):
        found = await call(client, "discover_agents", text="one of each", minTrustScore=10)
        (known,) = found.structured_content["agents"]
        assert (known["slug"], known["trustScore"]) == ("work-shop", 50)
        assert "Work Shop" in text(found)
        nobody = await call(client, "discover_agents", skillTags=["nothing"])
        assert text(nobody) == "No agent fits."
        done = await call(client, "delegate_task", agentId=known["id"], message="hi")
        assert (text(done), done.is_error) == ("echo: hi", False)
        task = done.structured_content["taskId"]
        status = await call(client, "check_task_status", taskId=task)
        assert status.structured_content["status"] == "completed" and text(status) == "echo: hi"
        trust = await call(client, "get_agent_trust", agentId="work-shop")
        assert trust.structured_content["agentId"] == known["id"]
        broken = await call(
            client, "delegate_task", agentId="work-shop", message="x", skillId="broken"
        )
        assert broken.is_error and "not today" in text(broken)
        asked = await call(
            client, "delegate_task", agentId="work-shop", message="x", skillId="name"
        )
        assert text(asked).startswith("What is your name?\nAnswer with delegate_task")
        waiting = asked.structured_content["taskId"]
        answered = await call(client, "delegate_task", taskId=waiting, message="Ada")
        assert text(answered) == "hello Ada"


async def test_a_question_that_was_answered_is_not_taken_for_another() -> None:
    """A gateway may say that the task waits until its agent has heard the answer."""

    def task(state: str, at: str) -> dict[str, Any]:
        status = "completed" if state == "completed" else "running"
        known = {"id": "t", "status": status, "a2a_state": state, "updated_at": at}
        empty = {"assigned_agent_id": None, "output": None, "error_message": None}
        said = {"role": "agent", "parts": [{"type": "text", "data": "done"}]}
        return {**known, **empty, "artifacts": [], "messages": [said]}

    waiting = task("input-required", "1")
    answers = [waiting, waiting, waiting, task("completed", "2")]

    class Scripted(McpGatewayApi):
        async def ask(self, verb: str, path: str, *_: Any, **__: Any) -> Any:
            return answers.pop(0)

    desk = GatewayTools(Scripted("http://127.0.0.1:9", Egress(policy=Anywhere())))
    async with mcp.Client(mcp_server(desk)) as client:
        assert text(await call(client, "delegate_task", taskId="t", message="Ada")) == "done"
    assert answers == []
    await desk.close()


async def test_a_gateways_task_that_takes_longer_is_returned_by_its_id(tmp_path: Path) -> None:
    agent, gate = workshop()
    async with gateway_desk(tmp_path, agent) as (client, _):
        arguments = {"agentId": "work-shop", "message": "x", "skillId": "slowly"}
        begun = await call(client, "delegate_task", **arguments, timeoutSeconds=2)
        task = begun.structured_content["taskId"]
        assert f"{task} is working; check_task_status says" in text(begun)
        gate.set()
        answer = await call(client, "check_task_status", taskId=task)
        for _ in range(200):
            if answer.structured_content["status"] == "completed":
                break
            answer = await call(client, "check_task_status", taskId=task)
        assert text(answer) == "at last"


async def test_a_gateways_agents_are_documents(tmp_path: Path) -> None:
    agent, _ = workshop()
    async with gateway_desk(tmp_path, agent) as (client, _):
        (listed,) = (await within(client.list_resources())).resources
        (one,) = (await within(client.list_resource_templates())).resource_templates
        assert (listed.uri, one.uri_template) == ("nexus://agents", "nexus://agents/{id}")
        (held,) = (await within(client.read_resource("nexus://agents"))).contents
        assert '"slug":"work-shop"' in held.text  # type: ignore[union-attr]  # JSON is text
        (held,) = (await within(client.read_resource("nexus://agents/work-shop"))).contents
        assert '"name":"Work Shop"' in held.text  # type: ignore[union-attr]  # JSON is text
        for uri in ("nexus://agents/nothing", "nexus://others", "file:///etc/passwd"):
            with pytest.raises(mcp.MCPError, match="Resource not found"):
                await within(client.read_resource(uri))


async def test_a_gateway_that_is_away_is_told_as_such() -> None:
    desk = GatewayTools(McpGatewayApi("http://127.0.0.1:9", Egress(policy=Anywhere())))
    async with mcp.Client(mcp_server(desk)) as client:
        away = await call(client, "discover_agents")
        assert (text(away), away.is_error) == ("The gateway could not be reached", True)
        with pytest.raises(mcp.MCPError, match="could not be reached"):
            await within(client.read_resource("nexus://agents"))
    await desk.close()


# On a port


@asynccontextmanager
async def on_port(desk: Offers, **settings: Any) -> AsyncGenerator[str]:
    app = mcp_app(desk, load_settings({}, store="memory:", push=False, **settings), is_local=True)
    async with hosting(app) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def connected(url: str, mode: str, token: str = "") -> AsyncGenerator[mcp.Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_callers_on_a_port_prove_who_they_are(mode: str) -> None:
    agent, _ = workshop()
    async with serving(agent) as site:
        desk = AgentTools([Client(site.url)])
        async with on_port(desk, auth_token=TOKEN) as url:
            async with within_(connected(url, mode, TOKEN)) as client:
                assert text(await call(client, "agent__work_shop__invoke", message="hi")) == (
                    "echo: hi"
                )
            async with httpx2.AsyncClient(trust_env=False) as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
                refused = await http.post(url, json=body)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Bearer")


@asynccontextmanager
async def within_(entering: Any) -> AsyncGenerator[Any]:
    """Bound what goes on inside."""
    async with asyncio.timeout(60), entering as value:
        yield value


async def test_pages_of_other_sites_and_names_of_others_do_not_get_in() -> None:
    agent, _ = workshop()
    async with serving(agent) as site, on_port(AgentTools([Client(site.url)])) as url:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(trust_env=False, headers=accept) as http:
            page = await http.post(url, json=body, headers={"origin": "https://evil.example"})
            assert page.status_code == 403
            name = await http.post(url, json=body, headers={"host": "evil.example"})
            assert name.status_code in (400, 403, 421)
            # There are no sessions that one could follow or end.
            assert (await http.get(url)).status_code == 405
            assert (await http.delete(url)).status_code == 405
            assert (await http.get(url.replace("/mcp", "/healthz"))).status_code == 200
            elsewhere = await http.get(url.replace("/mcp", "/.well-known/agent-card.json"))
            assert elsewhere.status_code == 404
            large = await http.post(url, content=b" " * 20_000_000)
            assert large.status_code == 413


async def test_the_package_is_given_nothing_that_would_hold_up_the_loop() -> None:
    agent, _ = workshop()
    async with serving(agent) as site, on_port(AgentTools([Client(site.url)])) as url:

        def calling(data: str) -> str:
            given = f'{{"name":"agent__work_shop__invoke","arguments":{{"data":{{"a":{data}}}}}}}'
            return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{given}}}'

        values = f"[{','.join(['{}'] * MOST_VALUES)}]"
        members = ",".join(f'"k{n}":1' for n in range(1001))
        bodies = {
            "long": (calling(f'"{"x" * MOST_BYTES}"'), 413),
            "many values": (calling(values), 400),
            "wide": (calling(f"{{{members}}}"), 400),
            "deep": (calling("[" * 100 + "]" * 100), 400),
            "a member twice": (calling('{"a":1,"a":2}'), 400),
            "nearly as long": (calling(f'"{"x" * (MOST_BYTES - 1000)}"'), 200),
        }
        accept = {"accept": "application/json, text/event-stream"}
        headers = {**accept, "content-type": "application/json"}
        async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:
            found = {
                name: (await http.post(url, content=body)).status_code
                for name, (body, _) in bodies.items()
            }
        assert found == {name: status for name, (_, status) in bodies.items()}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_tools_begin_counts_on_the_quota_of_their_caller(mode: str) -> None:
    agent, _ = workshop()
    async with serving(agent) as site:
        desk = AgentTools([Client(site.url)])
        async with (
            on_port(desk, auth_token=TOKEN, quota="1/d") as url,
            within_(connected(url, mode, TOKEN)) as client,
        ):
            first = await call(client, "agent__work_shop__invoke", message="name")
            assert not first.is_error
            refused = await call(client, "agent__work_shop__invoke", message="more")
            assert refused.is_error and text(refused) == USED_UP
            assert await site.total() == 1
            looked = await call(
                client, "agent__work_shop__task", taskId=first.structured_content["taskId"]
            )
            assert not looked.is_error
