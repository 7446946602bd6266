"""What requests over HTTP have, rpcs have as well: refusals in overload, traces, other replicas."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.processes import running
from harness.rpcs import AGENT, message, rpcs_to
from harness.serving import Site, serving
from harness.waiting import within

from dragoman import Agent, Client
from dragoman.errors import Overloaded
from dragoman.http.admission import Admission, Ticket
from dragoman.model.card import RESUME_URI
from tests.gateway.gateway_site import Restartable, gateway

pytestmark = pytest.mark.usefixtures("one_loop")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
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
