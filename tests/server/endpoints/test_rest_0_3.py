"""REST 0.3 over a socket: its paths below `/v1`, and answers in the shape a body shows."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import V1, Site, frames, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, Turn
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.message import Part
from dragoman.model.push import PushConfig
from dragoman.service import Nothing, PushPage
from dragoman.transports import rest

UNKNOWN = "00000000-0000-7000-8000-000000000000"
URL = "https://a.example/hook"
PUSH = "pushNotificationConfigs"
CARD = "/.well-known/agent-card.json"
V03 = {"A2A-Version": "0.3"}
# The client in use here is also that of the library that puts text where bytes belong.
OTHER = {"User-Agent": "other/1"}
gate = asyncio.Event()
agent = Agent("Echo", "Echoes.", extended_skills=[])


@agent.skill(default=True)
async def echo(text: str) -> str:
    return text


@agent.skill
async def ask(text: str, turn: Turn) -> str:
    answer = await turn.ask("Where?")
    return f"{text} to {answer.text}"


@agent.skill
async def hold(text: str) -> str:
    await within(gate.wait())
    return text


@agent.skill
async def draw(text: str) -> Part:
    return Part(raw=text.encode(), media_type="text/plain", filename="a.txt")


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent, push=True, allow_private=True, extended_card_public=True) as site:
        yield site


def proto_message(text: str = "hello", **more: Any) -> Any:
    said = message(**more)
    del said["parts"]
    return said | {"content": [{"text": text}]}


async def made(site: Site, **more: Any) -> Any:
    body = {"message": proto_message(**more), "configuration": {"blocking": True}}
    response = await site.http.post("/v1/message:send", json=body)
    assert response.status_code == 200, response.text
    return response.json()["task"]


async def waiting(site: Site) -> Any:
    task = await made(site, metadata={"skillId": "ask"})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return task


def refusal(response: Any) -> tuple[int, int]:
    body = response.json()
    assert {"code", "message", "type"} <= set(body) <= {"code", "message", "type", "data"}, body
    return response.status_code, body["code"]


@pytest.mark.requirement("1.1-names")
async def test_each_operation_has_its_path(site: Site) -> None:
    task = await made(site)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["history"][0]["content"] == [{"text": "hello"}]
    found = (await site.http.get(f"/v1/tasks/{task['id']}")).json()
    assert found == task
    listed = (await site.http.get("/v1/tasks")).json()
    assert task["id"] in [item["id"] for item in listed]
    open_task = await waiting(site)
    canceled = await site.http.post(f"/v1/tasks/{open_task['id']}:cancel")
    assert canceled.json()["status"]["state"] == "TASK_STATE_CANCELLED"
    card = (await site.http.get("/v1/card")).json()
    assert card["protocolVersion"].startswith("0.3")


@pytest.mark.requirement("4.4-rest-0.3")
async def test_answers_are_plain_json_and_name_their_version(site: Site) -> None:
    for accept in ("application/json", "application/a2a+json", "*/*"):
        found = await site.http.get("/v1/tasks", headers={"Accept": accept})
        assert found.headers["content-type"] == "application/json"
        assert found.headers["a2a-version"] == "0.3"
    refused = await site.http.get(
        f"/v1/tasks/{UNKNOWN}", headers={"Accept": "application/a2a+json"}
    )
    assert refused.headers["content-type"] == "application/json"
    assert refused.headers["a2a-version"] == "0.3"


async def test_a_stream_has_wrapped_events_and_ends_with_a_final_one(site: Site) -> None:
    body = {"message": proto_message()}
    async with site.http.stream("POST", "/v1/message:stream", json=body) as response:
        events = [frame.data async for frame in frames(response)]
    names = [name for event in events for name in event]
    assert (names[0], names[-1]) == ("task", "statusUpdate")
    assert "artifactUpdate" in names
    assert len(names) == len(events)
    last = events[-1]["statusUpdate"]
    assert (last["status"]["state"], last["final"]) == ("TASK_STATE_COMPLETED", True)


@pytest.mark.requirement("V-1")
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_subscription_may_be_asked_for_with_either_verb(site: Site, verb: str) -> None:
    task = await waiting(site)
    async with site.http.stream(verb, f"/v1/tasks/{task['id']}:subscribe") as response:
        first = await anext(frames(response))
    assert first.data["task"]["id"] == task["id"]


@pytest.mark.requirement("T-13")
async def test_a_task_that_has_ended_is_shown_once_to_who_subscribes(site: Site) -> None:
    task = (await site.http.post("/v1/message:send", json={"message": proto_message()})).json()
    path = f"/v1/tasks/{task['task']['id']}:subscribe"
    async with site.http.stream("POST", path) as response:
        (only,) = [frame.data async for frame in frames(response)]
    assert only["task"]["id"] == task["task"]["id"]
    assert only["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_the_query_says_how_much_history_there_is(site: Site) -> None:
    path = f"/v1/tasks/{(await waiting(site))['id']}"
    await made(site, taskId=path.rpartition("/")[2])
    whole = (await site.http.get(path)).json()["history"]
    assert len(whole) > 1
    latest = await site.http.get(path, params={"historyLength": 1})
    assert latest.json()["history"] == whole[-1:]
    # Zero is how the proto says nothing.
    assert (await site.http.get(path, params={"historyLength": 0})).json()["history"] == whole


@pytest.mark.requirement("4.2-rest-0.3")
async def test_a_body_of_the_json_schema_is_answered_in_it(site: Site) -> None:
    body = {"message": old_message("hello")}
    task = (await site.http.post("/v1/message:send", json=body)).json()
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    body = {"message": old_message("hello")}
    async with site.http.stream("POST", "/v1/message:stream", json=body) as response:
        events = [frame.data async for frame in frames(response)]
    # Raw events: neither wrapped by a member nor by an envelope.
    assert events[0]["kind"] == "task"
    assert (events[-1]["kind"], events[-1]["final"]) == ("status-update", True)
    receiver = {"taskId": task["id"], "pushNotificationConfig": {"id": "c", "url": URL}}
    created = await site.http.post(f"/v1/tasks/{task['id']}/{PUSH}", json=receiver)
    assert created.json() == receiver


@pytest.mark.requirement("4.2-rest-0.3")
async def test_a_body_of_1_0_without_a_version_is_answered_in_1_0_unless_told_not_to(
    site: Site,
) -> None:
    body = {"message": message("hello")}
    answered = await site.http.post("/v1/message:send", json=body)
    assert answered.headers["a2a-version"] == "1.0"
    assert answered.json()["task"]["history"][0]["parts"] == [{"text": "hello"}]
    refused = await site.http.post(
        "/v1/message:send", json={"message": body["message"] | {"parts": []}}
    )
    assert refused.json()["error"]["code"] == 400
    older = await site.http.post(
        "/v1/message:send", json={"message": message("hello")}, headers=V03
    )
    assert older.json()["task"]["history"][0]["content"] == [{"text": "hello"}]
    async with serving(agent, version_mode="strict") as strict:
        answered = await strict.http.post("/v1/message:send", json=body)
        assert answered.headers["a2a-version"] == "0.3"
        assert answered.json()["task"]["history"][0]["content"] == [{"text": "hello"}]


@pytest.mark.parametrize("version", ["0.3", "0.3.0", "0.2"])
async def test_a_version_of_0_x_is_spoken_here(site: Site, version: str) -> None:
    headers = {"A2A-Version": version}
    task = await made(site)
    found = await site.http.get(f"/v1/tasks/{task['id']}", headers=headers)
    assert found.json() == task
    body = {"message": old_message("hello")}
    sent = await site.http.post("/v1/message:send", json=body, headers=headers)
    assert sent.json()["kind"] == "task"


@pytest.mark.parametrize(("version", "is_old"), [("0.1", True), ("2.0", False), ("x", False)])
async def test_a_version_nobody_speaks_is_refused(site: Site, version: str, is_old: bool) -> None:
    refused = await site.http.get("/v1/tasks", headers={"A2A-Version": version})
    if is_old:
        assert refusal(refused) == (400, -32600)
        assert refused.json()["data"]["supportedVersions"] == "1.0,0.3,0.2"
    else:
        assert refused.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_the_paths_of_1_0_stay_those_of_1_0(site: Site) -> None:
    refused = await site.http.get("/tasks", headers=V03)
    assert refused.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_a_version_in_our_own_address_is_no_tenant() -> None:
    async with serving(agent, public_url="https://agent.example/v1") as site:
        body = {"message": message("hello")}
        sent = await site.http.post("/v1/message:send", json=body, headers=V1)
        id = sent.json()["task"]["id"]
        assert (await site.http.get(f"/v1/tasks/{id}", headers=V1)).json()["id"] == id
        assert (await site.task(id))["id"] == id


@pytest.mark.requirement("3.2-rest-0.3")
async def test_an_error_is_a_code_and_a_message_with_the_status_of_0_3(site: Site) -> None:
    http = site.http
    task = await made(site)
    assert refusal(await http.get(f"/v1/tasks/{UNKNOWN}")) == (404, -32001)
    assert refusal(await http.post(f"/v1/tasks/{task['id']}:cancel")) == (409, -32002)
    assert refusal(await http.post("/v1/message:send", json={})) == (422, -32602)
    assert refusal(await http.post("/v1/message:send", content=b"{")) == (400, -32700)
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert refusal(await http.post("/v1/message:send", content=b"a=1", headers=form)) == (
        415,
        -32005,
    )
    assert refusal(await http.get("/v1/nothing")) == (404, -32601)
    body = {"message": proto_message(taskId=task["id"])}
    assert refusal(await http.post("/v1/message:stream", json=body)) == (501, -32004)
    bad = {"message": proto_message() | {"content": [{"text": 7}]}}
    refused = await http.post("/v1/message:send", json=bad)
    assert refusal(refused) == (422, -32602)
    assert refused.json()["data"]["field"] == "message.parts[0].text"


@pytest.mark.requirement("3.2-rest-0.3")
async def test_what_is_off_is_refused_as_0_3_does() -> None:
    plain = Agent("Plain", "No more than it must.")
    plain.skill(default=True)(echo)
    async with serving(plain, push=False) as site:
        task = await made(site)
        path = f"/v1/tasks/{task['id']}/{PUSH}"
        created = await site.http.post(path, json={"config": {"url": URL}})
        assert refusal(created) == (501, -32003)
        assert refusal(await site.http.get("/v1/card")) == (404, -32007)


async def test_a_known_path_with_another_verb_says_which_ones_it_takes(site: Site) -> None:
    refused = await site.http.get("/v1/message:send")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.requirement("V-14")
@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"name":"tasks/other"}'])
async def test_a_post_without_a_body_may_say_null(site: Site, body: bytes) -> None:
    task = await waiting(site)
    canceled = await site.http.post(f"/v1/tasks/{task['id']}:cancel", content=body)
    assert canceled.json()["id"] == task["id"]


@pytest.mark.requirement("V-4")
@pytest.mark.parametrize("tasks", ["tasks", "task"])
@pytest.mark.parametrize("configs", [PUSH, "pushNotifications"])
async def test_push_configurations_are_found_under_their_misspelled_paths(
    site: Site, tasks: str, configs: str
) -> None:
    id = (await made(site))["id"]
    path = f"/v1/{tasks}/{id}/{configs}"
    body = {"parent": f"tasks/{id}", "config": {"pushNotificationConfig": {"id": "c", "url": URL}}}
    created = (await site.http.post(path, json=body)).json()
    assert created == {
        "name": f"tasks/{id}/{PUSH}/c",
        "pushNotificationConfig": {"id": "c", "url": URL},
    }
    assert (await site.http.get(f"{path}/c")).json() == created
    listed = (await site.http.get(path)).json()
    assert listed == {"configs": [created], "nextPageToken": ""}
    deleted = await site.http.delete(f"{path}/c")
    assert (deleted.status_code, deleted.json()) == (200, {})
    assert (await site.http.get(path)).json()["configs"] == []
    # The other misspelling belongs to no other path.
    assert (await site.http.get(f"/v1/task/{id}")).status_code == 404


@pytest.mark.requirement("V-11")
@pytest.mark.parametrize(
    "body",
    [
        {
            "parent": "tasks/other",
            "configId": "c",
            "config": {"pushNotificationConfig": {"url": URL}},
        },
        {"name": f"tasks/other/{PUSH}/c", "pushNotificationConfig": {"url": URL}},
        {"config": {"taskId": "other", "pushNotificationConfig": {"id": "c", "url": URL}}},
        {"taskId": "other", "pushNotificationConfig": {"id": "c", "url": URL}},
        {"taskId": "other", "id": "c", "url": URL},
    ],
)
async def test_a_push_configuration_is_that_of_the_task_in_the_path(site: Site, body: Any) -> None:
    id = (await made(site))["id"]
    created = await site.http.post(f"/v1/tasks/{id}/{PUSH}", json=body)
    assert created.status_code == 200, created.text
    found = (await site.http.get(f"/v1/tasks/{id}/{PUSH}/c")).json()
    assert found["name"] == f"tasks/{id}/{PUSH}/c"
    assert found["pushNotificationConfig"]["url"] == URL


async def test_a_task_is_the_same_on_every_binding(site: Site) -> None:
    task = await made(site)
    assert (await site.task(task["id"]))["history"][0]["parts"] == [{"text": "hello"}]
    old = await site.call("tasks/get", {"id": task["id"]})
    assert old["history"][0]["parts"] == [{"kind": "text", "text": "hello"}]


@pytest.mark.requirement("P-8")
async def test_a_file_is_bytes_but_text_to_the_library_that_takes_it_for_text(site: Site) -> None:
    async def drawn(headers: dict[str, str]) -> bytes:
        body = {
            "message": proto_message(metadata={"skillId": "draw"}),
            "configuration": {"blocking": True},
        }
        sent = await site.http.post("/v1/message:send", json=body, headers=headers)
        (part,) = sent.json()["task"]["artifacts"][0]["parts"]
        return base64.b64decode(part["file"]["fileWithBytes"])

    assert await drawn(OTHER) == b"hello"
    assert await drawn({}) == base64.b64encode(b"hello")


async def test_the_card_offers_the_address_that_clients_put_v1_after(site: Site) -> None:
    card = (await site.http.get(CARD, headers=V03)).json()
    assert {"url": site.url, "transport": "HTTP+JSON"} in card["additionalInterfaces"]
    assert card["preferredTransport"] == "JSONRPC"


async def test_each_agent_has_the_paths_below_its_own(site: Site) -> None:
    body = {"message": proto_message(), "configuration": {"blocking": True}}
    sent = await site.http.post("/agents/echo/v1/message:send", json=body)
    assert sent.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_who_configures_anything_but_waiting_does_not_wait(site: Site) -> None:
    said = proto_message(metadata={"skillId": "hold"})
    try:
        body = {"message": said, "configuration": {}}
        sent = await site.http.post("/v1/message:send", json=body)
    finally:
        gate.set()
    assert sent.json()["task"]["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_id_may_have_a_slash_where_it_is_encoded(site: Site, version: str) -> None:
    dialect: Dialect = V1_0 if version == "1.0" else V0_3_PROTO
    task_id = TaskId((await made(site))["id"])
    config = PushConfig(URL, id="a/b?c#d%2F", task_id=task_id, version=version)

    async def asked(operation: ops.Operation) -> Any:
        out = rest.request(dialect, operation)
        response = await site.http.request(out.verb, out.path, json=out.body)
        assert response.status_code == 200, response.text
        return dialect.decode_reply(operation, response.json())

    named = {"task_id": task_id, "config_id": config.id}
    assert await asked(ops.CreatePush(task_id=task_id, config=config)) == config
    assert await asked(ops.GetPush(**named)) == config
    assert await asked(ops.DeletePush(**named)) == Nothing()
    assert await asked(ops.ListPush(task_id=task_id)) == PushPage([])
