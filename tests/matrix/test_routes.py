"""Every route of a server and of a gateway, held against `dragoman/proof/routes.toml`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from serving import hosting, serving

from dragoman import App, Settings
from dragoman.gateway.app import GatewayApp
from dragoman.proof.callers import write_keys
from dragoman.proof.route_cells import RouteScene, gather
from dragoman.proof.route_table import of_app
from dragoman.proof.route_things import GatewayThings, Things
from dragoman.proof.tenancy_agent import agent


def settings_in(folder: Path, **more: Any) -> Settings:
    given: dict[str, Any] = {
        "store": str(folder / "tasks.db"),
        "synchronous": "off",
        "accept_data_loss": True,
        "auth": "api-key",
        "keys": str(write_keys(folder / "keys.json")),
        "allow_private": True,
        "rate_limit_failures": "off",
        "metrics": True,
    }
    return Settings(**given | more)


@asynccontextmanager
async def gateway_in(folder: Path) -> AsyncGenerator[tuple[GatewayThings, GatewayApp]]:
    """Serve a gateway and an agent behind it, and register what the tables need."""
    async with serving(agent) as upstream:
        chosen = settings_in(folder, payment_secret="a secret of this test", escrow=3600)
        app = GatewayApp(settings=chosen)
        async with hosting(app) as url:
            things = GatewayThings(int(url.rpartition(":")[2]), upstream.url)
            await things.open()
            try:
                yield things, app
            finally:
                things.wire.close()


async def test_every_cell_of_a_server_is_answered_as_the_table_says(tmp_path: Path) -> None:
    async with hosting(App(agent, settings=settings_in(tmp_path))) as url:
        things = Things(int(url.rpartition(":")[2]))
        _, wrong = await gather(RouteScene(things, of_app("server")))
        things.wire.close()
    assert wrong == [], "\n".join(wrong)


async def test_every_cell_of_a_gateway_is_answered_as_the_table_says(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as (things, _):
        _, wrong = await gather(RouteScene(things, of_app("gateway")))
    assert wrong == [], "\n".join(wrong)
