"""What the public suite for 1.0 rightly demands: of a server, and through a gateway."""

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from harness.serving import serving

from dragoman import Agent
from tests.conformance.asking import (
    BINDINGS,
    Wire,
    answer,
    canceled_when_seen,
    conformance_agent,
    message,
    wire_to,
)

UNKNOWN = "00000000-0000-4000-8000-000000000000"
HOOK = "http://127.0.0.1:9/hook"


def states(events: list[Any]) -> list[str]:
    told = [one.get("task") or one.get("statusUpdate") for one in events]
    return [one["status"]["state"].removeprefix("TASK_STATE_") for one in told if one]


async def test_a_send_waits_for_the_end_and_returns_the_task(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["message"]["parts"] == [{"text": "Hello from TCK"}]
    assert task["id"] and task["contextId"]


async def test_a_send_that_does_not_wait_returns_at_once(wire: Wire) -> None:
    quickly = {"returnImmediately": True}
    task = (await wire.send("test-resubscribe-message-id", configuration=quickly)).task
    assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    canceled = (await wire.ask("CancelTask", {"id": task["id"]})).result
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_message_to_a_task_that_ended_is_refused(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task
    refused = await wire.send("tck-complete-task", taskId=task["id"])
    assert refused.reason == "UNSUPPORTED_OPERATION"


async def test_a_media_type_that_the_card_does_not_name_is_refused(http: httpx.AsyncClient) -> None:
    agent = Agent("Reader", "Reads texts.", input_modes=["text/plain"])

    @agent.skill(default=True)
    async def read(text: str) -> str:
        """Reads it."""
        return text

    part = {"raw": "dGNr", "mediaType": "application/x-unsupported-tck-type"}
    async with serving(agent, transport=",".join(BINDINGS)) as site:
        for binding in BINDINGS:
            refused = await wire_to(http, site.url, binding).send("read", parts=[part])
            assert refused.reason == "CONTENT_TYPE_NOT_SUPPORTED"


async def test_the_agent_refuses_the_type_that_the_suite_has_made_up(
    wire: Wire, place: str
) -> None:
    part = {"raw": "dGNr", "mediaType": "application/x-unsupported-tck-type"}
    refused = await wire.send("tck-send-003", parts=[part])
    if place == "server":
        assert refused.reason == "CONTENT_TYPE_NOT_SUPPORTED"
    else:
        status = refused.task["status"]
        assert status["state"] == "TASK_STATE_FAILED"
        assert "media type" in status["message"]["parts"][0]["text"]


async def test_a_send_waits_or_does_not(wire: Wire) -> None:
    quickly = {"returnImmediately": True}
    task = (await wire.send("tck-delayed-complete", configuration=quickly)).task
    assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    (events,) = await canceled_when_seen([wire], "SubscribeToTask", "CancelTask", task["id"])
    assert states(events)[-1] == "CANCELED"


async def test_an_authorization_is_asked_for_by_a_task(wire: Wire) -> None:
    task = (await wire.send("tck-auth-required")).task
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    read = (await wire.ask("GetTask", {"id": task["id"]})).result
    assert read["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    done = (await wire.send("tck-complete-task", taskId=task["id"])).task
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_text_is_a_text_whatever_it_looks_like(wire: Wire) -> None:
    parts = [{"text": "tck-complete-task {'raw': b'x', 'media_type': 'application/x-none'}"}]
    assert "task" in (await wire.send("tck-complete-task", parts=parts)).result


@pytest.mark.parametrize("what", ["tck-stream-001", "tck-stream-003", "tck-stream-ordering-001"])
async def test_a_stream_begins_with_the_task_and_ends_with_it(wire: Wire, what: str) -> None:
    streamed = await wire.ask("SendStreamingMessage", {"message": message(what)})
    assert "task" in streamed.events[0]
    assert states(streamed.events)[-1] == "COMPLETED"
    (artifact,) = (one["artifactUpdate"] for one in streamed.events if "artifactUpdate" in one)
    assert artifact["artifact"]["parts"] == [{"text": "Generated text content"}]


async def test_chunks_are_appended_and_the_last_says_so(wire: Wire) -> None:
    said = {"message": message("tck-stream-artifact-chunked")}
    streamed = await wire.ask("SendStreamingMessage", said)
    chunks = [one["artifactUpdate"] for one in streamed.events if "artifactUpdate" in one]
    whole = "".join(part["text"] for one in chunks for part in one["artifact"].get("parts", []))
    assert whole == "chunk-1 chunk-2"
    assert [one.get("append", False) for one in chunks][:2] == [False, True]
    assert chunks[-1]["lastChunk"] is True


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_without_a_task_is_all_there_is_in_a_stream(
    binding: str, addresses: dict[str, str], http: httpx.AsyncClient
) -> None:
    wire = wire_to(http, addresses["server"], binding)
    said = {"message": message("tck-message-response")}
    streamed = await wire.ask("SendStreamingMessage", said)
    assert [list(one) for one in streamed.events] == [["message"]]
    assert "message" in (await wire.send("tck-message-response")).result


async def test_a_message_without_a_task_is_a_completed_task_behind_a_gateway(
    addresses: dict[str, str], http: httpx.AsyncClient
) -> None:
    task = (await Wire(http, addresses["gateway"]).send("tck-message-response")).task
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "Direct message response" in str(task)


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("tck-artifact-text", {"text": "Generated text content"}),
        ("tck-artifact-data", {"data": {"key": "value", "count": 42}}),
        ("tck-artifact-file", {"filename": "output.txt", "mediaType": "text/plain"}),
        ("tck-artifact-file-url", {"url": "https://example.com/output.txt"}),
    ],
)
async def test_artifacts_have_the_parts_of_1_0(wire: Wire, what: str, part: Any) -> None:
    task = (await wire.send(what)).task
    (found,) = task["artifacts"][0]["parts"]
    assert found | part == found and "kind" not in found


async def test_a_rejected_task_is_a_task(wire: Wire) -> None:
    task = (await wire.send("tck-reject-task")).task
    assert task["status"]["state"] == "TASK_STATE_REJECTED"


async def test_history_is_as_long_as_it_is_asked_for(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task
    for length, wanted in ((0, 0), (1, 1)):
        found = (await wire.ask("GetTask", {"id": task["id"], "historyLength": length})).result
        assert len(found.get("history", [])) == wanted


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
async def test_a_task_that_is_not_there_is_not_found(wire: Wire, method: str) -> None:
    assert (await wire.ask(method, {"id": UNKNOWN})).reason == "TASK_NOT_FOUND"


async def test_a_task_that_ended_is_not_canceled(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task
    assert (await wire.ask("CancelTask", {"id": task["id"]})).reason == "TASK_NOT_CANCELABLE"


async def test_a_task_that_waits_is_canceled(wire: Wire) -> None:
    task = (await wire.send("tck-input-required")).task
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    canceled = (await wire.ask("CancelTask", {"id": task["id"]})).result
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_follow_up_keeps_its_context(wire: Wire) -> None:
    task = (await wire.send("tck-input-required")).task
    done = (await wire.send("tck-complete-task", taskId=task["id"])).task
    assert (done["id"], done["contextId"]) == (task["id"], task["contextId"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_follow_up_in_another_context_is_refused(wire: Wire) -> None:
    task = (await wire.send("tck-input-required")).task
    refused = await wire.send("tck-complete-task", taskId=task["id"], contextId="another")
    assert refused.result is None and refused.status in (200, 400)
    assert (await wire.send("tck-complete-task", taskId=UNKNOWN)).reason == "TASK_NOT_FOUND"


async def test_tasks_are_listed_in_pages_the_latest_first(wire: Wire) -> None:
    first = (await wire.send("tck-artifact-text")).task
    context = first["contextId"]
    second = (await wire.send("tck-artifact-text", contextId=context)).task
    asked: dict[str, Any] = {"contextId": context, "pageSize": 1}
    page = (await wire.ask("ListTasks", asked)).result
    assert [one["id"] for one in page["tasks"]] == [second["id"]]
    assert "artifacts" not in page["tasks"][0]
    last = (await wire.ask("ListTasks", asked | {"pageToken": page["nextPageToken"]})).result
    assert [one["id"] for one in last["tasks"]] == [first["id"]]
    assert last["nextPageToken"] == ""


async def test_a_subscription_begins_with_the_task_and_ends_with_it(wire: Wire) -> None:
    quickly = {"returnImmediately": True}
    task = (await wire.send("test-resubscribe-message-id", configuration=quickly)).task["id"]
    both = await canceled_when_seen([wire, wire], "SubscribeToTask", "CancelTask", task)
    for events in both:
        assert events[0]["task"]["id"] == task
        assert states(events)[-1] == "CANCELED"


async def test_a_subscription_to_a_task_that_ended_is_refused_before_it_opens(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task
    refused = await wire.ask("SubscribeToTask", {"id": task["id"]})
    assert refused.reason == "UNSUPPORTED_OPERATION"
    assert refused.headers["content-type"].startswith("application/")


async def test_a_version_that_is_not_offered_is_refused(wire: Wire) -> None:
    refused = await wire.ask("GetTask", {"id": UNKNOWN}, A2A_Version="99.0")
    assert refused.reason == "VERSION_NOT_SUPPORTED"


async def test_push_configurations_are_made_read_listed_and_deleted(wire: Wire) -> None:
    task = (await wire.send("tck-complete-task")).task["id"]
    made = await wire.ask(
        "CreateTaskPushNotificationConfig", {"taskId": task, "id": "one", "url": HOOK}
    )
    named = {"taskId": task, "id": "one"}
    assert made.result["url"] == HOOK
    assert (await wire.ask("GetTaskPushNotificationConfig", named)).result["url"] == HOOK
    listed = (await wire.ask("ListTaskPushNotificationConfigs", {"taskId": task})).result
    assert [one["id"] for one in listed["configs"]] == ["one"]
    for _ in range(2):
        assert (await wire.ask("DeleteTaskPushNotificationConfig", named)).status in (200, 204)


async def test_an_extended_card_that_there_is_not_is_refused(wire: Wire) -> None:
    refused = await wire.ask("GetExtendedAgentCard", {})
    assert refused.result is None and refused.reason


async def test_the_extended_card_is_for_known_callers(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = conformance_agent(monkeypatch, extended="on")
    async with serving(
        agent, auth_token="a-token-of-the-suite", transport=",".join(BINDINGS)
    ) as site:
        for binding in BINDINGS:
            wire = wire_to(http, site.url, binding)
            assert (await wire.ask("GetExtendedAgentCard", {})).status == 401
            shown = await wire.ask(
                "GetExtendedAgentCard", {}, Authorization="Bearer a-token-of-the-suite"
            )
            assert "secret" in str(shown.result)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "NonExistentMethod"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {}}', -32602),
    ],
)
async def test_errors_of_json_rpc_have_their_codes(
    base: str, http: httpx.AsyncClient, body: bytes, code: int
) -> None:
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    refused = await http.post(f"{base}/a2a", content=body, headers=headers)
    assert refused.json()["error"]["code"] == code


async def test_errors_of_rest_are_those_of_aip_193(base: str, http: httpx.AsyncClient) -> None:
    refused = await http.get(f"{base}/tasks/{UNKNOWN}", headers={"A2A-Version": "1.0"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["status"]) == (404, 404, "NOT_FOUND")
    info = error["details"][0]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert (info["reason"], info["domain"]) == ("TASK_NOT_FOUND", "a2a-protocol.org")


async def test_a_caller_gets_the_media_type_that_it_asks_for(
    base: str, http: httpx.AsyncClient
) -> None:
    for kind in ("application/json", "application/a2a+json"):
        headers = {"A2A-Version": "1.0", "Content-Type": kind, "Accept": kind}
        body = {"message": message("tck-complete-task")}
        sent = await http.post(f"{base}/message:send", json=body, headers=headers)
        assert sent.status_code == 200
        assert sent.headers["content-type"].partition(";")[0] == kind


async def test_a_card_can_be_cached(base: str, http: httpx.AsyncClient) -> None:
    shown = await http.get(f"{base}/.well-known/agent-card.json")
    assert "max-age" in shown.headers["cache-control"]
    assert shown.headers["etag"] and shown.headers["last-modified"]
    offered = shown.json()["supportedInterfaces"]
    assert {one["protocolBinding"] for one in offered} == {"JSONRPC", "HTTP+JSON", "GRPC"}


async def test_the_address_of_grpc_is_a_host_and_a_port(
    addresses: dict[str, str], http: httpx.AsyncClient
) -> None:
    base = addresses["server"]
    for version, interfaces, binding in (
        ("1.0", "supportedInterfaces", "protocolBinding"),
        ("0.3", "additionalInterfaces", "transport"),
    ):
        headers = {"A2A-Version": version}
        shown = await http.get(f"{base}/.well-known/agent-card.json", headers=headers)
        offered = shown.json()[interfaces]
        assert {one["url"] for one in offered if one[binding] == "GRPC"} == {urlsplit(base).netloc}


CARD_1_0 = set(
    [
        "name",
        "description",
        "supportedInterfaces",
        "provider",
        "version",
        "documentationUrl",
        "capabilities",
        "securitySchemes",
        "securityRequirements",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
        "signatures",
        "iconUrl",
    ]
)


async def test_a_card_of_1_0_alone_has_its_fields_alone(base: str, http: httpx.AsyncClient) -> None:
    shown = await http.get(f"{base}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"})
    assert set(shown.json()) <= CARD_1_0


@pytest.mark.parametrize("off", ["streaming", "push"])
async def test_what_is_off_is_refused(
    off: str, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = conformance_agent(monkeypatch, streaming="off" if off == "streaming" else "on")
    async with serving(agent, push=off != "push", transport=",".join(BINDINGS)) as site:
        for binding in BINDINGS:
            wire = wire_to(http, site.url, binding)
            if off == "streaming":
                said = {"message": message("tck-stream-001")}
                refused = await wire.ask("SendStreamingMessage", said)
                assert refused.reason == "UNSUPPORTED_OPERATION"
            else:
                config = {"taskId": "t", "id": "one", "url": HOOK}
                refused = await wire.ask("CreateTaskPushNotificationConfig", config)
                assert refused.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_a_required_extension_has_to_be_asked_for(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "urn:a2a:tck:required-extension"
    agent = conformance_agent(monkeypatch, required_extension=uri)
    async with serving(agent, transport=",".join(BINDINGS)) as site:
        for binding in BINDINGS:
            wire = wire_to(http, site.url, binding)
            said = {"message": message("tck-complete-task")}
            assert (await wire.ask("SendMessage", said)).reason == "EXTENSION_SUPPORT_REQUIRED"
            assert "task" in (await wire.ask("SendMessage", said, A2A_Extensions=uri)).result


@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
async def test_an_error_before_a_stream_is_plain_for_who_accepts_one(
    binding: str, base: str, http: httpx.AsyncClient
) -> None:
    wire = Wire(http, base, binding)
    async with wire.asking(
        "SubscribeToTask", {"id": UNKNOWN}, Accept="text/event-stream"
    ) as response:
        refused = await answer(response)
    assert refused.reason == "TASK_NOT_FOUND"
