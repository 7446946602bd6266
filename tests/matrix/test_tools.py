"""MCP servers and their tools, held against `routes.toml`: each is given the credential of one of
the callers, and asked by a caller that has nothing."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting

from dragoman import Client
from dragoman.egress.egress import Egress
from dragoman.egress.targets import Anywhere
from dragoman.mcp.agent_tools import AgentTools
from dragoman.mcp.app import mcp_app
from dragoman.mcp.gateway_api import McpGatewayApi
from dragoman.mcp.gateway_tools import GatewayTools
from dragoman.mcp.offers import Offers, ToolOffer
from dragoman.server.app import App
from proof.access.bindings import Answer, Wire
from proof.access.callers import KEYS, NEWCOMER, OWNER
from proof.access.route_cells import RouteScene, filled, gather
from proof.access.route_table import COLUMNS, RouteRow, of_app
from proof.access.route_things import GatewayThings, Thing, Things, request
from tests.matrix.sites import gateway_in, port_of, settings_in

MCP = {"Accept": "application/json, text/event-stream"}
# What stands for the name of the agent in the names of its tools.
NAME = "agent__NAME__"


def tools_of(url: str, caller: str) -> list[Offers]:
    """Return what MCP servers offer that were started with the credential of a caller."""
    headers = {"x-api-key": KEYS[caller]} if KEYS[caller] else {}
    http = Egress(policy=Anywhere(), connect_timeout=5, keep_alive=True)
    client = Client(url, api_key=KEYS[caller])
    return [GatewayTools(McpGatewayApi(url, http, headers)), AgentTools([client])]


@asynccontextmanager
async def mcp_server(folder: Path, desk: Offers) -> AsyncGenerator[tuple[Wire, App]]:
    app = mcp_app(desk, settings_in(folder, store="memory:", push=False))
    async with hosting(app) as url:
        wire = Wire(port_of(url))
        try:
            yield wire, app
        finally:
            wire.close()


class Desks:
    """The desks of all callers, of which one is asked at a time: to start a server for each would
    take longer than to ask it."""

    def __init__(self, desks: Mapping[str, Offers]) -> None:
        self._desks = desks
        self.chosen = desks[NEWCOMER]
        self.name, self.about = self.chosen.name, self.chosen.about
        self.documents = self.chosen.documents

    def choose(self, caller: str) -> None:
        self.chosen = self._desks[caller]

    async def tools(self) -> Sequence[ToolOffer]:
        return await self.chosen.tools()

    async def read(self, uri: str) -> Any:
        return await self.chosen.read(uri)

    async def close(self) -> None:
        for desk in self._desks.values():
            await desk.close()


class ToolScene(RouteScene):
    """Tools, by whose credential their server has."""

    def __init__(self, things: Things, gateway: tuple[Wire, Desks], agents: tuple[Wire, Desks]):
        super().__init__(things, of_app("tools"))
        self._gateway, self._agents = gateway, agents

    def shape(self, row: RouteRow) -> str:
        return row.route if NAME in row.route else row.verb

    async def ask(self, row: RouteRow, caller: str, thing: Thing) -> Answer:
        kind, _, name = row.route.partition(" ")
        asked = filled(row.body or "", self._words(thing))
        wire, desks = self._agents if name.startswith(NAME) else self._gateway
        desks.choose(caller)
        name = name.replace(NAME, "agent__dragoman_gateway__")
        if kind == "resource":
            params: Any = {"uri": asked}
            method = "resources/read"
        else:
            params = {"name": name, "arguments": json.loads(asked)}
            method = "tools/call"
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await wire.ask(request("POST", "/mcp", KEYS[NEWCOMER], json.dumps(call), **MCP))
        return answer._replace(status=status_of(answer), head=b"")


def status_of(answer: Answer) -> int:
    """Return the status of HTTP that is nearest to what a tool says."""
    if answer.status != 200:
        return answer.status
    is_error = b'"isError":true' in answer.body or b'"error":{' in answer.body
    if b"Authentication is required" in answer.body or b"asks for credentials" in answer.body:
        return 401
    return 404 if is_error else 200


@pytest.fixture(scope="module")
async def things(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayThings]:
    async with gateway_in(tmp_path_factory.mktemp("tools")) as (things, _):
        yield things


def url_of(things: Things) -> str:
    return f"http://127.0.0.1:{things.wire.port}"


async def test_every_tool_and_resource_is_answered_as_the_table_says(
    things: GatewayThings, tmp_path: Path
) -> None:
    found = {caller: tools_of(url_of(things), caller) for caller in (*COLUMNS, NEWCOMER)}
    gateway, agents = (
        Desks({caller: desks[place] for caller, desks in found.items()}) for place in (0, 1)
    )
    async with (
        mcp_server(tmp_path, gateway) as (gateway_wire, _),
        mcp_server(tmp_path, agents) as (agents_wire, _),
    ):
        scene = ToolScene(things, (gateway_wire, gateway), (agents_wire, agents))
        _, wrong = await gather(scene)
    assert wrong == [], "\n".join(wrong)


async def test_every_cell_of_an_mcp_server_is_answered_as_the_table_says(
    things: GatewayThings, tmp_path: Path
) -> None:
    desk = tools_of(url_of(things), OWNER)[0]
    async with mcp_server(tmp_path, desk) as (wire, _):
        served = Things(wire)
        served.makers["task"] = things.makers["task"]
        _, wrong = await gather(RouteScene(served, of_app("mcp")))
    assert wrong == [], "\n".join(wrong)
