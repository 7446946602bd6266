"""What requests over HTTP have, rpcs have as well: refusals in overload, traces, other replicas."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.processes import running
from harness.rpcs import AGENT, message, rpcs_to
from harness.serving import Site, serving
from harness.waiting import WAIT, eventually, within

from dragoman import Agent, Client
from dragoman.errors import Overloaded, StoreBroken
from dragoman.http.admission import Admission, Ticket
from dragoman.http.grpc import services
from dragoman.model.card import RESUME_URI
from dragoman.transports.grpc import tables
from tests.gateway.gateway_site import Restartable, gateway

pytestmark = pytest.mark.usefixtures("one_loop")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEALTH = "/grpc.health.v1.Health"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def echo() -> Agent:
    agent = Agent("Echo", "Repeats.")

    @agent.skill
    async def repeat(text: str) -> str:
        return text

    return agent


# Overload


class Shut(Admission):
    """Lets nobody begin but those that are preferred, as in the deepest overload."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> Ticket | None:
        self.open += is_preferred
        return (0, None) if is_preferred else None

    def end(self, ticket: Ticket) -> None:
        self.open -= 1


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(echo(), transport="jsonrpc,grpc") as found:
        yield found


async def test_an_overloaded_server_says_when_to_come_back(site: Site) -> None:
    shut = Shut()
    async with rpcs_to(site.url) as rpcs:
        task = (await rpcs.call("SendMessage", message("hello", "before")))["task"]
        site.app.access.admission = shut
        for name in ("SendMessage", "SendStreamingMessage"):
            status, error = await rpcs.refusal(name, message("hello", f"refused-{name}"))
            assert (status, type(error)) == ("RESOURCE_EXHAUSTED", Overloaded)
            assert int(error.facts["retryAfter"]) > 0
        # Who comes back to a stream is let in before others.
        behind = [("last-event-id", "1"), ("a2a-extensions", RESUME_URI)]
        assert await rpcs.events("SubscribeToTask", {"id": task["id"]}, behind)
        site.app.access.admission = None
        assert (await rpcs.call("ListTasks", {}))["totalSize"] == 1


async def test_an_rpc_that_has_ended_is_no_longer_under_way() -> None:
    async with serving(echo(), transport="jsonrpc,grpc") as site:
        site.app.access.admission = shut = Shut()
        async with rpcs_to(site.url) as rpcs:
            preferred = [("last-event-id", "1")]
            await rpcs.refusal("SubscribeToTask", {"id": "none"}, preferred)
            await rpcs.refusal("GetTask", {}, preferred)
    assert shut.open == 0


# Health


async def test_health_is_what_readiness_says_over_http(tmp_path: Path) -> None:
    store = tmp_path / "kept" / "tasks.db"
    store.parent.mkdir()
    async with (
        serving(echo(), store=str(store), transport="jsonrpc,grpc") as site,
        rpcs_to(site.url) as rpcs,
    ):
        watched = rpcs.channel.unary_stream(f"{HEALTH}/Watch")(b"", timeout=WAIT)
        assert await within(watched.read()) == SERVING
        store.unlink()
        with pytest.raises(StoreBroken):
            await site.app.store.renew()
        await within(site.app.store.broken())
        assert (await site.http.get("/readyz")).status_code == 503
        # Told without being asked again, and to those who ask.
        assert await within(watched.read()) == NOT_SERVING
        assert await rpcs.channel.unary_unary(f"{HEALTH}/Check")(b"", timeout=WAIT) == NOT_SERVING


async def test_no_more_callers_watch_than_there_are_connections(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_MOST_WATCHES", 1)
    async with rpcs_to(site.url) as rpcs:
        watch = rpcs.channel.unary_stream(f"{HEALTH}/Watch")
        first = watch(b"", timeout=WAIT)
        assert await within(first.read()) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await within(watch(b"", timeout=WAIT).read())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()

        async def is_let_in() -> bool:
            try:
                return await watch(b"", timeout=WAIT).read() == SERVING
            except grpc.aio.AioRpcError:
                return False

        await eventually(is_let_in)


# Traces


async def test_a_trace_goes_through_a_gateway_to_the_agent_behind_it(tmp_path: Path) -> None:
    wanted = {"DRAGOMAN_LOG_FORMAT": "json", "DRAGOMAN_ACCESS_LOG": "on"}
    said = ("serve", AGENT, "--listen", "127.0.0.1:0", "--transport", "grpc")
    store = tmp_path / "tasks.db"
    with running(*said, "--store", store, cwd=tmp_path, env=wanted) as server:
        async with gateway(tmp_path, transport="grpc", allow_private=True) as site:
            await site.register(server.ready(), name="talker")
            async with rpcs_to(site.url) as rpcs:
                sent = message("hello", "traced") | {"tenant": "a2a/talker"}
                task = (await rpcs.call("SendMessage", sent, [("traceparent", PARENT)]))["task"]
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.splitlines()]
    asked = [line for line in lines if line.get("operation") == "SendMessage"]
    assert [(line["binding"], line["trace_id"]) for line in asked] == [("GRPC", TRACE)]


# Replicas


async def test_a_replica_takes_over_from_one_that_is_gone(tmp_path: Path) -> None:
    async with (
        Restartable(echo(), transport="grpc") as one,
        Restartable(echo(), transport="grpc") as two,
        gateway(tmp_path, transport="jsonrpc,grpc", allow_private=True) as site,
    ):
        registered = await site.register(one.url, name="echo", replicas=[two.url], repeatable=True)
        for gone, there in ((one, two), (two, one)):
            await gone.stop()
            async with Client(site.at(registered), bindings=["jsonrpc"]) as client:
                assert (await within(client.send("hello"))).text == "hello"
            await gone.start()
            assert there.app is not None
            async with rpcs_to(there.url) as rpcs:
                assert (await rpcs.call("ListTasks", {}))["totalSize"] > 0


async def offered(site: Site, name: str) -> list[tuple[str, str, str]]:
    """Return address, version and tenant of each interface of gRPC of an agent's card."""
    shown = await site.http.get(
        f"/a2a/{name}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"}
    )
    return [
        (one["url"], one["protocolVersion"], one.get("tenant", ""))
        for one in shown.json()["supportedInterfaces"]
        if one["protocolBinding"] == "GRPC"
    ]


async def test_a_host_of_its_own_leads_callers_of_0_3_to_one_agent(tmp_path: Path) -> None:
    async with (
        serving(echo()) as one,
        serving(echo()) as other,
        gateway(tmp_path, grpc_domain="localhost", transport="jsonrpc,rest,grpc") as gate,
    ):
        await gate.register(one.url, name="One")
        await gate.register(other.url, name="Other")
        shared = gate.url.removeprefix("http://")
        port = shared.rpartition(":")[2]
        for name in ("one", "other"):
            place = f"{name}.a2a.localhost:{port}"
            assert sorted(await offered(gate, name)) == [
                (shared, "1.0", f"a2a/{name}"),
                (place, "0.3", ""),
            ]
            sent = {"messageId": name, "role": "ROLE_USER", "content": [{"text": name}]}
            async with rpcs_to(place, tables.V0_3) as rpcs:
                reply = await rpcs.call("SendMessage", {"message": sent})
                read = await rpcs.call("GetTask", {"name": f"tasks/{reply['task']['id']}"})
            assert read["status"]["state"] == "TASK_STATE_COMPLETED"
        # Each got what was sent to its host, and nothing else.
        for name, site in (("one", one), ("other", other)):
            listed = (await site.http.get("/tasks", headers={"A2A-Version": "1.0"})).json()
            history = [task["history"][0]["parts"] for task in listed["tasks"]]
            assert history == [[{"text": name}]]
        async with rpcs_to(f"neither.a2a.localhost:{port}", tables.V0_3) as rpcs:
            status, _ = await rpcs.refusal("SendMessage", {"message": sent})
            assert status == "UNIMPLEMENTED"
        # Health is that of the process, at any host.
        async with rpcs_to(place) as rpcs:
            assert await rpcs.channel.unary_unary(f"{HEALTH}/Check")(b"", timeout=WAIT) == SERVING


async def test_no_host_is_offered_that_was_not_set_up(tmp_path: Path) -> None:
    async with serving(echo()) as one, gateway(tmp_path, transport="jsonrpc,grpc") as gate:
        await gate.register(one.url, name="One")
        assert [version for _, version, _ in await offered(gate, "one")] == ["1.0"]
