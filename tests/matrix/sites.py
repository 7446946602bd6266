"""The served apps that the table of routes is held against."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.serving import hosting, serving

from dragoman import App, Settings
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app
from dragoman.openai.part import OpenAIPart
from proof.access.bindings import Wire
from proof.access.callers import write_keys
from proof.access.route_things import GatewayThings, Things
from proof.access.tenancy_agent import agent


def settings_in(folder: Path, **more: Any) -> Settings:
    """Return settings by which the callers of the table are known."""
    given: dict[str, Any] = {
        "store": str(folder / "tasks.db"),
        # Hundreds of tasks that nobody will miss.
        "synchronous": "off",
        "accept_data_loss": True,
        "auth": "api-key",
        "keys": str(write_keys(folder / "keys.json")),
        "allow_private": True,
        "rate_limit_failures": "off",
        "metrics": True,
        "openai": True,
    }
    return load_settings({}, **given | more)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def server_in(folder: Path) -> AsyncGenerator[tuple[Things, App]]:
    """Serve an agent."""
    app = App(agent, settings=settings_in(folder), parts=[OpenAIPart()])
    async with hosting(app) as url:
        things = Things(Wire(port_of(url)))
        try:
            yield things, app
        finally:
            things.wire.close()


@asynccontextmanager
async def gateway_in(folder: Path) -> AsyncGenerator[tuple[GatewayThings, App]]:
    """Serve a gateway and an agent behind it, and register what the table needs."""
    async with serving(agent) as upstream:
        chosen = settings_in(folder, payment_secret="a secret of this test", escrow=3600)
        app = gateway_app(settings=chosen, parts=[OpenAIPart()])
        async with hosting(app) as url:
            things = GatewayThings(Wire(port_of(url)), upstream.url)
            await things.open()
            try:
                yield things, app
            finally:
                things.wire.close()
