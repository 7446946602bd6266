"""Section 3: which error is used when, and what it looks like on each binding."""

import logging
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, serving

from dragoman import Agent, AgentExtension
from dragoman.dialects import errors as table
from dragoman.dialects.operations import ROWS
from tests.wire_rules.conftest import Gates, make
from tests.wire_rules.rules import UNKNOWN, code_of, new, old, rpc, state, task_of

# Error, code, status of 1.0.1, status in gRPC's words and reason, as the reference has them.
MASTER = """
ParseFailed -32700 400 INVALID_ARGUMENT INVALID_REQUEST
InvalidRequest -32600 400 INVALID_ARGUMENT INVALID_REQUEST
InvalidParams -32602 400 INVALID_ARGUMENT INVALID_PARAMS
InternalError -32603 500 INTERNAL INTERNAL_ERROR
TaskNotFound -32001 404 NOT_FOUND TASK_NOT_FOUND
TaskNotCancelable -32002 400 FAILED_PRECONDITION TASK_NOT_CANCELABLE
PushNotSupported -32003 400 FAILED_PRECONDITION PUSH_NOTIFICATION_NOT_SUPPORTED
UnsupportedOperation -32004 400 FAILED_PRECONDITION UNSUPPORTED_OPERATION
ContentTypeNotSupported -32005 400 INVALID_ARGUMENT CONTENT_TYPE_NOT_SUPPORTED
InvalidAgentResponse -32006 500 INTERNAL INVALID_AGENT_RESPONSE
ExtendedCardNotConfigured -32007 400 FAILED_PRECONDITION EXTENDED_AGENT_CARD_NOT_CONFIGURED
ExtensionRequired -32008 400 FAILED_PRECONDITION EXTENSION_SUPPORT_REQUIRED
VersionNotSupported -32009 400 FAILED_PRECONDITION VERSION_NOT_SUPPORTED
"""


def reason(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["details"][0]["reason"]


@pytest.mark.requirement("3.1-codes")
@pytest.mark.parametrize("line", MASTER.split("\n")[1:-1], ids=lambda line: line.split()[0])
def test_each_error_has_its_code_status_and_reason(line: str) -> None:
    name, code, status, word, why = line.split()
    (row,) = [row for row in table.ROWS if row.error.__name__ == name]
    error = row.error()
    newer = table.jsonrpc(error, "1.0")
    assert (newer["code"], newer["data"][0]["reason"]) == (int(code), why)
    http, body = table.rest(error)
    assert (http, body["error"]["code"], body["error"]["status"]) == (int(status),) * 2 + (word,)
    assert body["error"]["details"][0]["reason"] == why


async def test_error_data_has_the_words_of_the_version(site: Site) -> None:
    ended = await task_of(site, new())
    newer = await site.refusal("SendMessage", new(taskId=ended["id"]))
    facts = newer["data"][0]["metadata"]
    assert facts == {"reason": "TASK_TERMINAL", "state": "TASK_STATE_COMPLETED"}
    for method in ("message/send", "message/stream"):
        older = await site.refusal(method, old(taskId=ended["id"]))
        assert older["data"] == {"reason": "TASK_TERMINAL", "state": "completed"}
    over_rest = await site.http.post("/v1/message:send", json=old(taskId=ended["id"]))
    assert over_rest.json()["data"]["state"] == "completed"


@pytest.mark.requirement("3.2-jsonrpc")
async def test_an_error_over_json_rpc_is_an_answer_with_status_200(site: Site) -> None:
    for method in ("GetTask", "tasks/get"):
        response = await site.post(rpc(method, {"id": UNKNOWN}))
        assert response.status_code == 200
        answer = response.json()
        assert answer.keys() == {"jsonrpc", "id", "error"}
        assert answer["error"].keys() >= {"code", "message"}


@pytest.mark.requirement("3.2-rest")
async def test_an_error_over_rest_has_code_status_message_and_details(site: Site) -> None:
    response = await site.http.get(f"/tasks/{UNKNOWN}", headers=V1)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/a2a+json"
    (error,) = response.json().values()
    assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    assert error["message"]
    assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert error["details"][0]["domain"] == "a2a-protocol.org"


@pytest.mark.requirement("3.3-task-not-found", "T-49")
async def test_an_invisible_task_is_answered_exactly_as_an_unknown_one(site: Site) -> None:
    task = await task_of(site, new("ask") | {"tenant": "theirs"})
    calls: list[tuple[str, Any]] = [
        ("GetTask", {}),
        ("CancelTask", {}),
        ("SubscribeToTask", {}),
    ]
    for method, params in calls:
        errors = [await site.refusal(method, params | {"id": id}) for id in (task["id"], UNKNOWN)]
        assert errors[0]["code"] == -32001
        assert str(errors[0]).replace(task["id"], UNKNOWN) == str(errors[1])
    sends = [await site.refusal("SendMessage", new(taskId=id)) for id in (task["id"], UNKNOWN)]
    assert str(sends[0]).replace(task["id"], UNKNOWN) == str(sends[1])
    assert state(await site.call("GetTask", {"id": task["id"], "tenant": "theirs"}))


@pytest.mark.requirement("3.3-not-cancelable")
async def test_a_task_that_ended_cannot_be_canceled(site: Site) -> None:
    for skill in ("echo", "crash", "reject"):
        task = await task_of(site, new(skill))
        assert await code_of(site, "CancelTask", {"id": task["id"]}) == -32002
        assert await code_of(site, "tasks/cancel", {"id": task["id"]}) == -32002
        refused = await site.http.post(f"/tasks/{task['id']}:cancel")
        assert reason(refused) == (400, "TASK_NOT_CANCELABLE")


@pytest.mark.requirement("3.3-push", "V-5")
async def test_push_that_is_off_is_refused_in_every_operation_and_in_sends() -> None:
    receiver = {"url": "https://a.example/"}
    async with serving(make(Gates()), push=False) as site:
        for row in ROWS:
            if "Push" in row.v1:
                params = {"taskId": UNKNOWN, "id": "c"} | receiver
                assert await code_of(site, row.v1, params) == -32003
                older = {"id": UNKNOWN, "taskId": UNKNOWN, "pushNotificationConfigId": "c"}
                older["pushNotificationConfig"] = receiver
                assert await code_of(site, row.v0[0], older) == -32003
        wanting = {"configuration": {"taskPushNotificationConfig": receiver}}
        assert await code_of(site, "SendMessage", new() | wanting) == -32003
        wanting = {"configuration": {"pushNotificationConfig": receiver}}
        assert await code_of(site, "message/send", old() | wanting) == -32003
        assert await site.total() == 0


@pytest.mark.requirement("3.3-unsupported", "3.3-extended-card", "V-5")
async def test_what_is_off_or_over_is_an_unsupported_operation(site: Site) -> None:
    ended = await task_of(site, new())
    assert await code_of(site, "SubscribeToTask", {"id": ended["id"]}) == -32004
    assert await code_of(site, "SendMessage", new(taskId=ended["id"])) == -32004
    assert await code_of(site, "message/send", old(taskId=ended["id"])) == -32004
    assert await code_of(site, "GetExtendedAgentCard", {}) == -32004
    assert await code_of(site, "agent/getAuthenticatedExtendedCard", {}) == -32007
    assert (await site.http.get("/agent/authenticatedExtendedCard")).status_code == 404
    quiet = make(Gates())
    quiet.streaming = False
    async with serving(quiet) as other:
        assert await code_of(other, "SendStreamingMessage", new()) == -32004
        assert await code_of(other, "SubscribeToTask", {"id": UNKNOWN}) == -32004
        assert await code_of(other, "message/stream", old()) == -32004


@pytest.mark.requirement("3.3-content-type", "T-63", "T-64")
async def test_parts_and_answers_keep_to_the_modes_of_skill_and_card() -> None:
    agent = Agent("Modes", "Minds.", input_modes=["text/plain", "image/*"])

    @agent.skill(output_modes=["text/plain"])
    async def take(text: str) -> str:
        return text

    @agent.skill(input_modes=["application/json"])
    async def data(value: dict[str, int]) -> str:
        return "x"

    text, number = {"text": "x"}, {"data": {"value": {"a": 1}}}
    async with serving(agent) as site:
        for skill, part, accepted in (
            ("take", text, True),
            ("take", {"url": "https://a.example/", "mediaType": "image/png"}, True),
            ("take", {"text": "x", "mediaType": "text/markdown"}, False),
            ("take", {"raw": "aGk="}, False),
            ("take", number, False),
            ("data", number, True),
            ("data", text, False),
        ):
            parts = [text, part] if skill == "take" else [part]
            answer = await site.answer("SendMessage", new(skill, parts=parts))
            assert answer.get("error", {}).get("code") == (None if accepted else -32005), part
        for modes, accepted in (
            ([], True),
            (["text/plain"], True),
            (["image/png", "text/*"], True),
            (["image/png"], False),
        ):
            params = new("take") | {"configuration": {"acceptedOutputModes": modes}}
            answer = await site.answer("SendMessage", params)
            assert answer.get("error", {}).get("code") == (None if accepted else -32005), modes


@pytest.mark.requirement("3.3-invalid-agent-response", "E-1")
async def test_an_agent_that_breaks_the_rules_of_events_fails_its_task(site: Site) -> None:
    task = await task_of(site, new("append_to_nothing"))
    assert state(task) == "TASK_STATE_FAILED"
    assert "invalid response" in task["status"]["message"]["parts"][0]["text"]
    assert "artifacts" not in task


@pytest.mark.requirement("3.3-extension", "4.3-required")
async def test_a_required_extension_must_be_asked_for() -> None:
    uri = "urn:example:needed"
    agent = Agent("Needy", "Needs.", extensions=[AgentExtension(uri=uri, required=True)])

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async with serving(agent) as site:
        assert await code_of(site, "SendMessage", new()) == -32008
        assert await code_of(site, "message/send", old()) == -32602
        refused = await site.http.post("/message:send", json=new())
        assert reason(refused) == (400, "EXTENSION_SUPPORT_REQUIRED")
        asked = {"A2A-Extensions": uri}
        assert (await site.call("ListTasks", headers=asked))["totalSize"] == 0
        assert await task_of(site, new(), headers=asked)
        assert await site.call("message/send", old(), headers={"X-A2A-Extensions": uri})


@pytest.mark.requirement("3.3-version", "4.1-unsupported")
async def test_a_version_not_offered_is_refused_with_those_that_are(site: Site) -> None:
    error = await site.refusal("SendMessage", new(), headers={"A2A-Version": "9.0"})
    assert error["code"] == -32009
    assert error["data"][0]["metadata"]["supportedVersions"] == "1.0,0.3,0.2"
    assert await code_of(site, "message/send", old(), headers={"A2A-Version": "0.9"}) == -32600
    refused = await site.http.get("/tasks", headers={"A2A-Version": "9.0"})
    assert reason(refused) == (400, "VERSION_NOT_SUPPORTED")


@pytest.mark.requirement("X-12", "T-6")
async def test_code_that_crashes_fails_its_task_and_tells_nothing_of_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        task = await task_of(site, new("crash"))
    assert state(task) == "TASK_STATE_FAILED"
    assert task["status"]["message"]["parts"][0]["text"].startswith("The agent failed.")
    assert "secret" not in str(task) and "10.0.0.1" not in str(task)
    assert "RuntimeError" not in str(task)
    # Whoever runs the server finds the cause.
    assert "secret at http://10.0.0.1/internal" in caplog.text


@pytest.mark.requirement("T-54")
async def test_logs_hold_no_credentials(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Authorization": "Bearer s3cr3t", "Cookie": "session=s3cr3t"}
    with caplog.at_level(logging.DEBUG, "dragoman"):
        for skill in ("echo", "crash", "append_to_nothing"):
            await site.call("SendMessage", new(skill), headers=headers)
        await site.refusal("GetTask", {"id": UNKNOWN}, headers=headers)
    assert "incident" in caplog.text
    assert "s3cr3t" not in "\n".join(r.getMessage() for r in caplog.records)
    assert "s3cr3t" not in caplog.text
