"""gRPC at the edge: one port for everything, TLS and certificates, callers, limits, processes."""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from harness.certificates import LOOPBACK, SERVER, Authority, dns
from harness.rpcs import Rpcs, message, rpcs_to, talking
from harness.waiting import WAIT, within

from dragoman import Client
from dragoman.client.credentials.credentials import ClientCertificate
from dragoman.errors import CredentialsMissing, Overloaded, RateLimited, Unauthenticated
from dragoman.http.grpc.front import PREFACE
from dragoman.transports.grpc import statuses

pytestmark = pytest.mark.usefixtures("one_loop")

HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "grpc.reflection.{}.ServerReflection"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of everything, and one for gRPC alone."""
    folder = tmp_path_factory.mktemp("server")
    with talking(folder, "--grpc-listen", "127.0.0.1:0", "--workers", "2") as server:
        address = server.ready()
        yield address, server.line("gRPC: ").removeprefix("gRPC: ")


async def test_one_port_takes_everything_and_the_other_grpc_alone(
    places: tuple[str, str],
) -> None:
    address, alone = places
    for place in places:
        async with rpcs_to(place) as rpcs:
            task = (await rpcs.call("SendMessage", message("hello", f"on-{place}")))["task"]
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{address}/.well-known/agent-card.json")).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(f"http://{alone}/.well-known/agent-card.json")


async def test_the_card_names_the_port_of_grpc(places: tuple[str, str]) -> None:
    address, alone = places
    async with Client(address, bindings=["grpc"]) as agent:
        assert (await agent.send("hello")).text == "hello"
        assert agent.interface.url == f"http://{alone}"


async def test_a_card_names_grpc_only_where_it_is_served(tmp_path: Path) -> None:
    with talking(tmp_path, "--transport", "jsonrpc") as server:
        async with Client(server.ready()) as agent:
            await agent.connect()
            found = {one.protocol_binding for one in agent.card.supported_interfaces}
        assert found == {"JSONRPC"}
        _, writer = await opened(server.port)
        writer.write(PREFACE)
        writer.close()


async def test_a_preface_may_come_in_pieces(places: tuple[str, str]) -> None:
    port = int(places[0].rpartition(":")[2])
    for split in (1, 2, 3, 14, 23):
        reader, writer = await opened(port)
        writer.write(PREFACE[:split])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(PREFACE[split:] + bytes(3) + b"\x04" + bytes(5))
        # The settings of HTTP/2 are the first frame of a server.
        head = await within(reader.readexactly(9))
        assert head[3] == 4
        writer.close()


async def test_a_connection_has_a_limit_of_rpcs_at_once(places: tuple[str, str]) -> None:
    reader, writer = await opened(int(places[0].rpartition(":")[2]))
    writer.write(PREFACE + bytes(3) + b"\x04" + bytes(5))
    head = await within(reader.readexactly(9))
    settings = await within(reader.readexactly(int.from_bytes(head[:3])))
    writer.close()
    told = dict(struct.iter_unpack(">HI", settings))
    # The setting that HTTP/2 has for it. It also bounds what quick resets cost.
    assert told[3] == 100


async def test_a_request_that_is_compressed_is_refused(places: tuple[str, str]) -> None:
    async with rpcs_to(places[0]) as rpcs:
        method = rpcs.channel.unary_unary("/lf.a2a.v1.A2AService/ListTasks")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            # A tenant that is worth compressing.
            await method(b"\x0a\x7f" + b"a" * 127, compression=grpc.Compression.Gzip, timeout=WAIT)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_what_only_begins_like_a_preface_is_http(places: tuple[str, str]) -> None:
    port = int(places[0].rpartition(":")[2])
    reader, writer = await opened(port)
    writer.write(b"P")
    await writer.drain()
    writer.write(b"OST /rpc HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n")
    assert (await within(reader.readline())).startswith(b"HTTP/1.1 200")
    writer.close()


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


# Callers


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    env = {"DRAGOMAN_AUTH": "bearer", "DRAGOMAN_AUTH_TOKEN": "s3cret-token-of-the-test"}
    with limited(folder, env) as server:
        yield server.ready()


async def test_callers_prove_who_they_are_as_on_http(guarded: str) -> None:
    async with rpcs_to(guarded) as rpcs:
        call = rpcs.stream("SendStreamingMessage", message("hello", "unknown"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await within(call.read())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ("www-authenticate", "Bearer") in {
            (key, str(value).split(" ")[0]) for key, value in refused.value.trailing_metadata()
        }
        bad = [("authorization", "Bearer wrong-token-of-the-test")]
        status, error = await rpcs.refusal("ListTasks", {}, bad)
        assert (status, type(error)) == ("UNAUTHENTICATED", Unauthenticated)
        good = [("authorization", "Bearer s3cret-token-of-the-test")]
        assert (await rpcs.call("ListTasks", {}, good))["totalSize"] == 0
    async with Client(guarded, bindings=["grpc"], bearer="s3cret-token-of-the-test") as agent:
        assert (await agent.send("hello")).text == "hello"
    with pytest.raises(CredentialsMissing):
        async with Client(guarded, bindings=["grpc"]) as agent:
            await agent.send("hello")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_health_is_for_everyone_and_reflection_only_where_callers_are(
    guarded: str, places: tuple[str, str], version: str
) -> None:
    for address, reflects in ((guarded, False), (places[0], True)):
        async with rpcs_to(address) as rpcs:
            assert await rpcs.channel.unary_unary(HEALTH)(b"", timeout=WAIT) == b"\x08\x01"
            if reflects:
                assert "lf.a2a.v1.A2AService" in await listed(rpcs, version)
                continue
            # Nothing is written: the answer may come first, and grpcio then fails the write.
            call = rpcs.channel.stream_stream(asking(version))(timeout=WAIT)
            assert await within(call.code()) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_every_service_that_it_lists(
    places: tuple[str, str], version: str
) -> None:
    async with rpcs_to(places[0]) as rpcs:
        names = await listed(rpcs, version)
        assert {REFLECTION.format(one) for one in ("v1", "v1alpha")} < set(names)
        for name in names:
            reply = await reflected(rpcs, version, file_containing_symbol=name)
            assert not reply.HasField("error_response"), name
            # As tools do: what is described must hold together by itself.
            pool = DescriptorPool()
            for file in reversed(reply.file_descriptor_response.file_descriptor_proto):
                pool.AddSerializedFile(file)
            found = pool.FindServiceByName(name)
            package = name.rpartition(".")[0]
            assert {one.input_type.file.package for one in found.methods} == {package}


async def listed(rpcs: Rpcs, version: str) -> list[str]:
    reply = await reflected(rpcs, version, list_services="*")
    return [one.name for one in reply.list_services_response.service]


def asking(version: str) -> str:
    return f"/{REFLECTION.format(version)}/ServerReflectionInfo"


async def reflected(rpcs: Rpcs, version: str, **asked: str) -> Any:
    kinds: Any = reflection_pb2
    question = kinds.ServerReflectionRequest(**asked).SerializeToString()
    call = rpcs.channel.stream_stream(asking(version))(iter([question]), timeout=WAIT)
    return kinds.ServerReflectionResponse.FromString(await call.read())


# Limits


async def test_a_caller_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    env = {"DRAGOMAN_RATE_LIMIT": "3/60s"}
    with limited(tmp_path, env) as server:
        async with rpcs_to(server.ready()) as rpcs:
            found = [await tried(rpcs) for _ in range(8)]
    refused = [one for one in found if one is not None]
    assert refused and found[0] is None
    status, error = refused[0]
    assert (status, type(error)) == ("RESOURCE_EXHAUSTED", RateLimited)
    # As long as the rate says, and not what is said where nothing is known.
    assert int(error.facts["retryAfter"]) > 1


async def tried(rpcs: Rpcs) -> tuple[str, Any] | None:
    try:
        await rpcs.call("ListTasks", {})
    except grpc.aio.AioRpcError as error:
        trailers: Any = error.trailing_metadata()
        details = next(value for key, value in trailers if key == statuses.DETAILS)
        return error.code().name, statuses.decode(error.code().name, error.details() or "", details)
    return None


def limited(folder: Path, env: dict[str, str]) -> Any:
    from harness.processes import running
    from harness.rpcs import AGENT

    store = folder / "tasks.db"
    return running("serve", AGENT, "--listen", "127.0.0.1:0", "--store", store, cwd=folder, env=env)


async def test_what_is_too_large_or_too_much_is_refused(tmp_path: Path) -> None:
    env = {
        "DRAGOMAN_MAX_BODY_BYTES": "100000",
        "DRAGOMAN_MAX_JSON_VALUES": "1000",
        "DRAGOMAN_MAX_STREAMS": "2",
    }
    with limited(tmp_path, env) as server:
        async with rpcs_to(server.ready()) as rpcs:
            status, _ = await rpcs.refusal("SendMessage", message("x" * 200_000, "large"))
            assert status == "RESOURCE_EXHAUSTED"
            many = message("x", "many")
            many["message"]["parts"] = [{"data": [{}] * 5_000}]
            status, _ = await rpcs.refusal("SendMessage", many)
            assert status == "INVALID_ARGUMENT"
            for heavy in ([("x-much", "y" * 60_000)], [(f"x-{n}", "y") for n in range(120)]):
                status, _ = await rpcs.refusal("ListTasks", {}, heavy)
                assert status == "RESOURCE_EXHAUSTED"
            held = [rpcs.stream("SendStreamingMessage", message("hold", f"h{n}")) for n in (1, 2)]
            for call in held:
                await within(call.read())
            status, error = await rpcs.refusal("SendStreamingMessage", message("hold", "h3"))
            assert type(error) is Overloaded
            assert status in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
            assert (await rpcs.call("ListTasks", {}))["totalSize"] == 2


async def test_connections_of_grpc_leave_descriptors_for_others(tmp_path: Path) -> None:
    with limited(tmp_path, {"DRAGOMAN_MAX_CONNECTIONS": "6"}) as server:
        address = server.ready()
        async with AsyncExitStack() as stack:
            first, second, third = [
                await stack.enter_async_context(rpcs_to(address)) for _ in range(3)
            ]
            await first.call("ListTasks", {})
            await second.call("ListTasks", {})
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await third.call("ListTasks", {})
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{address}/healthz")).status_code == 200


async def test_a_server_that_ends_sends_its_readers_back(tmp_path: Path) -> None:
    with talking(tmp_path) as server:
        async with rpcs_to(server.ready()) as rpcs:
            call = rpcs.stream("SendStreamingMessage", message("hold", "ending"))
            await within(call.read())
            ending = asyncio.create_task(asyncio.to_thread(server.stop))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while True:
                    if await within(call.read()) is grpc.aio.EOF:
                        raise AssertionError("it ended as if all was said")
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await within(ending) == 0


# TLS


async def test_tls_is_that_of_http_and_certificates_name_callers(tmp_path: Path) -> None:
    authority = Authority()
    served = authority.issue(LOOPBACK, uses=[SERVER]).save_files(tmp_path, "server")
    caller = authority.issue(dns("alice.example")).save_files(tmp_path, "caller")
    ca = authority.save(tmp_path, "ca")
    options = ("--tls-cert", served.certificate, "--tls-key", served.key, "--client-ca", ca)
    with talking(tmp_path, *map(str, options), "--auth", "mtls") as server:
        address = server.ready()
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(caller.certificate, caller.key)
        shown = [ClientCertificate()]
        async with Client(address, bindings=["grpc"], tls=context, credentials=shown) as agent:
            assert (await agent.send("hello")).text == "hello"
            assert agent.interface.protocol_binding == "GRPC"
        # The same context still speaks HTTP/1.1.
        async with Client(address, tls=context, credentials=shown) as agent:
            assert (await agent.send("hello")).text == "hello"
        credentials = grpc.ssl_channel_credentials(
            ca.read_bytes(), caller.key.read_bytes(), caller.certificate.read_bytes()
        )
        place = address.removeprefix("https://")
        async with grpc.aio.secure_channel(place, credentials) as channel:
            assert (await Rpcs(channel).call("ListTasks", {}))["totalSize"] == 2
        assert offered(server.port, context, ["h2", "http/1.1"]) == "http/1.1"
        assert offered(server.port, context, ["h2"]) == "h2"


def offered(port: int, context: ssl.SSLContext, protocols: list[str]) -> str | None:
    """Return what a server chooses of what a client offers."""
    context.set_alpn_protocols(protocols)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return secured.selected_alpn_protocol()


def test_nothing_of_grpc_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    with talking(tmp_path) as server:
        server.ready()
        loaded = Path(f"/proc/{server.pid}/maps")
        if not os.access(loaded, os.R_OK):
            pytest.skip("this system does not show what a process has loaded")
        assert "cygrpc" not in loaded.read_text()
