"""The protocol over gRPC, on the common port: operations, streams, errors, callers that leave."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from harness.rpcs import Rpcs, memory_of, message, rpcs_to, talking
from harness.waiting import eventually, within

from dragoman import Client
from dragoman.errors import (
    InvalidParams,
    InvalidRequest,
    TaskNotFound,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.card import RESUME_URI
from dragoman.transports.grpc import tables

pytestmark = pytest.mark.usefixtures("one_loop")

POSITIONS = (("a2a-extensions", RESUME_URI),)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with talking(tmp_path_factory.mktemp("server"), "--allow-private") as server:
        yield server.ready()


@pytest.fixture
async def rpcs(address: str) -> AsyncIterator[Rpcs]:
    async with rpcs_to(address) as found:
        yield found


@pytest.fixture
async def old(address: str) -> AsyncIterator[Rpcs]:
    async with rpcs_to(address, tables.V0_3) as found:
        yield found


async def test_a_task_is_the_same_over_every_binding(address: str, rpcs: Rpcs) -> None:
    sent = (await rpcs.call("SendMessage", message("hello", "same-1")))["task"]
    assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
    async with Client(address, bindings=["jsonrpc"]) as other:
        read = await other.get(sent["id"])
    found = await rpcs.call("GetTask", {"id": sent["id"]})
    assert found["artifacts"][0]["parts"] == [{"text": "hello"}]
    assert read.artifacts[0].parts[0].text == "hello"


@pytest.mark.requirement("T-13")
async def test_a_task_that_has_ended_is_shown_once_to_subscribers_of_0_3(
    rpcs: Rpcs, old: Rpcs
) -> None:
    task = (await rpcs.call("SendMessage", message("hello", "ended-1")))["task"]
    refused = await rpcs.refusal("SubscribeToTask", {"id": task["id"]})
    assert refused[0] == "FAILED_PRECONDITION" and isinstance(refused[1], UnsupportedOperation)
    (shown,) = await old.events("TaskSubscription", {"name": f"tasks/{task['id']}"})
    assert shown["task"]["id"] == task["id"]
    assert shown["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_every_operation_has_its_rpc(rpcs: Rpcs) -> None:
    task = (await rpcs.call("SendMessage", message("ask", "every-1")))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    config = {"taskId": task["id"], "id": "p", "url": "http://127.0.0.1:9/"}
    made = await rpcs.call("CreateTaskPushNotificationConfig", config)
    named = {"taskId": task["id"], "id": "p"}
    assert await rpcs.call("GetTaskPushNotificationConfig", named) == made
    listed = await rpcs.call("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
    assert listed["configs"] == [made]
    assert await rpcs.call("DeleteTaskPushNotificationConfig", named) == {}
    page = await rpcs.call("ListTasks", {"contextId": task["contextId"]})
    assert [one["id"] for one in page["tasks"]] == [task["id"]]
    assert page["totalSize"] == 1
    ended = await rpcs.call("CancelTask", {"id": task["id"]})
    assert ended["status"]["state"] == "TASK_STATE_CANCELED"
    status, error = await rpcs.refusal("GetExtendedAgentCard", {})
    assert (status, type(error)) == ("FAILED_PRECONDITION", UnsupportedOperation)


async def test_the_card_of_0_3_is_the_public_one_where_there_is_no_other(old: Rpcs) -> None:
    card = await old.call("GetAgentCard", {})
    assert card["name"] and card["protocolVersion"] == "0.3.0"
    assert not card.get("supportsAuthenticatedExtendedCard")


async def test_rpcs_of_0_3_have_the_names_of_all_its_releases(old: Rpcs) -> None:
    sent = {
        "message": {"messageId": "old-1", "role": "ROLE_USER", "content": [{"text": "ask"}]},
        "configuration": {"blocking": True},
    }
    task = (await old.call("SendMessage", sent))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    name = f"tasks/{task['id']}"
    config = {
        "parent": name,
        "configId": "c",
        "config": {"pushNotificationConfig": {"url": "http://127.0.0.1:9/"}},
    }
    made = await old.call("CreateTaskPushNotification", config)
    assert made["name"] == f"{name}/pushNotificationConfigs/c"
    assert await old.call("GetTaskPushNotification", {"name": made["name"]}) == made
    for rpc in ("ListTaskPushNotification", "ListTaskPushNotificationConfig"):
        assert len((await old.call(rpc, {"parent": name}))["configs"]) == 1
    ended = await old.call("CancelTask", {"name": name})
    assert ended["status"]["state"] == "TASK_STATE_CANCELLED"


async def test_events_have_positions_for_readers_that_ask_for_them(rpcs: Rpcs) -> None:
    plain = await rpcs.events("SendStreamingMessage", message("count 3", "plain"))
    assert all("position" not in event for event in plain)
    events = await rpcs.events("SendStreamingMessage", message("count 3", "asked"), POSITIONS)
    positions = [event["position"] for event in events]
    assert positions == sorted({*positions})
    assert "task" in events[0]


async def test_a_stream_goes_on_behind_the_position_that_its_reader_names(rpcs: Rpcs) -> None:
    sent = message("count 20", "resumed")
    whole = await rpcs.events("SendStreamingMessage", sent, POSITIONS)
    seen = whole[7]["position"]
    task = whole[0]["task"]["id"]
    after = [*POSITIONS, ("last-event-id", str(seen))]
    rest = await rpcs.events("SubscribeToTask", {"id": task}, after)
    shown = [event for event in rest if "task" not in event]
    assert shown == whole[8:]


async def test_a_caller_that_leaves_ends_the_reading_and_not_the_task(rpcs: Rpcs) -> None:
    call = rpcs.stream("SendStreamingMessage", message("hold", "left"))
    task = rpcs.event(await within(call.read()))["task"]["id"]
    call.cancel()
    found = await rpcs.call("GetTask", {"id": task})
    assert found["status"]["state"] == "TASK_STATE_WORKING"
    await rpcs.call("CancelTask", {"id": task})


async def test_a_deadline_is_answered_with_the_task_as_it_is(rpcs: Rpcs) -> None:
    task = (await rpcs.call("SendMessage", message("hold", "late"), timeout=2))["task"]
    assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    await rpcs.call("CancelTask", {"id": task["id"]})


@pytest.mark.parametrize(
    ("name", "values", "status", "error"),
    [
        ("GetTask", {"id": "none"}, "NOT_FOUND", TaskNotFound),
        ("GetTask", {}, "INVALID_ARGUMENT", InvalidParams),
        ("SendMessage", message("x", ""), "INVALID_ARGUMENT", InvalidParams),
        ("ListTasks", {"pageSize": 0}, "INVALID_ARGUMENT", InvalidParams),
        ("ListTasks", {"pageToken": "made up"}, "INVALID_ARGUMENT", InvalidParams),
        ("SubscribeToTask", {"id": "none"}, "NOT_FOUND", TaskNotFound),
        # Of two errors with one reason, the first is what it is read as.
        ("SendMessage", b"\xff\xff\xff", "INVALID_ARGUMENT", InvalidRequest),
    ],
)
async def test_what_is_wrong_has_the_status_of_the_table(
    rpcs: Rpcs, name: str, values: Any, status: str, error: type[Exception]
) -> None:
    before = (await rpcs.call("ListTasks", {}))["totalSize"]
    found, meant = await rpcs.refusal(name, values)
    assert (found, type(meant)) == (status, error)
    assert (await rpcs.call("ListTasks", {}))["totalSize"] == before


@pytest.mark.parametrize("version", ["0.3", "2.0", "none"])
async def test_a_version_that_the_service_is_not_is_refused(rpcs: Rpcs, version: str) -> None:
    status, error = await rpcs.refusal("GetTask", {"id": "x"}, [("a2a-version", version)])
    assert (status, type(error)) == ("FAILED_PRECONDITION", VersionNotSupported)
    assert error.facts["supportedVersions"] == "1.0"


async def test_what_is_no_rpc_of_ours_is_unimplemented(rpcs: Rpcs) -> None:
    for path in ("/lf.a2a.v1.A2AService/Unheard", "/other.Service/Call", "/nothing"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpcs.channel.unary_unary(path)(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_tenant_that_is_the_path_of_an_agent_leads_to_it(rpcs: Rpcs) -> None:
    sent = message("hello", "tenant") | {"tenant": "agents/talker"}
    task = (await rpcs.call("SendMessage", sent))["task"]
    assert (await rpcs.call("GetTask", {"id": task["id"]}))["id"] == task["id"]
    status, _ = await rpcs.refusal("GetTask", {"id": task["id"], "tenant": "agents/other"})
    assert status in ("NOT_FOUND", "UNIMPLEMENTED")


async def test_a_reader_that_does_not_read_costs_no_memory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with talking(tmp_path_factory.mktemp("unread")) as server:
        async with rpcs_to(server.ready()) as rpcs:
            await rpcs.call("SendMessage", message("hello", "warm"))
            before = memory_of(server)
            call = rpcs.stream("SendStreamingMessage", message("count 20000", "unread"))
            task = rpcs.event(await within(call.read()))["task"]["id"]

            async def is_done() -> bool:
                found = await rpcs.call("GetTask", {"id": task, "historyLength": 0})
                return found["status"]["state"] == "TASK_STATE_COMPLETED"

            await eventually(is_done)
            grown = (server.memory() or 0) - before
            call.cancel()
    assert grown < 80 * 1024 * 1024


async def test_many_rpcs_share_a_connection(rpcs: Rpcs) -> None:
    sends = [rpcs.call("SendMessage", message(f"n {n}", f"many-{n}")) for n in range(50)]
    found = await within(asyncio.gather(*sends))
    texts = [one["task"]["artifacts"][0]["parts"][0]["text"] for one in found]
    assert texts == [f"n {n}" for n in range(50)]
