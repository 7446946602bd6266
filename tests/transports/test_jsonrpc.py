"""The JSON-RPC envelope over a socket: which check comes first, and whose id the answer bears."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import V1, Site, message, old_message, serving

from dragoman import Agent, AgentSkill

UNKNOWN = "00000000-0000-7000-8000-000000000000"
GET = {"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": UNKNOWN}}

agent = Agent("Echo", "Echoes.", extended_skills=None)


@agent.skill
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent, push=False) as site:
        yield site


async def code(site: Site, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    response = await site.post(body, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer["jsonrpc"] == "2.0" and "result" not in answer
    return answer["error"]["code"], answer["id"]


@pytest.mark.parametrize("path", ["/", "/rpc", "/rpc/", "/a2a", "/a2a/"])
async def test_every_path_of_the_binding_answers(site: Site, path: str) -> None:
    task = await site.call("SendMessage", {"message": message("hello")}, path=path)
    assert task["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("path", ["/", "/rpc", "/a2a"])
async def test_a_path_of_the_binding_takes_nothing_but_post(site: Site, path: str) -> None:
    for verb in ("GET", "PUT", "DELETE"):
        response = await site.http.request(verb, path)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"


@pytest.mark.requirement("X-9", "X-8")
@pytest.mark.parametrize(
    ("body", "expected", "id"),
    [
        (b"{", -32700, None),
        (b"", -32700, None),
        (b'{"id": 7, "id": 7}', -32700, None),
        (b'"text"', -32600, None),
        (b"[]", -32600, None),
        # A batch is one refusal, not one per member.
        ([GET, GET], -32600, None),
        (GET | {"jsonrpc": "1.0"}, -32600, 7),
        ({"id": "x", "method": "GetTask"}, -32600, "x"),
        (GET | {"method": ""}, -32600, 7),
        (GET | {"method": 5}, -32600, 7),
        (GET | {"id": True}, -32600, None),
        (GET | {"id": {}}, -32600, None),
        (GET | {"id": [1]}, -32600, None),
        (GET | {"id": 1.5}, -32600, None),
        # Nobody could be told what came of a notification.
        ({k: v for k, v in GET.items() if k != "id"}, -32600, None),
        (GET | {"method": "Nope"}, -32601, 7),
        (GET | {"method": "no/such"}, -32601, 7),
        (GET | {"params": []}, -32602, 7),
        (GET | {"params": "x"}, -32602, 7),
        (GET | {"params": {}}, -32602, 7),
        (GET, -32001, 7),
        (GET | {"id": "é"}, -32001, "é"),
        (GET | {"id": 0}, -32001, 0),
        (GET | {"id": ""}, -32001, ""),
        (GET | {"id": None}, -32001, None),
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, bytes) else repr(value),
)
async def test_what_is_wrong_is_named_and_the_id_is_echoed_where_it_can_be_read(
    site: Site, body: Any, expected: int, id: Any
) -> None:
    assert await code(site, body) == (expected, id)


@pytest.mark.requirement("X-9")
async def test_of_two_faults_the_earlier_check_speaks(site: Site) -> None:
    future = {"A2A-Version": "99.0"}
    wrong = GET | {"method": "Nope", "params": []}
    # envelope, then version, then method, then parameters
    assert (await code(site, wrong | {"jsonrpc": "1.0"}, future))[0] == -32600
    assert (await code(site, wrong, future))[0] == -32009
    assert (await code(site, wrong))[0] == -32601
    assert (await code(site, GET | {"params": []}, future))[0] == -32009
    # parameters, then capability: push is off, yet the missing field is what the caller hears
    push = GET | {"method": "GetTaskPushNotificationConfig"}
    assert (await code(site, push | {"params": {}}))[0] == -32602
    # parameters, then the id: suites of 0.x send requests without one, and expect the former
    for method, params in (("GetTask", {"id": UNKNOWN}), ("tasks/get", {"id": UNKNOWN})):
        silent = {"jsonrpc": "2.0", "method": method}
        assert await code(site, silent | {"method": f"{method}s"}) == (-32601, None)
        assert await code(site, silent | {"params": {}}) == (-32602, None)
        assert await code(site, silent | {"params": []}) == (-32602, None)
        assert await code(site, silent | {"params": params}) == (-32600, None)
    # capability, then existence: the task is unknown, yet push is what is off
    assert (await code(site, push | {"params": {"taskId": UNKNOWN, "id": "c"}}))[0] == -32003


@pytest.mark.parametrize("method", ["SendMessage", "message/send", "tasks/send"])
async def test_a_message_in_a_request_without_an_id_begins_nothing(method: str, site: Site) -> None:
    before = await site.total()
    said = message("hello") if method == "SendMessage" else old_message("hello")
    silent = {"jsonrpc": "2.0", "method": method, "params": {"message": said}}
    assert await code(site, silent) == (-32600, None)
    assert await site.total() == before


@pytest.mark.requirement("X-4", "X-5", "X-6")
async def test_errors_have_details_in_1_0_and_none_that_old_clients_choke_on(site: Site) -> None:
    new = await site.refusal("GetTask", {"id": UNKNOWN}, headers=V1)
    assert new["data"][0] == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "TASK_NOT_FOUND",
        "domain": "a2a-protocol.org",
        "metadata": {"taskId": UNKNOWN},
    }
    invalid = await site.refusal("GetTask", {}, headers=V1)
    assert invalid["data"][1]["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert invalid["data"][1]["fieldViolations"][0]["field"] == "id"
    old = await site.refusal("tasks/get", {"id": UNKNOWN})
    assert old["code"] == -32001 and old["message"].startswith("Task not found")
    assert not isinstance(old.get("data"), list)


@pytest.mark.requirement("V-8")
async def test_old_clients_have_no_list(site: Site) -> None:
    assert (await site.refusal("tasks/list"))["code"] == -32601


@pytest.mark.requirement("V-9")
async def test_only_answers_to_a_send_are_wrapped_and_only_in_1_0(site: Site) -> None:
    task = (await site.call("SendMessage", {"message": message("hello")}))["task"]
    assert (await site.call("GetTask", {"id": task["id"]}))["id"] == task["id"]
    old = await site.call("message/send", {"message": old_message("hello")})
    assert old["kind"] == "task" and old["status"]["state"] == "completed"
    assert (await site.call("tasks/get", {"id": old["id"]}))["kind"] == "task"


@pytest.mark.requirement("V-7")
async def test_the_extended_card_has_two_names_in_0_3() -> None:
    secret = AgentSkill(id="s", name="S", description="S.", tags=["s"])
    known = Agent("Known", "Knows.", extended_skills=[secret])
    known.skill(echo)
    async with serving(known, extended_card_public=True) as site:
        for method in ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"):
            card = await site.call(method)
            assert [skill["id"] for skill in card["skills"]] == ["echo", "s"]


async def test_a_task_made_in_one_version_is_read_in_every_other(site: Site) -> None:
    task = await site.send("hello")
    old = await site.call("tasks/get", {"id": task["id"]}, headers={"A2A-Version": "0.2"})
    assert old["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]
    assert old["history"][0]["role"] == "user"
