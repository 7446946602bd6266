"""The table of routes is whole: every route, operation, tool and command that the running apps have
is in it, nothing else is, and no cell is an exception without a reason."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dragoman import App, Settings
from dragoman.cli.main import cli
from dragoman.dialects.house import CORVID, FASTA2A, NEXUS, r, selectools, v0_1
from dragoman.dialects.operations import BY_V0_METHOD, ROWS
from dragoman.dialects.v0_3 import V0
from dragoman.errors import A2AError, MethodNotFound
from dragoman.gateway.api.api import TABLE
from dragoman.gateway.front import PREFIX
from dragoman.http.routes import Access, Routes
from dragoman.mcp.agent_tools import AgentTools
from dragoman.mcp.gateway_tools import GatewayTools
from dragoman.server.endpoint_paths import FoundEndpoint
from dragoman.server.operator.addresses import API as CONSOLE_PREFIX
from dragoman.server.operator.api import TABLE as CONSOLE_TABLE
from dragoman.transports import rest
from proof.access.callers import KEYS, OWNER, RUNNER
from proof.access.route_table import COLUMNS, KEY_COLUMNS, RouteRow, of_app, rows
from proof.access.route_things import GatewayThings, Things, request
from tests.matrix.sites import gateway_in, server_in
from tests.matrix.test_tools import NAME, mcp_server, tools_of

# What no route is, asked for on purpose.
NOWHERE = "/nothing/is/here"
HOUSES: dict[str, list[V0]] = {
    "nexus": [NEXUS],
    "r": [r.RX, r.RX_REST, r.RX_ABROAD],
    "corvid": [CORVID],
    "selectools": [selectools.SELECTOOLS],
    "fasta2a": [FASTA2A],
    "0.1": [v0_1.V0_1()],
}
METHODS = {*BY_V0_METHOD, *v0_1.METHODS, selectools.ALIAS}
# Of houses that speak all of an official version, `matrix.toml` has what they have in common with
# it: here is what they say in words of their own.
OWN = {
    "r": {"tasks/get", "message/send", "message/stream"},
    "selectools": {selectools.ALIAS},
    "fasta2a": {"tasks/get", "message/send", "message/stream"},
}


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Things, App]]:
    async with server_in(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[GatewayThings, App]]:
    async with gateway_in(tmp_path_factory.mktemp("gateway")) as found:
        yield found


def named(template: str) -> str:
    """Return a path of which a template is one."""
    return template.replace("{", "").replace("}", "")


def is_covered(place: str, templates: set[str]) -> bool:
    """Tell whether a path that is served has a row."""
    if place.endswith("*"):
        return any(one.startswith(place[:-1]) for one in templates)
    return place in templates


def missing(routes: Routes, app: Any) -> list[str]:
    """Return what is served at paths without a row."""
    templates = {row.template for row in of_app(app)}
    found = [place for place in routes.paths() if not is_covered(place, templates)]
    operations = {f"{row.verb} {row.path}" for row in CONSOLE_TABLE.endpoints}
    return [*found, *(operations - {row.route for row in of_app(app)})]


async def test_every_path_of_a_server_has_a_row(server: tuple[Things, App]) -> None:
    assert missing(server[1].site.routes, "server") == []


async def test_every_path_of_a_gateway_has_a_row(gateway: tuple[GatewayThings, App]) -> None:
    assert missing(gateway[1].site.routes, "gateway") == []
    known = {row.route for row in of_app("gateway")}
    assert [row.name for row in TABLE.endpoints if f"{row.verb} {row.path}" not in known] == []
    assert any(row.template.startswith(PREFIX) for row in of_app("gateway"))


async def test_every_path_of_an_mcp_server_has_a_row(tmp_path: Path) -> None:
    async with mcp_server(tmp_path, tools_of("http://127.0.0.1:9", OWNER)[0]) as (_, app):
        templates = {row.template for row in of_app("mcp")}
        assert [one for one in app.site.routes.paths() if not is_covered(one, templates)] == []


async def test_a_path_without_a_row_is_found(server: tuple[Things, App]) -> None:
    async def answer(request: Any) -> None: ...

    routes = Routes()
    routes.add("/forgotten", answer, Access.CALLER)
    routes.add("/forgotten/*", answer, Access.CALLER)
    assert missing(routes, "server") == ["/forgotten", "/forgotten/*"]


def is_served(row: RouteRow, routes: Routes) -> bool:
    """Tell whether there is what a row is about."""
    path = named(row.template)
    if row.template.endswith(NOWHERE):
        return True
    if row.app == "gateway" and row.template.startswith(PREFIX):
        return True
    found = TABLE.find(row.verb, path) if row.app == "gateway" else None
    if found is not None:
        return isinstance(found, FoundEndpoint) and found.endpoint.path == row.template
    route = routes.find(row.template)
    if route.name == f"{CONSOLE_PREFIX}/*":
        of_console = CONSOLE_TABLE.find(row.verb, path)
        is_found = isinstance(of_console, FoundEndpoint)
        return is_found and of_console.endpoint.path == row.template
    if route is not routes.others:
        # Of all below this one, what there is, is in a table of its own.
        return route.name != "/api/v1/*"
    by_rest = rest.find(row.verb, path) or rest.find_0_3(row.verb, path)
    # Runs of workflows are tasks of an agent that is not served.
    return isinstance(by_rest, rest.RestRoute) or path.startswith("/agents/workflows/")


async def test_every_row_of_a_server_or_gateway_has_a_route(
    server: tuple[Things, App], gateway: tuple[GatewayThings, App]
) -> None:
    apps = {"server": server[1].site.routes, "gateway": gateway[1].site.routes}
    found = [row for row in rows() if row.app in apps]
    assert [str(row) for row in found if not is_served(row, apps[row.app])] == []


async def test_every_verb_that_a_path_takes_has_a_row(
    server: tuple[Things, App], gateway: tuple[GatewayThings, App]
) -> None:
    """Which these are, the apps say themselves, to who asks with another one."""
    for app, (things, served) in (("server", server), ("gateway", gateway)):
        known = [row for row in rows() if row.app == app]
        for path in served.site.routes.paths():
            if path.endswith("*") or not path:
                continue
            answer = await things.wire.ask(request("PUT", path, KEYS[RUNNER], "{}"))
            if answer.status != 405:
                continue
            allow = next(one for one in answer.head.split(b"\r\n") if one.startswith(b"allow:"))
            verbs = {one.strip() for one in allow[6:].decode().split(",")} - {"HEAD"}
            assert verbs == {row.verb for row in known if row.template == path}, (app, path)


def speaks(house: V0, method: str) -> bool:
    """Tell whether a house has an operation."""
    try:
        house.decode_request(method, {})
    except MethodNotFound:
        return False
    except A2AError:
        return True
    return True


def test_every_operation_of_every_house_has_a_row() -> None:
    assert set(HOUSES) == set(Settings().houses())
    expected = {
        f"{name} {method}"
        for name, houses in HOUSES.items()
        for method in OWN.get(name, METHODS)
        if any(speaks(house, method) for house in houses)
    }
    for app in ("server", "gateway"):
        assert {row.house for row in of_app(app) if row.house} == expected


def test_every_official_operation_is_in_the_table_of_operations() -> None:
    """With its states; the rows here are samples at the paths of each binding."""
    from proof.access.matrix import table

    assert set(table()) == {row.v1 for row in ROWS}
    for callers in table().values():
        assert set(callers) == set(COLUMNS)


async def test_every_tool_and_resource_has_a_row(gateway: tuple[GatewayThings, App]) -> None:
    url = f"http://127.0.0.1:{gateway[0].wire.port}"
    found: set[str] = set()
    for desk in tools_of(url, OWNER):
        for offer in await desk.tools():
            is_agent = isinstance(desk, AgentTools)
            name = offer.name.replace("agent__dragoman_gateway__", NAME) if is_agent else offer.name
            found.add(f"tool {name}")
        found |= {f"resource {one.uri}" for one in desk.documents}
        assert isinstance(desk, AgentTools | GatewayTools)
        await desk.close()
    assert {row.route for row in of_app("tools")} == found


def commands(place: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield all commands."""
    if not isinstance(place, click.Group):
        yield " ".join(words)
        return
    context = click.Context(place)
    for name in place.list_commands(context):
        found = place.get_command(context, name)
        assert found is not None, name
        yield from commands(found, (*words, name))


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    found = list(commands(cli))
    assert {row.route for row in of_app("commands")} == set(found) and len(found) > 60


def test_no_cell_is_an_exception_without_a_reason() -> None:
    bare = [str(row) for row in rows() if (row.exceptions() or row.rights) and not row.reason]
    assert bare == []


def test_every_row_has_a_cell_for_every_caller() -> None:
    for row in rows():
        columns = (*COLUMNS, *KEY_COLUMNS) if row.app == "gateway" else COLUMNS
        assert tuple(row.cells) == (() if row.rights else columns), row


def test_only_what_is_open_is_answered_to_callers_without_a_credential() -> None:
    """All else is one refusal; posts of agents and of the payment provider, and processes of the
    same gateway, show another proof."""
    others = {row.route for row in rows() if row.cells.get("anonymous") not in ("401", "public")}
    proved = {
        "POST /api/v1/hooks/{place}/{mark}",
        "POST /api/v1/webhooks/{id}",
        "POST /api/v1/billing/webhook",
        "GET /api/v1/join/{host}",
    }
    assert others - {row.route for row in rows() if row.rights} == proved


async def test_every_kind_of_thing_can_be_made(
    server: tuple[Things, App], gateway: tuple[GatewayThings, App]
) -> None:
    for row in rows():
        makers = server[0].makers if row.app == "server" else gateway[0].makers
        assert not row.about or row.about in makers, row
