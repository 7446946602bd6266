"""Agents behind a gateway that have gRPC alone: no HTTP at their port, and so no card there."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dragoman import Client
from dragoman.errors import InvalidParams
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from tests.gateway.gateway_site import GatewaySite, gateway

pytestmark = pytest.mark.usefixtures("one_loop")

_unary: Any = vars(grpc)["unary_unary_rpc_method_handler"]
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


def card(*places: str) -> dict[str, Any]:
    return {
        "name": "Plain",
        "description": "Speaks gRPC alone.",
        "version": "1.0.0",
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "say", "name": "Say", "description": "Says it.", "tags": ["say"]}],
        "supportedInterfaces": [
            {"url": place, "protocolBinding": "GRPC", "protocolVersion": "1.0"} for place in places
        ],
    }


class PlainServer:
    """A server of grpcio. `health` is what it says of itself; None: it has no such service."""

    def __init__(self, health: bytes | None) -> None:
        self.health = health
        self.asked: list[str] = []
        self.place = ""

    def service(self, details: Any) -> Any:
        self.asked.append(details.method.rpartition("/")[2])
        if details.method.endswith("A2AService/SendMessage"):
            return _unary(self._send)
        if details.method == "/grpc.health.v1.Health/Check" and self.health is not None:
            return _unary(self._check)
        return None

    async def _send(self, request: bytes, _: Any) -> bytes:
        sent = shape_of(tables.V1_0, "SendMessageRequest").decode(request)["message"]
        said = {"messageId": "r", "role": "ROLE_AGENT", "parts": sent["parts"]}
        return shape_of(tables.V1_0, "SendMessageResponse").encode({"message": said})

    async def _check(self, *_: Any) -> bytes:
        assert self.health is not None
        return self.health


@asynccontextmanager
async def plain(health: bytes | None) -> AsyncGenerator[PlainServer]:
    found = PlainServer(health)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((found,))  # pyright: ignore[reportArgumentType]  # By its shape.
    found.place = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield found
    finally:
        await server.stop(0)


async def registered(site: GatewaySite, places: Sequence[str]) -> dict[str, Any]:
    """Register an agent as the command line does with the file of a card."""
    body = {"endpoint": f"http://{places[0]}", "card": card(*places)}
    answer = await site.http.post("/api/v1/agents", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


@pytest.mark.parametrize("health", [SERVING, None])
async def test_an_agent_without_http_is_registered_by_its_card_and_called(
    tmp_path: Path, health: bytes | None
) -> None:
    async with (
        plain(health) as server,
        gateway(tmp_path, transport="jsonrpc,grpc", allow_private=True) as site,
    ):
        agent = await registered(site, [server.place])
        assert agent["status"] == "online"
        assert server.asked == (["Check"] if health else ["Check", "GetTask"])
        for binding in ("jsonrpc", "grpc"):
            async with Client(f"{site.url}/a2a/plain", bindings=[binding]) as client:
                assert (await client.send("hello")).text == "hello"


async def test_a_server_that_says_it_does_not_serve_is_away(tmp_path: Path) -> None:
    async with plain(NOT_SERVING) as server, gateway(tmp_path, allow_private=True) as site:
        agent = await registered(site, [server.place])
        assert agent["status"] == "offline"
        server.health = SERVING
        again = await site.gateway.registry.probe(agent["id"])
        assert again.status == "online"


async def test_who_answers_http_is_not_who_is_called(tmp_path: Path) -> None:
    async with gateway(tmp_path, allow_private=True) as site:
        # HTTP answers at the address, and nobody at that of the interface.
        place = f"{site.url}/elsewhere"
        agent = await site.register(place, known_card=card("127.0.0.1:9"))
        assert agent.status == "offline"
        assert (await site.gateway.registry.probe(agent.id)).status == "offline"


async def test_a_card_that_is_given_is_held_to_the_limits_of_all(tmp_path: Path) -> None:
    async with gateway(tmp_path, allow_private=True) as site:
        for wrong in (card("evil.example:443"), card("127.0.0.1:9") | {"x": "y" * 3_000_000}):
            with pytest.raises(InvalidParams):
                await site.register("http://127.0.0.1:9", known_card=wrong)
        assert site.gateway.registry.all() == []
