"""Every route of a server, of a gateway and of an MCP server, held against `routes.toml`."""

from pathlib import Path

import pytest

from dragoman.model.identity import Caller, Principal
from proof.access.route_cells import RouteScene, gather
from proof.access.route_table import of_app
from tests.matrix.sites import gateway_in, server_in


async def test_every_cell_of_a_server_is_answered_as_the_table_says(tmp_path: Path) -> None:
    async with server_in(tmp_path) as (things, _):
        cells, wrong = await gather(RouteScene(things, of_app("server")))
    assert cells >= sum(len(row.cells) for row in of_app("server"))
    assert wrong == [], "\n".join(wrong)


async def test_every_cell_of_a_gateway_is_answered_as_the_table_says(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as (things, _):
        cells, wrong = await gather(RouteScene(things, of_app("gateway")))
    assert cells >= sum(len(row.cells) for row in of_app("gateway"))
    assert wrong == [], "\n".join(wrong)


async def test_a_gateway_that_knows_callers_by_their_name_alone_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = property(lambda self: Principal("", self.owner))
    monkeypatch.setattr(Caller, "principal", by_name)
    known = ("GET /api/v1/agents/{id}", "GET /api/v1/billing/balance", "DELETE /api/v1/agents/{id}")
    rows = [row for row in of_app("gateway") if row.route in known]
    async with gateway_in(tmp_path) as (things, _):
        _, wrong = await gather(RouteScene(things, rows))
    for route in known:
        assert any(f"{route}, about " in one and "by namesake" in one for one in wrong), route
    # What it then may do, it is found to have done, and the next caller meets none of it.
    assert not any("by stranger" in one or "by owner" in one for one in wrong)
