"""REST over a socket: which path is which operation, and where its parameters come from."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import V1, Site, frames, message, serving

from dragoman import Agent, Turn
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams
from dragoman.model import operations as ops
from dragoman.model.identity import MessageId, TaskId
from dragoman.model.message import Message, Role
from dragoman.model.push import PushConfig
from dragoman.model.task import TaskState
from dragoman.service import Nothing
from dragoman.transports import rest

UNKNOWN = "00000000-0000-7000-8000-000000000000"
agent = Agent("Echo", "Echoes.")


@agent.skill(default=True)
async def echo(text: str) -> str:
    return text


@agent.skill
async def ask(text: str, turn: Turn) -> str:
    answer = await turn.ask("Where?")
    return f"{text} to {answer.text}"


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent) as site:
        yield site


async def made(site: Site, path: str = "/message:send", **more: Any) -> Any:
    response = await site.http.post(path, json={"message": message("hello", **more)})
    assert response.status_code == 200, response.text
    return response.json()["task"]


def reason(response: Any) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    return response.status_code, error["details"][0]["reason"]


async def waiting(site: Site) -> Any:
    task = await made(site, metadata={"skillId": "ask"})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return task


async def test_each_operation_has_its_path(site: Site) -> None:
    task = await made(site)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await site.http.get(f"/tasks/{task['id']}")).json()["id"] == task["id"]
    page = (await site.http.get("/tasks")).json()
    assert task["id"] in [item["id"] for item in page["tasks"]]
    open_task = await waiting(site)
    canceled = await site.http.post(f"/tasks/{open_task['id']}:cancel")
    assert canceled.json()["status"]["state"] == "TASK_STATE_CANCELED"
    async with site.http.stream(
        "POST", "/message:stream", json={"message": message("hello")}
    ) as response:
        events = [frame.data async for frame in frames(response)]
    # REST events are bare: no envelope around them.
    assert "task" in events[0]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("V-1")
@pytest.mark.parametrize("verb", ["GET", "POST"])
@pytest.mark.parametrize("prefix", ["", "/acme"])
async def test_a_subscription_may_be_asked_for_with_either_verb(
    site: Site, verb: str, prefix: str
) -> None:
    task = await made(site, f"{prefix}/message:send", metadata={"skillId": "ask"})
    address = f"{prefix}/tasks/{task['id']}:subscribe"
    async with site.http.stream(verb, address) as response:
        assert response.headers["content-type"] == "text/event-stream"
        first = await anext(frames(response))
    assert first.data["task"]["id"] == task["id"]


@pytest.mark.requirement("V-2")
def test_an_id_with_colons_is_told_from_an_action() -> None:
    def found(verb: str, path: str) -> Any:
        route = rest.find(verb, path)
        assert isinstance(route, rest.RestRoute)
        return route.method, route.params

    assert found("GET", "/tasks/a:b") == ("GetTask", {"id": "a:b"})
    assert found("POST", "/tasks/a:b:cancel") == ("CancelTask", {"id": "a:b"})
    assert found("GET", "/tasks/a:cancel:subscribe") == ("SubscribeToTask", {"id": "a:cancel"})
    assert found("GET", "/tasks/a:nosuch") == ("GetTask", {"id": "a:nosuch"})


@pytest.mark.requirement("1.1-names")
@pytest.mark.parametrize(
    ("verb", "path", "method", "named"),
    [
        ("POST", "", "CreateTaskPushNotificationConfig", {"taskId": "a:b"}),
        ("GET", "", "ListTaskPushNotificationConfigs", {"taskId": "a:b"}),
        ("GET", "/c:d", "GetTaskPushNotificationConfig", {"taskId": "a:b", "id": "c:d"}),
        ("DELETE", "/c", "DeleteTaskPushNotificationConfig", {"taskId": "a:b", "id": "c"}),
    ],
)
def test_push_configurations_are_found_below_their_task(
    verb: str, path: str, method: str, named: dict[str, str]
) -> None:
    path = f"/tasks/a:b/pushNotificationConfigs{path}"
    assert rest.find(verb, path) == rest.RestRoute(method, named)
    assert rest.find(verb, f"/acme{path}") == rest.RestRoute(method, named | {"tenant": "acme"})
    assert rest.find("PUT", path) == rest.VerbNotAllowed(
        "GET, DELETE" if "id" in named else "POST, GET"
    )
    assert rest.find(verb, f"/a/b{path}") is None


def test_the_path_of_a_push_configuration_wins_over_its_body() -> None:
    def asked(verb: str, path: str, query: bytes, body: Any) -> Any:
        route = rest.find(verb, path)
        assert isinstance(route, rest.RestRoute)
        return V1_0.decode_request(route.method, rest.params(route, query, body))

    path, url = "/acme/tasks/t/pushNotificationConfigs", "https://a.example/"
    config = PushConfig(url, id="c", task_id=TaskId("t"))
    created = ops.CreatePush(task_id=TaskId("t"), config=config, tenant="acme")
    body = {"id": "c", "url": url, "tenant": "acme"}
    for ids in ({}, {"taskId": "other"}, {"task_id": "other"}):
        assert asked("POST", path, b"", body | ids) == created
    nested = {"config": {"taskId": "other", "pushNotificationConfig": {"id": "c", "url": url}}}
    assert asked("POST", path, b"", nested) == created
    listed = ops.ListPush(task_id=TaskId("t"), page_size=7, page_token="p", tenant="acme")
    assert asked("GET", path, b"pageSize=7&pageToken=p&taskId=other", None) == listed
    read = ops.GetPush(task_id=TaskId("t"), config_id="c", tenant="acme")
    assert asked("GET", f"{path}/c", b"id=other&task_id=other", None) == read
    deleted = ops.DeletePush(task_id=TaskId("t"), config_id="c", tenant="acme")
    assert asked("DELETE", f"{path}/c", b"", {}) == deleted


@pytest.mark.requirement("V-13")
def test_an_answer_that_says_nothing_is_an_empty_object() -> None:
    deletion = ops.DeletePush(task_id=TaskId("t"), config_id="c")
    assert rest.content(V1_0.encode_reply(deletion, Nothing())) == b"{}"
    assert rest.content(b'{"id":"t"}') == b'{"id":"t"}'


@pytest.mark.requirement("V-3")
async def test_a_tenant_before_the_path_keeps_its_tasks_apart(site: Site) -> None:
    task = await made(site, "/acme/message:send")
    address = f"/tasks/{task['id']}"
    assert (await site.http.get(f"/acme{address}")).json()["id"] == task["id"]
    assert reason(await site.http.get(address)) == (404, "TASK_NOT_FOUND")
    assert reason(await site.http.get(f"/other{address}")) == (404, "TASK_NOT_FOUND")
    assert (await site.http.get("/acme/tasks")).json()["totalSize"] >= 1
    assert (await site.http.get("/nobody/tasks")).json()["totalSize"] == 0
    # The same tenant, named in the parameters of the other binding.
    found = await site.call("GetTask", {"id": task["id"], "tenant": "acme"})
    assert found["id"] == task["id"]


async def test_a_tenant_that_the_body_contradicts_is_refused(site: Site) -> None:
    total = await site.total()
    body = {"message": message("hello"), "tenant": "other"}
    refused = await site.http.post("/acme/message:send", json=body)
    assert reason(refused) == (400, "INVALID_PARAMS")
    assert refused.json()["error"]["details"][1]["fieldViolations"][0]["field"] == "tenant"
    same = await site.http.post("/acme/message:send", json=body | {"tenant": "acme"})
    assert same.status_code == 200
    assert await site.total() == total


@pytest.mark.parametrize("name", sorted(rest.RESERVED))
def test_a_word_of_ours_is_no_tenant(name: str) -> None:
    assert rest.find("POST", f"/{name}/message:send") in (None, rest.VerbNotAllowed("GET"))


@pytest.mark.parametrize(
    ("verb", "path", "allow"),
    [
        ("GET", "/message:send", "POST"),
        ("POST", "/tasks", "GET"),
        ("DELETE", f"/tasks/{UNKNOWN}", "GET"),
        ("PUT", f"/tasks/{UNKNOWN}:subscribe", "GET, POST"),
        ("GET", "/acme/message:stream", "POST"),
    ],
)
async def test_a_known_path_with_another_verb_says_which_ones_it_takes(
    site: Site, verb: str, path: str, allow: str
) -> None:
    response = await site.http.request(verb, path)
    assert response.status_code == 405
    assert set(allow.split(", ")) <= set(response.headers["allow"].split(", "))


@pytest.mark.parametrize(
    "path", ["/nothing", "/tasks/", "/tasks/a/b", "/a/b/tasks", "/agents/nobody", "/message:sends"]
)
async def test_a_path_nobody_knows_is_not_found(site: Site, path: str) -> None:
    for verb in ("GET", "POST"):
        assert reason(await site.http.request(verb, path)) == (404, "METHOD_NOT_FOUND")


async def test_the_query_fills_what_a_get_asks(site: Site) -> None:
    task = await made(site)
    found = await site.http.get(f"/tasks/{task['id']}", params={"historyLength": "0"})
    assert "history" not in found.json()
    page = await site.http.get(
        "/tasks",
        params={
            "contextId": task["contextId"],
            "status": "TASK_STATE_COMPLETED",
            "pageSize": "1",
            "includeArtifacts": "true",
            "statusTimestampAfter": "2020-01-01T00:00:00Z",
            "pageToken": "",
            "A2A-Version": "1.0",
        },
    )
    (listed,) = page.json()["tasks"]
    assert listed["artifacts"][0]["parts"] == [{"text": "hello"}]


@pytest.mark.parametrize(
    "query",
    [
        "pageSize=x",
        "pageSize=1.5",
        "pageSize=1&pageSize=2",
        "includeArtifacts=yes",
        "includeArtifacts=",
        "historyLength=-1",
        "status=DONE",
        "contextId=%FF",
        "statusTimestampAfter=yesterday",
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(site: Site, query: str) -> None:
    assert reason(await site.http.get(f"/tasks?{query}")) == (400, "INVALID_PARAMS")


async def test_the_path_wins_over_body_and_query(site: Site) -> None:
    task = await waiting(site)
    response = await site.http.post(
        f"/tasks/{task['id']}:cancel?id={UNKNOWN}", json={"id": UNKNOWN}
    )
    assert response.json()["id"] == task["id"]


def test_the_body_wins_over_the_query() -> None:
    route = rest.RestRoute("SendMessage", {})
    assert rest.params(route, b"a=1&b=2", {"a": "x"}) == {"a": "x", "b": "2"}
    with pytest.raises(InvalidParams):
        rest.params(route, b"", [1])
    # An empty POST may carry the literal null.
    assert rest.params(route, b"", None) == {}


async def test_a_missing_body_is_an_empty_one(site: Site) -> None:
    task = await waiting(site)
    null = await site.http.post(f"/tasks/{task['id']}:cancel", content=b"null")
    assert null.json()["status"]["state"] == "TASK_STATE_CANCELED"
    assert reason(await site.http.post("/message:send")) == (400, "INVALID_PARAMS")
    assert reason(await site.http.post("/message:send", content=b"{")) == (400, "INVALID_REQUEST")


@pytest.mark.requirement("X-1")
async def test_one_setting_chooses_whose_statuses_errors_have() -> None:
    for table, status in (("1.0.1", 400), ("1.0.0", 409)):
        async with serving(agent, error_table=table) as site:
            task = await made(site)
            refused = await site.http.post(f"/tasks/{task['id']}:cancel", headers=V1)
            assert reason(refused) == (status, "TASK_NOT_CANCELABLE")


@pytest.mark.requirement("X-1", "4.4-rest")
@pytest.mark.parametrize("accept", ["*/*", "application/a2a+json", "application/json"])
async def test_errors_of_1_0_0_are_plain_json(accept: str) -> None:
    headers = V1 | {"accept": accept}
    async with serving(agent, error_table="1.0.0") as site:
        refused = await site.http.get("/tasks/none", headers=headers)
        assert refused.headers["content-type"] == "application/json"
        assert reason(refused) == (404, "TASK_NOT_FOUND")
        # What is no error has the type that its caller takes.
        found = await site.http.get("/tasks", headers=headers)
        plain = accept == "application/json"
        assert found.headers["content-type"] == f"application/{'' if plain else 'a2a+'}json"


async def test_an_address_that_is_too_long_is_refused(site: Site) -> None:
    assert (await site.http.get("/tasks?pageToken=" + "x" * 9000)).status_code == 414


ASKED: list[tuple[ops.Operation, str, str, Any]] = [
    (
        ops.SendMessage(message=Message(message_id=MessageId("m"), role=Role.USER, parts=[])),
        "POST",
        "/message:send",
        {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": []},
            "configuration": {},
        },
    ),
    (ops.GetTask(task_id=TaskId("t"), history=0), "GET", "/tasks/t?historyLength=0", None),
    (ops.GetTask(task_id=TaskId("a/b:c?d#e%")), "GET", "/tasks/a%2Fb%3Ac%3Fd%23e%25", None),
    (ops.GetTask(task_id=TaskId("..")), "GET", "/tasks/%2E%2E", None),
    (
        ops.ListTasks(
            state=TaskState.WORKING, page_token="a&b=c d", include_artifacts=True, tenant="a/b"
        ),
        "GET",
        "/a%2Fb/tasks?pageSize=50&status=TASK_STATE_WORKING&pageToken=a%26b%3Dc%20d"
        "&includeArtifacts=true",
        None,
    ),
    (ops.CancelTask(task_id=TaskId("t")), "POST", "/tasks/t:cancel", {}),
    (
        ops.CancelTask(task_id=TaskId("t"), metadata={"why": 1}, tenant="acme"),
        "POST",
        "/acme/tasks/t:cancel",
        {"metadata": {"why": 1}},
    ),
    (ops.SubscribeToTask(task_id=TaskId("t:x")), "POST", "/tasks/t%3Ax:subscribe", None),
    (
        ops.CreatePush(
            task_id=TaskId("t"),
            config=PushConfig("https://a.example/", id="c", task_id=TaskId("t")),
        ),
        "POST",
        "/tasks/t/pushNotificationConfigs",
        {"id": "c", "url": "https://a.example/"},
    ),
    (
        ops.GetPush(task_id=TaskId("t"), config_id="a/b"),
        "GET",
        "/tasks/t/pushNotificationConfigs/a%2Fb",
        None,
    ),
    (
        ops.ListPush(task_id=TaskId("t"), page_size=7),
        "GET",
        "/tasks/t/pushNotificationConfigs?pageSize=7",
        None,
    ),
    (
        ops.DeletePush(task_id=TaskId("t"), config_id="c", tenant="acme"),
        "DELETE",
        "/acme/tasks/t/pushNotificationConfigs/c",
        None,
    ),
    (ops.GetExtendedCard(), "GET", "/extendedAgentCard", None),
]


@pytest.mark.parametrize(("operation", "verb", "path", "body"), ASKED)
def test_an_operation_becomes_the_request_that_asks_for_it(
    operation: ops.Operation, verb: str, path: str, body: Any
) -> None:
    assert rest.request(V1_0, operation) == rest.Outgoing(verb, path, body)
