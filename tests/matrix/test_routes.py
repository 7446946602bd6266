"""Every route of a server, of a gateway and of an MCP server, held against `routes.toml`."""

from pathlib import Path

from dragoman.proof.route_cells import RouteScene, gather
from dragoman.proof.route_table import of_app

from .sites import gateway_in, server_in


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
