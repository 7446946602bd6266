"""What every request carries, as the agent sees it, and which ones are made again."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness.waiting import within

from dragoman import Client, PushConfig, TaskState
from dragoman.client.asgi import InProcess
from dragoman.errors import (
    CardInvalid,
    CredentialsMissing,
    DeliveryUnknown,
    ExtensionRequired,
    Overloaded,
    Unauthenticated,
    VersionNotSupported,
)

RESULT = [{"artifactId": "a-1", "parts": [{"text": "done"}]}]
TASK = {
    "id": "t-1",
    "contextId": "c-1",
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": RESULT,
}
OLD_TASK = {
    "kind": "task",
    "id": "t-1",
    "contextId": "c-1",
    "status": {"state": "completed"},
    "artifacts": RESULT,
}


class Seen:
    """A request as it arrived."""

    def __init__(self, scope: Any, body: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.body: Any = json.loads(body) if body else None


Answering = Callable[[Seen], tuple[int, dict[str, str], Any]]


class Recorder:
    """An app with a card that answers as it is told and keeps what it saw."""

    def __init__(self, answering: Answering | None = None, **card: Any) -> None:
        self.seen: list[Seen] = []
        self._answering = answering or _completed
        self.card = {
            "name": "Recorder",
            "description": "Keeps what it saw.",
            "version": "1",
            "supportedInterfaces": [
                {
                    "url": "http://localhost/rpc",
                    "protocolBinding": "JSONRPC",
                    "protocolVersion": "1.0",
                }
            ],
            "capabilities": {"pushNotifications": True, "extendedAgentCard": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        } | card

    @property
    def calls(self) -> list[Seen]:
        return [one for one in self.seen if "well-known" not in one.path]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        request = Seen(scope, (await receive())["body"])
        self.seen.append(request)
        if "well-known" in request.path:
            # Kept by nobody, so that each reading of it is seen.
            status, headers, value = 200, {"cache-control": "no-store"}, self.card
        else:
            status, headers, value = self._answering(request)
        if status == 0:
            raise ConnectionResetError
        head = [(name.encode(), text.encode()) for name, text in headers.items()]
        head.append((b"content-type", b"application/json"))
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def _completed(request: Seen) -> tuple[int, dict[str, str], Any]:
    return 200, {}, result(request)


def result(request: Seen) -> dict[str, Any]:
    method, params = request.body["method"], request.body["params"]
    match method:
        case "SendMessage":
            value: Any = {"task": TASK}
        case "message/send" | "tasks/get":
            value = OLD_TASK
        case "ListTasks":
            value = {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
        case "CreateTaskPushNotificationConfig":
            value = params
        case "GetExtendedAgentCard":
            value = Recorder().card
        case _:
            value = TASK
    return {"jsonrpc": "2.0", "id": request.body["id"], "result": value}


async def do_all(agent: Client) -> None:
    await agent.send("hi")
    await agent.get("t-1")
    await agent.cancel("t-1")
    await agent.page()
    await agent.create_push("t-1", PushConfig("https://hooks.example.com"))
    await agent.extended_card()


@pytest.mark.requirement("4.1-client")
async def test_every_request_says_its_version_the_card_included() -> None:
    app = Recorder()
    async with Client(app=app) as agent:
        await within(do_all(agent))
    assert len(app.seen) == 7
    assert {one.headers["a2a-version"] for one in app.seen} == {"1.0"}


@pytest.mark.requirement("4.9-client")
@pytest.mark.parametrize("tenant", ["acme", ""])
async def test_the_tenant_of_the_interface_is_in_every_request_or_in_none(tenant: str) -> None:
    interface = {
        "url": "http://localhost/rpc",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    app = Recorder(supportedInterfaces=[interface | ({"tenant": tenant} if tenant else {})])
    async with Client(app=app) as agent:
        await within(do_all(agent))
    sent = [one.body["params"].get("tenant", "") for one in app.calls]
    assert len(sent) == 6 and set(sent) == {tenant}
    assert all(("tenant" in one.body["params"]) == bool(tenant) for one in app.calls)


@pytest.mark.requirement("4.3-client")
@pytest.mark.parametrize(
    ("version", "header"), [("1.0", "a2a-extensions"), ("0.3", "x-a2a-extensions")]
)
async def test_extensions_go_under_the_name_the_peer_knows(version: str, header: str) -> None:
    interface = {
        "url": "http://localhost/rpc",
        "protocolBinding": "JSONRPC",
        "protocolVersion": version,
    }
    needed = {"extensions": [{"uri": "https://e.example/a", "required": True}]}
    app = Recorder(supportedInterfaces=[interface], capabilities=needed)
    wanted = ["https://e.example/a", "https://e.example/b"]
    async with Client(app=app, extensions=wanted) as agent:
        await within(agent.send("hi"))
    (call,) = app.calls
    assert call.headers[header] == "https://e.example/a, https://e.example/b"
    assert not {"a2a-extensions", "x-a2a-extensions"} - {header} & call.headers.keys()


@pytest.mark.requirement("DC-5")
async def test_an_extended_card_is_for_who_asked_and_changes_no_one_elses() -> None:
    app = Recorder()
    async with Client(app=app) as agent:
        await agent.extended_card()
        await agent.extended_card()
        assert agent.card.name == "Recorder"
    # Asked for each time: it is kept nowhere.
    assert len(app.calls) == 2


async def test_service_parameters_are_headers_of_calls_and_not_of_the_card() -> None:
    app = Recorder()
    async with Client(app=app, headers={"X-Team": "blue"}) as agent:
        await agent.send("hi")
    card, call = app.seen
    assert call.headers["x-team"] == "blue" and "x-team" not in card.headers


def failing(*failures: tuple[int, dict[str, str]]) -> Answering:
    """Fail so often and so, then answer."""
    left = list(failures)

    def answer(request: Seen) -> tuple[int, dict[str, str], Any]:
        if left:
            status, headers = left.pop(0)
            return status, headers, {}
        return 200, {}, result(request)

    return answer


AGAIN = {"retry-after": "0"}
ONCE = {"extensions": [{"uri": "urn:dragoman:once:v1"}]}


async def test_a_reading_is_made_again_when_the_connection_breaks() -> None:
    app = Recorder(failing((0, {}), (503, {})))
    async with Client(app=app) as agent:
        assert (await within(agent.get("t-1"))).status.state is TaskState.COMPLETED
    assert len(app.calls) == 3


async def test_a_message_whose_answer_is_lost_is_not_sent_again_to_just_anyone() -> None:
    app = Recorder(failing((0, {})))
    async with Client(app=app) as agent:
        with pytest.raises(DeliveryUnknown):
            await within(agent.send("hi"))
    assert [one.body["method"] for one in app.calls] == ["SendMessage", "ListTasks"]


async def test_a_message_whose_answer_is_lost_is_found_among_the_latest_tasks() -> None:
    sent: list[str] = []

    def answer(request: Seen) -> tuple[int, dict[str, str], Any]:
        if request.body["method"] == "SendMessage":
            sent.append(request.body["params"]["message"]["messageId"])
            return 0, {}, None
        reply = result(request)
        if request.body["method"] == "ListTasks":
            said = {"messageId": sent[0], "role": "ROLE_USER", "parts": [{"text": "hi"}]}
            reply["result"]["tasks"] = [TASK | {"id": "other"}, TASK | {"history": [said]}]
        return 200, {}, reply

    app = Recorder(answer)
    async with Client(app=app) as agent:
        found = await within(agent.send("hi"))
    assert found.task_id == "t-1" and len(sent) == 1


async def test_a_message_goes_again_under_its_id_where_it_is_worked_on_once() -> None:
    app = Recorder(failing((0, {}), (0, {})), capabilities=ONCE)
    async with Client(app=app) as agent:
        assert (await within(agent.send("hi"))).state is TaskState.COMPLETED
    ids = [one.body["params"]["message"]["messageId"] for one in app.calls]
    assert len(ids) == 3 and len(set(ids)) == 1


@pytest.mark.parametrize(
    ("failure", "calls"),
    [((429, {}), 2), ((503, AGAIN), 2), ((503, {}), 1)],
)
async def test_a_message_goes_again_to_who_says_that_it_did_not_begin(
    failure: tuple[int, dict[str, str]], calls: int
) -> None:
    app = Recorder(failing(failure))
    async with Client(app=app) as agent:
        if calls == 1:
            with pytest.raises(Overloaded):
                await within(agent.send("hi"))
        else:
            assert (await within(agent.send("hi"))).task_id == "t-1"
    assert len(app.calls) == calls


async def test_tries_come_to_an_end() -> None:
    app = Recorder(failing(*[(503, AGAIN)] * 10))
    async with Client(app=app) as agent:
        with pytest.raises(Overloaded):
            await within(agent.get("t-1"))
    assert len(app.calls) == 3


async def test_a_cancel_whose_answer_was_lost_has_worked_if_the_task_is_canceled() -> None:
    canceled = TASK | {"status": {"state": "TASK_STATE_CANCELED"}}
    asked: list[str] = []

    def answer(request: Seen) -> tuple[int, dict[str, str], Any]:
        asked.append(request.body["method"])
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request.body["id"]}
        if asked == ["CancelTask"]:
            return 0, {}, None
        if request.body["method"] == "CancelTask":
            return 200, {}, reply | {"error": {"code": -32002, "message": "ended"}}
        return 200, {}, reply | {"result": canceled}

    async with Client(app=Recorder(answer)) as agent:
        task = await within(agent.cancel("t-1"))
    assert task.status.state is TaskState.CANCELED
    assert asked == ["CancelTask", "CancelTask", "GetTask"]


async def test_a_401_without_a_credential_says_that_one_is_missing() -> None:
    app = Recorder(failing((401, {"www-authenticate": "Bearer"})))
    async with Client(app=app) as agent:
        with pytest.raises(CredentialsMissing) as missing:
            await agent.get("t-1")
    assert missing.value.facts["wwwAuthenticate"] == "Bearer"


async def test_a_401_to_a_credential_is_a_refusal_and_is_not_tried_again() -> None:
    scheme = {"key": {"apiKeySecurityScheme": {"name": "x-key", "location": "header"}}}
    app = Recorder(
        failing((401, {})),
        securitySchemes=scheme,
        securityRequirements=[{"schemes": {"key": {"list": []}}}],
    )
    async with Client(app=app, api_key="secret") as agent:
        with pytest.raises(Unauthenticated):
            await agent.get("t-1")
    (call,) = app.calls
    assert call.headers["x-key"] == "secret"
    assert "x-key" not in app.seen[0].headers, "the card's address did not ask for it"


# Looking at a card


async def test_a_card_can_be_looked_at_where_nothing_fits() -> None:
    scheme = {"key": {"apiKeySecurityScheme": {"name": "x-key", "location": "header"}}}
    app = Recorder(
        capabilities={"extensions": [{"uri": "https://e.example/a", "required": True}]},
        securitySchemes=scheme,
        securityRequirements=[{"schemes": {"key": {"list": []}}}],
    )
    asked = ["https://e.example/a"]
    for options, error in (
        ({"version": "0.3"}, VersionNotSupported),
        ({}, ExtensionRequired),
        ({"extensions": asked}, CredentialsMissing),
    ):
        agent = Client(app=app, **options)
        assert (await agent.look()).name == agent.card.name == "Recorder"
        assert agent.raw_card == app.card and "http://localhost" in agent.origins
        with pytest.raises(error):
            await agent.connect()
    assert not app.calls


async def test_connecting_goes_on_from_the_card_that_was_looked_at() -> None:
    app = Recorder()
    agent = Client(app=app)
    await agent.look()
    await agent.look()
    await agent.send("hi")
    assert len(app.seen) - len(app.calls) == 1
    await agent.look(fresh=True)
    assert len(app.seen) - len(app.calls) == 2
    assert app.seen[-1].headers["cache-control"] == "no-cache"


async def test_who_could_not_connect_reads_the_card_again_before_the_next_try() -> None:
    app = Recorder(capabilities={"extensions": [{"uri": "https://e.example/a", "required": True}]})
    agent = Client(app=app)
    with pytest.raises(ExtensionRequired):
        await agent.connect()
    app.card["capabilities"] = {}
    await agent.connect()
    assert len(app.seen) == 2


async def test_a_card_has_to_be_signed_to_be_looked_at_by_who_requires_it() -> None:
    with pytest.raises(CardInvalid, match="absent"):
        await Client(app=Recorder(), require_signature=True).look()


async def test_service_parameters_do_not_go_to_an_origin_that_only_the_card_names() -> None:
    interface = {
        "url": "http://elsewhere.example/rpc",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    app = Recorder(supportedInterfaces=[interface])
    async with Client(app=app, headers={"X-Key": "secret"}) as agent:
        with pytest.raises(CredentialsMissing, match="elsewhere"):
            await agent.send("hi")
    assert app.calls == []
    named = ["http://elsewhere.example"]
    async with Client(app=app, headers={"X-Key": "secret"}, origins=named) as agent:
        await agent.send("hi")
    assert app.calls[0].headers["x-key"] == "secret"


@pytest.mark.parametrize("capabilities", [{}, ONCE])
async def test_a_message_goes_on_a_used_connection_only_where_it_may_be_lost(
    capabilities: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    plain = InProcess.open

    def opened(self: InProcess, *words: Any, reuse: bool = False, **more: Any) -> Any:
        if more.get("body"):
            asked.append((json.loads(more["body"])["method"], reuse))
        return plain(self, *words, reuse=reuse, **more)

    monkeypatch.setattr(InProcess, "open", opened)
    async with Client(app=Recorder(capabilities=capabilities)) as agent:
        await agent.send("hi")
        await agent.get("t-1")
    assert asked == [("SendMessage", capabilities is ONCE), ("GetTask", True)]
