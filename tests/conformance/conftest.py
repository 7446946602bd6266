"""The conformance agent, served by itself and behind a gateway."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import serving

from tests.conformance.asking import BINDINGS, TIMEOUT, Wire, conformance_agent, wire_to
from tests.gateway.gateway_site import gateway

PLACES = ("server", "gateway")


@pytest.fixture(scope="module")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[dict[str, str]]:
    """Serve the agent in both places; the values are the addresses."""
    with pytest.MonkeyPatch.context() as patch:
        agent = conformance_agent(patch, stream_seconds="30")
    folder: Path = tmp_path_factory.mktemp("conformance")
    settings: dict[str, Any] = {"allow_private": True, "transport": ",".join(BINDINGS)}
    async with serving(agent, **settings) as site, gateway(folder, **settings) as gate:
        registered = await gate.register(site.url, name="conformance")
        yield {"server": site.url, "gateway": gate.at(registered)}


@pytest.fixture
async def http() -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        yield client


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def base(place: str, addresses: dict[str, str]) -> str:
    return addresses[place]


@pytest.fixture(params=[*BINDINGS])
def wire(request: pytest.FixtureRequest, base: str, http: httpx.AsyncClient) -> Wire:
    """What 1.0 speaks."""
    return wire_to(http, base, request.param)
