"""The tools of an MCP server as a provider: one list for all, bounds of time, servers that end."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mcp
import pytest
from harness.processes import START_WITHIN
from harness.serving import hosting
from harness.waiting import within

from dragoman.agents.tools import ToolCall
from dragoman.errors import ConfigError
from dragoman.mcp.connection import McpFailed
from dragoman.mcp.tools import McpTools, text_of
from tests.mcp import fifty

FIFTY = f"{sys.executable} {Path(fifty.__file__)}"
TURN: Any = None


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the server notes what it is asked."""
    place = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(place))
    place.touch()
    return place


def noted(calls: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in calls.read_text().splitlines())


@asynccontextmanager
async def at_address(**more: Any) -> AsyncGenerator[McpTools]:
    """Give the tools of a server in this process, at an address."""
    async with hosting(fifty.server.streamable_http_app()) as url:
        tools = McpTools(f"{url}/mcp", **more)
        try:
            yield tools
        finally:
            await tools.close()


async def test_all_who_ask_for_the_list_share_one_answer_for_five_minutes(calls: Path) -> None:
    clock = [0.0]
    async with at_address(now=lambda: clock[0]) as tools:
        lists = await within(asyncio.gather(*(tools.list_tools() for _ in range(20))))
        assert {len(found) for found in lists} == {50}
        pages = noted(calls)["list"]
        assert pages == 3, "fifty tools are three pages, asked for once"
        clock[0] = 299.0
        await within(tools.list_tools())
        assert noted(calls)["list"] == pages
        clock[0] = 301.0
        await within(tools.list_tools())
        assert noted(calls)["list"] == 2 * pages


async def test_one_who_gives_up_does_not_take_the_list_from_the_others(calls: Path) -> None:
    async with at_address() as tools:
        hasty = asyncio.create_task(tools.list_tools())
        patient = asyncio.create_task(tools.list_tools())
        await asyncio.sleep(0)
        hasty.cancel()
        assert len(await within(patient)) == 50
        assert noted(calls)["list"] == 3


async def test_a_tool_is_called_by_a_name_that_models_take(calls: Path) -> None:
    async with at_address() as tools:
        names = [tool.name for tool in await within(tools.list_tools())]
        assert "draw_picture" in names
        drawn = await within(tools.execute(ToolCall("1", "draw_picture", {}), TURN))
        assert drawn.content == "[image: image/png]"
        added = await within(tools.execute(ToolCall("2", "add_3", {"n": 4}), TURN))
        assert (added.content, added.is_error) == ("7", False)
        failed = await within(tools.execute(ToolCall("3", "fail", {}), TURN))
        assert (failed.content, failed.is_error) == ("the tool is broken", True)
        with pytest.raises(LookupError):
            await within(tools.execute(ToolCall("4", "nothing", {}), TURN))


async def test_only_what_is_allowed_is_there(calls: Path) -> None:
    async with at_address(allowed=["echo", "add_1"]) as tools:
        assert [tool.name for tool in await within(tools.list_tools())] == ["echo", "add_1"]
        with pytest.raises(LookupError):
            await within(tools.execute(ToolCall("1", "add_2", {"n": 1}), TURN))
        with pytest.raises(LookupError):
            await within(tools.call("add_2", {"n": 1}))
        assert "add_2" not in noted(calls)


async def test_a_call_has_a_bound_of_time() -> None:
    async with at_address(timeout=2.0) as tools:
        with pytest.raises(McpFailed, match="no answer in time"):
            await within(tools.call("stall", {}))
        assert text_of(await within(tools.call("echo", {"text": "well"}))) == "well"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_server_that_began_again_is_simply_asked_again(
    calls: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """One of the older kind does not know the session, so it refused the call and did not do it."""
    monkeypatch.setattr(mcp, "Client", partial(mcp.Client, mode=mode))
    async with hosting(fifty.server.streamable_http_app()) as url:
        tools = McpTools(f"{url}/mcp")
        assert text_of(await within(tools.call("add_1", {"n": 1}))) == "2"
    port = int(url.rpartition(":")[2])
    async with hosting(fifty.server.streamable_http_app(), port=port):
        assert text_of(await within(tools.call("add_1", {"n": 2}))) == "3"
        await within(tools.close())
    assert noted(calls)["add_1"] == 2


async def test_a_program_that_died_in_a_call_is_started_again_and_the_call_is_not_repeated(
    calls: Path,
) -> None:
    tools = McpTools(FIFTY)
    try:
        with pytest.raises(McpFailed, match="the server ended before it answered"):
            await within(tools.call("die", {}), START_WITHIN)
        assert text_of(await within(tools.call("add_1", {"n": 1}), START_WITHIN)) == "2"
        assert noted(calls)["die"] == 1
    finally:
        await within(tools.close())


async def test_a_program_is_not_told_what_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "tell.py"
    script.write_text(f"import os; open({str(seen)!r}, 'w').write(repr(dict(os.environ)))")
    monkeypatch.setenv("DRAGOMAN_AUTH_TOKEN", "our-secret")
    monkeypatch.setenv("A2ACLI_BEARER", "our-secret")
    monkeypatch.setenv("THEIR_TOKEN", "for them")
    tools = McpTools(f"{sys.executable} {script}")
    with pytest.raises(McpFailed, match="cannot be used"):
        await within(tools.list_tools())
    await within(tools.close())
    assert "our-secret" not in seen.read_text() and "for them" in seen.read_text()


async def test_an_address_where_nobody_is_fails_until_somebody_is(calls: Path) -> None:
    async with hosting(fifty.server.streamable_http_app()) as url:
        tools = McpTools(f"{url}/mcp")
        assert len(await within(tools.list_tools())) == 50
    with pytest.raises(McpFailed):
        await within(tools.call("add_1", {"n": 1}))
    async with hosting(fifty.server.streamable_http_app(), port=int(url.rpartition(":")[2])):
        assert text_of(await within(tools.call("add_1", {"n": 2}))) == "3"
        await within(tools.close())
    assert noted(calls)["add_1"] == 1


async def test_a_program_that_is_not_there_is_told_at_once() -> None:
    tools = McpTools("no-such-program-anywhere --flag")
    with pytest.raises(McpFailed, match="there is no such program"):
        await within(tools.list_tools())
    await tools.close()


@pytest.mark.parametrize(
    ("server", "headers"),
    [
        ("", None),
        ("'unbalanced", None),
        ("http://", None),
        ("https://user:pass@example.com/mcp", None),
        ("http://example.com/mcp", {"authorization": "Bearer x"}),
    ],
)
def test_a_server_that_cannot_be_is_refused_before_it_is_used(
    server: str, headers: dict[str, str] | None
) -> None:
    with pytest.raises(ConfigError):
        McpTools(server, headers=headers)
