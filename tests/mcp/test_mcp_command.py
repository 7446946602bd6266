"""`dragoman mcp` as it is typed: sessions with the official client on stdio and on a port."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from harness.commands import invoke
from harness.processes import START_WITHIN, environment, run, running
from harness.serving import hosting

from dragoman import Agent, Settings
from dragoman.config import StoreSettings
from dragoman.gateway.app import gateway_app


@asynccontextmanager
async def gateway(folder: Path) -> AsyncGenerator[str]:
    """Serve a gateway with one agent."""
    agent = Agent("Echo", "Says it again.")

    @agent.skill
    async def echo(text: str) -> str:
        return f"echo: {text}"

    app = gateway_app(
        agent, settings=Settings(stores=StoreSettings(location=str(folder / "g.db"))), is_local=True
    )
    async with hosting(app) as url:
        await app.listening([url])
        yield url


def command(folder: Path, *words: str) -> mcp.StdioServerParameters:
    return mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "dragoman", "mcp", *words], env=environment(folder)
    )


def text(result: Any) -> str:
    (block,) = result.content
    return block.text


async def test_an_agent_on_stdio_for_a_client_of_the_older_kind(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * START_WITHIN), gateway(tmp_path) as url:
        server = command(tmp_path, "-a", f"{url}/a2a/echo")
        async with mcp.Client(server, mode="legacy") as client:
            assert client.server_info and client.server_info.name == "dragoman-agents"
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["agent__echo__invoke", "agent__echo__task"]
            answer = await client.call_tool("agent__echo__invoke", {"message": "hi"})
            assert text(answer) == "echo: hi"


async def test_a_gateway_on_stdio_and_on_a_port(tmp_path: Path) -> None:
    async with asyncio.timeout(3 * START_WITHIN), gateway(tmp_path) as url:
        async with mcp.Client(command(tmp_path, "--gateway", url)) as client:
            await session(client)
        arguments = ("mcp", "--gateway", url, "--listen", "127.0.0.1:0")
        with running(*arguments, cwd=tmp_path) as child:
            address = await asyncio.to_thread(child.ready)
            assert address.endswith("/mcp")
            async with mcp.Client(address) as client:
                await session(client)
            assert await asyncio.to_thread(child.stop) == 0
            assert "Traceback" not in child.log


async def session(client: mcp.Client) -> None:
    """Find an agent, have it do something, look at the task, at its trust and at the documents."""
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert names == {"discover_agents", "delegate_task", "check_task_status", "get_agent_trust"}
    found: Any = await client.call_tool("discover_agents", {})
    (agent,) = found.structured_content["agents"]
    given = {"agentId": agent["id"], "message": "hi"}
    done: Any = await client.call_tool("delegate_task", given)
    assert text(done) == "echo: hi"
    task = done.structured_content["taskId"]
    assert text(await client.call_tool("check_task_status", {"taskId": task})) == "echo: hi"
    trust: Any = await client.call_tool("get_agent_trust", {"agentId": agent["id"]})
    assert 0 <= trust.structured_content["trustScore"] <= 100
    (held,) = (await client.read_resource("nexus://agents")).contents
    assert agent["id"] in str(held)


def test_an_address_that_others_reach_needs_callers_who_prove_who_they_are(tmp_path: Path) -> None:
    arguments = ("mcp", "-a", "https://example.com", "--listen", "0.0.0.0:0")
    refused = run(*arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert "nothing would authenticate them" in refused.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "one of the two"),
        (["-a", "x", "--gateway", "http://127.0.0.1:1"], "one of the two"),
        (["--gateway", "ftp://nowhere"], "--gateway must be a URL"),
        (["-a", "x.example", "-a", "y.example", "--bearer", "s3cr3t"], "for one agent"),
        (["-a", "x.example", "--listen", "127.0.0.1:0", "--store", "memory:"], "without effect"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(words: list[str], reason: str) -> None:
    refused = invoke("mcp", *words)
    assert refused.exit_code == 2
    assert reason in refused.stderr and "s3cr3t" not in refused.stderr
