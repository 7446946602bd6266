"""Our client over gRPC: where it dials, what it sends where, what it makes of a peer's failures."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from harness.serving import Site, serving

from dragoman import Agent, Client
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed, EgressRefused, RpcFailed
from dragoman.errors import CredentialsMissing, InvalidAgentResponse, TaskNotFound, Unreachable
from dragoman.model.card import AgentCard, AgentInterface
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of

pytestmark = pytest.mark.usefixtures("one_loop")

LIST = "/lf.a2a.v1.A2AService/ListTasks"


def echoing() -> Agent:
    agent = Agent("Echo", "Says it again.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    return agent


@pytest.fixture
async def site() -> AsyncGenerator[Site]:
    async with serving(echoing(), transport="jsonrpc,grpc") as found:
        yield found


async def card_of(site: Site) -> AgentCard:
    async with Client(site.url) as agent:
        await agent.connect()
        return agent.card


def with_interfaces(card: AgentCard, *interfaces: AgentInterface) -> AgentCard:
    return msgspec.structs.replace(card, supported_interfaces=list(interfaces))


async def asked(egress: Egress, url: str) -> list[bytes]:
    async with egress.open_rpc(url, headers={"a2a-version": "1.0"}, body=b"") as answer:
        return [message async for message in answer.chunks()]


async def test_an_rpc_goes_where_any_request_may_go(site: Site) -> None:
    async with Egress() as egress:
        with pytest.raises(EgressRefused):
            await asked(egress, site.url + LIST)
    async with Egress(allow=[site.url.removeprefix("http://")]) as egress:
        (reply,) = await asked(egress, site.url + LIST)
    assert shape_of(tables.V1_0, "ListTasksResponse").decode(reply)["totalSize"] == 0


async def test_a_name_is_resolved_once_and_its_address_checked(site: Site) -> None:
    port = site.url.rpartition(":")[2]
    names: list[str] = []

    async def resolve(name: str) -> list[str]:
        names.append(name)
        return ["127.0.0.1"]

    url = f"http://agent.example:{port}{LIST}"
    async with Egress(allow=["agent.example"], resolver=resolve) as egress:
        for _ in range(3):
            assert len(await asked(egress, url)) == 1
    # One connection carries all of them.
    assert names == ["agent.example"]
    listed = {"allow": ["other.example"], "connect_timeout": 0.2, "ports": {int(port)}}
    async with Egress(resolver=resolve, **listed) as egress:
        with pytest.raises(EgressFailed) as refused:
            await asked(egress, f"https://agent.example:{port}{LIST}")
    assert not refused.value.is_sent


async def test_an_error_of_the_peer_keeps_its_class(site: Site) -> None:
    async with Client(site.url, bindings=["grpc"]) as agent:
        with pytest.raises(TaskNotFound):
            await agent.get("none")
        with pytest.raises(RpcFailed):
            async with Egress(allow_private=True) as egress:
                await asked(egress, f"{site.url}/lf.a2a.v1.A2AService/Nothing")


async def test_where_no_server_is_nothing_was_sent(site: Site) -> None:
    nowhere = AgentInterface("127.0.0.1:9", "GRPC", "1.0")
    async with Client(with_interfaces(await card_of(site), nowhere)) as agent:
        with pytest.raises(Unreachable) as failed:
            await agent.send("hello")
    assert not failed.value.is_sent


@asynccontextmanager
async def rpc_server(answers: dict[str, Any]) -> AsyncGenerator[str]:
    """Serve rpcs that answer with these bytes; the value is where."""

    class Rpcs(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            found = answers.get(handler_call_details.method.rpartition("/")[2])
            if found is None:
                return None

            async def answer(request: bytes, context: Any) -> bytes:
                return found

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Rpcs(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_server_without_the_rpcs_of_a2a_is_left_for_the_next_interface(
    site: Site,
) -> None:
    async with rpc_server({}) as place:
        card = await card_of(site)
        first = AgentInterface(place, "GRPC", "1.0")
        both = with_interfaces(card, first, card.supported_interfaces[0])
        async with Client(both) as agent:
            assert (await agent.send("hello")).text == "hello"
            assert agent.interface.protocol_binding == "JSONRPC"


@pytest.mark.parametrize(
    "reply", [b"\xff\xff", b"", b"no message"], ids=["bytes", "nothing", "text"]
)
async def test_an_answer_that_cannot_be_read_is_the_agents_fault(site: Site, reply: bytes) -> None:
    async with rpc_server({"SendMessage": reply}) as place:
        only = with_interfaces(await card_of(site), AgentInterface(place, "GRPC", "1.0"))
        async with Client(only) as agent:
            with pytest.raises(InvalidAgentResponse):
                await agent.send("hello")


async def test_a_credential_goes_to_no_port_that_only_the_card_names() -> None:
    token = "s3cret-token-of-the-test"
    async with rpc_server({}) as place:
        settings = {"auth": "bearer", "auth_token": token, "grpc_url": place}
        async with serving(echoing(), transport="jsonrpc,grpc", **settings) as site:
            async with Client(site.url, bindings=["grpc"], bearer=token) as agent:
                assert agent.interface.url == f"http://{place}"
                with pytest.raises(CredentialsMissing, match="which you did not name"):
                    await agent.send("hello")
            trusted = [f"http://{place}"]
            async with Client(site.url, bindings=["grpc"], bearer=token, origins=trusted) as agent:
                # It goes there, finds no A2A, and is answered elsewhere.
                assert (await agent.send("hello")).text == "hello"
