"""Sections 0, 1 and 4: versions, extensions, content types, paths and tenants."""

import asyncio
import json
from typing import Any

import pytest
from harness.serving import V1, Site, serving

from dragoman.dialects.operations import BY_V0_METHOD, BY_V1_METHOD
from tests.wire_rules.conftest import Gates, make
from tests.wire_rules.rules import INVALID_PARAMS, UNKNOWN, code_of, new, old, rpc, state, task_of

KNOWN = "urn:example:known"
V03 = {"A2A-Version": "0.3"}
LITERALS = ["tasks", "message:send", "message:stream", "extendedAgentCard", ".well-known"]
LITERALS += ["a2a", "api", "rpc", "agent"]

# The columns of the reference's table: 1.0 over JSON-RPC, 0.x over JSON-RPC, REST 1.0.
OPERATIONS = """
SendMessage message/send POST /message:send
SendStreamingMessage message/stream POST /message:stream
GetTask tasks/get GET /tasks/{id}
ListTasks - GET /tasks
CancelTask tasks/cancel POST /tasks/{id}:cancel
SubscribeToTask tasks/resubscribe POST /tasks/{id}:subscribe
CreateTaskPushNotificationConfig tasks/pushNotificationConfig/set POST /tasks/{id}/pushNotificationConfigs
GetTaskPushNotificationConfig tasks/pushNotificationConfig/get GET /tasks/{id}/pushNotificationConfigs/c
ListTaskPushNotificationConfigs tasks/pushNotificationConfig/list GET /tasks/{id}/pushNotificationConfigs
DeleteTaskPushNotificationConfig tasks/pushNotificationConfig/delete DELETE /tasks/{id}/pushNotificationConfigs/c
GetExtendedAgentCard agent/getAuthenticatedExtendedCard GET /extendedAgentCard
"""  # noqa: E501  # a table


@pytest.mark.requirement("1.1-names")
@pytest.mark.parametrize("line", OPERATIONS.split("\n")[1:-1], ids=lambda line: line.split()[0])
async def test_each_operation_has_its_name_on_each_binding(site: Site, line: str) -> None:
    method, older, verb, path = line.split()
    assert method in BY_V1_METHOD
    assert older == "-" or older in BY_V0_METHOD
    # Known names get as far as their parameters or their capability, unknown ones do not.
    for name in (method, older):
        answer = await site.answer(name, {"id": ""}) if name != "-" else {}
        assert answer.get("error", {}).get("code") != -32601
    response = await site.http.request(verb, path.replace("{id}", UNKNOWN))
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert response.json()["error"]["details"][0]["reason"] != "METHOD_NOT_FOUND"


@pytest.mark.requirement("V-13")
async def test_success_over_rest_is_200(site: Site) -> None:
    sent = await site.http.post("/message:send", json=new("ask"))
    id = sent.json()["task"]["id"]
    for response in (
        sent,
        await site.http.get(f"/tasks/{id}"),
        await site.http.get("/tasks"),
        await site.http.post(f"/tasks/{id}:cancel"),
        await site.http.post("/message:stream", json=new()),
    ):
        assert response.status_code == 200


# Versions


@pytest.mark.requirement("0-patch", "4.1-header", "4.1-matching", "4.1-response")
@pytest.mark.parametrize(
    ("version", "method", "served"),
    [
        ("1.0", "SendMessage", "1.0"),
        ("1.0.7", "SendMessage", "1.0"),
        ("1.4", "SendMessage", "1.0"),
        ("0.3", "message/send", "0.3"),
        ("0.3.99", "message/send", "0.3"),
        ("0.2", "message/send", "0.2"),
        ("0.2.6", "message/send", "0.2"),
    ],
)
async def test_major_and_minor_choose_the_version_and_the_answer_names_it(
    site: Site, version: str, method: str, served: str
) -> None:
    params = new() if method == "SendMessage" else old()
    response = await site.post(rpc(method, params), headers={"A2A-Version": version})
    assert ("task" if served == "1.0" else "kind") in response.json()["result"]
    assert response.headers["a2a-version"] == served
    assert "A2A-Version" in response.headers["vary"]


@pytest.mark.requirement("4.1-query", "4.1-header-wins")
async def test_the_query_may_name_the_version_and_the_header_wins(site: Site) -> None:
    served = await site.post(rpc("message/send", old()), "/?A2A-Version=0.2")
    assert served.headers["a2a-version"] == "0.2"
    served = await site.post(rpc("message/send", old()), "/?A2A-Version=0.2", V03)
    assert served.headers["a2a-version"] == "0.3"
    assert (await site.http.get("/tasks?A2A-Version=9.0")).status_code == 400
    assert (await site.http.get("/tasks?A2A-Version=9.0", headers=V1)).status_code == 200


@pytest.mark.requirement("4.1-absent", "4.1-infer")
async def test_silence_is_0_3_unless_a_name_of_1_0_speaks_for_itself(site: Site) -> None:
    for headers in ({}, {"A2A-Version": ""}):
        assert (await site.call("message/send", old(), headers=headers))["kind"] == "task"
        assert await task_of(site, new(), headers=headers)
        assert (await site.http.get("/tasks", headers=headers)).status_code == 200
    async with serving(make(Gates(asyncio.Event)), version_mode="strict") as strict:
        for headers in ({}, {"A2A-Version": ""}):
            assert (await strict.call("message/send", old(), headers=headers))["kind"] == "task"
            assert await code_of(strict, "SendMessage", new(), headers=headers) == -32009
            assert (await strict.http.get("/tasks", headers=headers)).status_code == 400


@pytest.mark.requirement("4.1-bad-value")
@pytest.mark.parametrize("version", ["INVALID", "2", "1", "v1.0", "1.0-beta", "1,0"])
async def test_what_is_no_version_is_not_supported(site: Site, version: str) -> None:
    headers = {"A2A-Version": version}
    assert await code_of(site, "SendMessage", new(), headers=headers) == -32009
    assert (await site.http.get("/tasks", headers=headers)).status_code == 400


@pytest.mark.requirement("4.1-contradiction")
async def test_a_version_that_contradicts_method_or_path_is_refused(site: Site) -> None:
    assert await code_of(site, "message/send", old(), headers=V1) == -32009
    # A peer of 0.3 does not know -32009.
    assert await code_of(site, "SendMessage", new(), headers=V03) == -32600
    assert (await site.http.get("/tasks", headers=V03)).status_code == 400


@pytest.mark.requirement("4.2-mirror", "4.2-any-dialect")
async def test_each_request_is_answered_in_its_own_dialect_whoever_made_the_task(
    site: Site,
) -> None:
    made = [
        (await task_of(site, new("echo", "one")))["id"],
        (await site.call("message/send", old("echo", "two")))["id"],
        (await site.call("message/send", old("echo", "six"), headers={"A2A-Version": "0.2"}))["id"],
        (await site.http.post("/message:send", json=new("echo", "ten"))).json()["task"]["id"],
    ]
    # The client keeps its connections: nothing about one request sticks to the next.
    for id, text in zip(made, ("one", "two", "six", "ten"), strict=True):
        newer = await site.task(id)
        assert newer["artifacts"][0]["parts"] == [{"text": text}]
        assert "kind" not in newer and state(newer) == "TASK_STATE_COMPLETED"
        for headers in (V03, {"A2A-Version": "0.2"}):
            older = await site.call("tasks/get", {"id": id}, headers=headers)
            assert older["artifacts"][0]["parts"] == [{"kind": "text", "text": text}]
            assert older["kind"] == "task" and state(older) == "completed"
        assert (await site.http.get(f"/tasks/{id}")).json() == newer


@pytest.mark.requirement("4.8-case")
async def test_names_of_service_parameters_are_read_in_any_case(site: Site) -> None:
    for name in ("a2a-version", "A2A-VERSION", "A2a-VeRsIoN"):
        assert await code_of(site, "SendMessage", new(), headers={name: "9.0"}) == -32009


# Extensions


@pytest.mark.requirement("4.3-header", "4.3-response", "4.3-unknown")
async def test_extensions_are_read_from_both_headers_and_those_on_are_listed(site: Site) -> None:
    strange = "urn:example:unknown"
    for headers in (
        [("A2A-Extensions", KNOWN)],
        [("X-A2A-Extensions", KNOWN)],
        [("A2A-Extensions", f",{strange}, {KNOWN},{KNOWN}")],
        [("A2A-Extensions", strange), ("A2A-Extensions", KNOWN)],
    ):
        newer = await site.http.post("/", json=rpc("SendMessage", new()), headers=headers)
        assert newer.headers["a2a-extensions"] == KNOWN and "result" in newer.json()
        older = await site.http.post("/", json=rpc("message/send", old()), headers=headers)
        assert older.headers["x-a2a-extensions"] == KNOWN
    for headers in ([], [("A2A-Extensions", strange)]):
        newer = await site.http.post("/", json=rpc("SendMessage", new()), headers=headers)
        assert "a2a-extensions" not in newer.headers and "result" in newer.json()


@pytest.mark.requirement("4.3-placement")
async def test_extension_names_and_data_of_a_message_are_kept(site: Site) -> None:
    metadata = {"skillId": "echo", f"{KNOWN}/trace": {"id": [1]}}
    task = await task_of(site, new(extensions=[KNOWN], metadata=metadata))
    for shown in (await site.task(task["id"]), await site.call("tasks/get", {"id": task["id"]})):
        assert shown["history"][0]["extensions"] == [KNOWN]
        assert shown["history"][0]["metadata"] == metadata


# Content types


@pytest.mark.requirement("4.4-jsonrpc", "4.4-sse-headers")
async def test_json_rpc_answers_json_and_streams_events_that_nobody_holds_back(
    site: Site,
) -> None:
    for method, params in (("SendMessage", new()), ("message/send", old())):
        response = await site.post(rpc(method, params))
        assert response.headers["content-type"] == "application/json"
    for method, params in (("SendStreamingMessage", new()), ("message/stream", old())):
        response = await site.post(rpc(method, params))
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.requirement("4.4-rest")
async def test_rest_answers_a2a_json_or_json_to_who_asks_for_that_alone(site: Site) -> None:
    for accept, kind in (
        ("*/*", "application/a2a+json"),
        ("application/a2a+json", "application/a2a+json"),
        ("application/json, application/a2a+json", "application/a2a+json"),
        ("application/json", "application/json"),
    ):
        response = await site.http.get("/tasks", headers={"accept": accept})
        assert response.headers["content-type"] == kind


@pytest.mark.requirement("4.4-wrong-type")
async def test_json_under_other_names_is_tried_and_what_is_no_json_is_refused(site: Site) -> None:
    total = await site.total()
    readable = [{}, *({"content-type": kind} for kind in ("text/plain", "application/x+json"))]
    readable.append({"content-type": "application/json; charset=utf-8"})
    for headers in readable:
        body = json.dumps(rpc("SendMessage", new())).encode()
        assert "result" in (await site.http.post("/", content=body, headers=headers)).json()
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data", "application/xml"):
        body, headers = json.dumps(rpc("SendMessage", new())).encode(), {"content-type": kind}
        refused = await site.http.post("/", content=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (200, -32005)
        body = json.dumps(new()).encode()
        assert (await site.http.post("/message:send", content=body, headers=headers)).is_error
    assert await site.total() == total + len(readable)


@pytest.mark.requirement("4.4-keep-alive")
async def test_a_quiet_stream_gets_a_comment() -> None:
    gates = Gates(asyncio.Event)
    async with (
        serving(make(gates), keepalive=0.05) as site,
        asyncio.timeout(60),
        site.stream("SendStreamingMessage", new("hold")) as stream,
    ):
        async for frame in stream:
            if frame.comment is not None:
                gates["x"].set()
    assert gates["x"].is_set()


# Tenants


@pytest.mark.requirement("4.9-path", "4.9-scope", "V-3")
async def test_a_tenant_is_a_segment_or_a_member_and_sees_only_its_own(site: Site) -> None:
    task = (await site.http.post("/acme/message:send", json=new("ask"))).json()["task"]
    id = {"id": task["id"]}
    assert (await site.call("GetTask", id | {"tenant": "acme"}))["id"] == task["id"]
    assert (await site.http.get(f"/acme/tasks/{task['id']}")).json()["id"] == task["id"]
    for tenant in ({}, {"tenant": "other"}):
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert await code_of(site, method, id | tenant) == -32001
        assert await code_of(site, "SendMessage", new(taskId=task["id"]) | tenant) == -32001
        page = await site.call("ListTasks", {"contextId": task["contextId"]} | tenant)
        assert page["totalSize"] == 0
    assert (await site.http.get(f"/tasks/{task['id']}")).status_code == 404
    assert (await site.http.get("/acme/tasks")).json()["totalSize"] == 1


@pytest.mark.requirement("4.9-scope")
async def test_the_same_message_to_another_tenant_is_another_message(site: Site) -> None:
    params = new(contextId="same")
    first, again = await task_of(site, params), await task_of(site, params)
    other = await task_of(site, params | {"tenant": "acme-2"})
    assert first["id"] == again["id"] != other["id"]


@pytest.mark.requirement("4.9-mismatch")
async def test_a_path_and_a_body_that_name_different_tenants_are_refused(site: Site) -> None:
    total = await site.total()
    refused = await site.http.post("/acme/message:send", json=new() | {"tenant": "other"})
    assert refused.status_code == 400
    assert refused.json()["error"]["details"][0]["reason"] == "INVALID_PARAMS"
    same = await site.http.post("/acme-3/message:send", json=new() | {"tenant": "acme-3"})
    assert same.status_code == 200
    assert await site.total() == total


@pytest.mark.requirement("4.9-clash")
@pytest.mark.parametrize("literal", LITERALS)
async def test_routing_literals_are_no_tenants(site: Site, literal: str) -> None:
    assert (await site.http.post(f"/{literal}/message:send", json=new())).status_code in (404, 405)


@pytest.mark.requirement("4.9-clash")
async def test_v1_is_a_tenant_only_to_who_speaks_1_0(site: Site) -> None:
    async def task_of(headers: dict[str, str]) -> str:
        response = await site.http.post("/v1/message:send", json=new(), headers=headers)
        return response.json()["task"]["id"]

    theirs, nobodys = await task_of(V1), await task_of({})
    assert await code_of(site, "GetTask", {"id": theirs}) == -32001
    assert await code_of(site, "GetTask", {"id": nobodys, "tenant": "v1"}) == -32001
    assert (await site.call("GetTask", {"id": theirs, "tenant": "v1"}))["id"] == theirs
    assert (await site.task(nobodys))["id"] == nobodys
    assert (await site.http.get(f"/v1/tasks/{theirs}", headers=V1)).json()["id"] == theirs


@pytest.mark.requirement("4.9-old")
async def test_0_x_has_no_tenant(site: Site) -> None:
    task = await site.call("message/send", old() | {"tenant": "acme"})
    assert (await site.task(task["id"]))["id"] == task["id"]
    assert await code_of(site, "GetTask", {"id": task["id"], "tenant": "acme"}) == -32001


@pytest.mark.requirement("4.9-path")
@pytest.mark.parametrize("tenant", [7, "a b", ["acme"]])
async def test_a_tenant_is_a_name(site: Site, tenant: Any) -> None:
    assert await code_of(site, "SendMessage", new() | {"tenant": tenant}) == INVALID_PARAMS
