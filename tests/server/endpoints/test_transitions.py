"""The states that a task went through, read by its owner: in every binding and dialect, and
through a gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, client, hosting, serving
from harness.waiting import within

from dragoman import Agent, App, BearerTokens, Caller, Client, Settings, Task, TaskState, Turn
from dragoman.client.streams.transitions import read_all
from dragoman.config import StoreSettings
from dragoman.errors import InvalidAgentResponse, TaskNotFound, UnsupportedOperation
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import ContextId, Principal, TaskId
from dragoman.model.task import MAX_TRANSITIONS, TRANSITIONS_URI, TaskStatus

NEW, OLD = {"A2A-Extensions": TRANSITIONS_URI}, {"X-A2A-Extensions": TRANSITIONS_URI}
LIFE = ["submitted", "working", "input-required", "working", "completed"]
PROTO = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]


def asker() -> Agent:
    agent = Agent("Asker", "Asks, and says much meanwhile.")

    @agent.skill(default=True)
    async def ask(text: str, turn: Turn) -> AsyncIterator[str]:
        for _ in range(3):
            await turn.say("still at it")
        await turn.ask("Well?")
        for number in range(5):
            yield f"{number}"

    @agent.skill
    async def often(count: int, turn: Turn) -> None:
        for _ in range(count):
            await turn.ask("Well?")

    @agent.skill
    async def wait(text: str) -> str:
        await asyncio.Event().wait()
        return text

    return agent


async def lived(site: Site, path: str = "/") -> str:
    """Return the id of a task that went through some states."""
    to = {"path": path, "headers": V1}
    message = {"messageId": "a", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    task = (await site.call("SendMessage", {"message": message}, **to))["task"]
    answer = message | {"messageId": "b", "taskId": task["id"]}
    task = (await site.call("SendMessage", {"message": answer}, **to))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    return task["id"]


def told(value: Any) -> list[str]:
    """Return the states in the metadata of a task."""
    found = value["metadata"][TRANSITIONS_URI]
    assert set(found) == {"transitions"}
    positions = [one["position"] for one in found["transitions"]]
    assert positions == sorted(set(positions)) and positions[0] == 1
    times = [one["timestamp"] for one in found["transitions"]]
    assert times == sorted(times) and all(time.endswith("Z") for time in times)
    return [one["state"] for one in found["transitions"]]


async def read(site: Site, id: str, way: str, base: str = "") -> httpx.Response:
    """Read a task with the extension, in one of the ways there are."""
    rpc = {"jsonrpc": "2.0", "id": 1}
    match way:
        case "1.0":
            body = rpc | {"method": "GetTask", "params": {"id": id}}
            return await site.post(body, base or "/", V1 | NEW)
        case "1.0-rest":
            return await site.http.get(f"{base}/tasks/{id}", headers=V1 | NEW)
        case "0.3-rest":
            return await site.http.get(f"{base}/v1/tasks/{id}", headers=OLD)
        case "corvid":
            return await site.http.get(f"{base}/a2a/tasks/{id}", headers=OLD)
        case "nexus" | "r":
            path = {"nexus": "/api/v1/a2a", "r": "/api/a2a"}[way]
            body = rpc | {"method": "tasks/get", "params": {"id": id}}
            return await site.post(body, base + path, OLD)
        case _:
            body = rpc | {"method": "tasks/get", "params": {"id": id}}
            return await site.post(body, base or "/", OLD | {"A2A-Version": way})


WAYS = ["1.0", "1.0-rest", "0.3", "0.2", "0.3-rest", "corvid", "nexus", "r"]


@pytest.mark.parametrize("way", WAYS)
async def test_every_binding_and_dialect_tells_the_states_in_its_own_words(way: str) -> None:
    async with serving(asker()) as site:
        id = await lived(site)
        response = await read(site, id, way)
    assert response.status_code == 200, response.text
    if way != "corvid":
        # That house has headers of its own.
        name = "a2a-extensions" if way.startswith("1.0") else "x-a2a-extensions"
        assert response.headers[name] == TRANSITIONS_URI
    value = response.json()
    value = value.get("result", value)
    expected = LIFE
    if way in ("1.0", "1.0-rest", "0.3-rest"):
        expected = [f"TASK_STATE_{state}" for state in PROTO]
    assert told(value.get("task", value)) == expected


@pytest.mark.parametrize("way", WAYS)
async def test_who_does_not_ask_is_told_nothing(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    for headers in (NEW, OLD):
        monkeypatch.delitem(headers, next(iter(headers)))
    async with serving(asker()) as site:
        response = await read(site, await lived(site), way)
    assert response.status_code == 200 and TRANSITIONS_URI not in response.text


@pytest.mark.parametrize("way", ["1.0", "1.0-rest", "0.3", "0.2", "0.3-rest"])
async def test_a_gateway_tells_the_states_of_its_own_tasks(tmp_path: Path, way: str) -> None:
    async with serving(asker()) as upstream:
        settings = Settings(stores=StoreSettings(location=str(tmp_path / "gateway.db")))
        app = gateway_app(settings=settings, is_local=True)
        async with hosting(app) as url, client(url) as http:
            site = Site(url, http, app)
            registry = gateway_of(app).registry
            agent = await registry.register(Registration(url=upstream.url), Principal.read(""))
            base = f"/a2a/{agent.name}"
            id = await lived(site, base)
            value = (await read(site, id, way, base)).json()
            card = (await http.get(f"{base}/.well-known/agent-card.json")).json()
            old = (await http.get(f"{base}/.well-known/agent.json")).json()
    value = value.get("result", value)
    states = [one.removeprefix("TASK_STATE_") for one in told(value.get("task", value))]
    assert [state.lower().replace("_", "-") for state in states] == LIFE
    assert TRANSITIONS_URI in [one["uri"] for one in card["capabilities"]["extensions"]]
    assert old["capabilities"]["stateTransitionHistory"] is True


async def test_the_card_says_so_where_its_version_has_a_word_for_it() -> None:
    async with serving(asker()) as site:
        path = "/.well-known/agent-card.json"
        new = (await site.http.get(path, headers=V1)).json()["capabilities"]
        old = (await site.http.get(path, headers={"A2A-Version": "0.3"})).json()["capabilities"]
    assert "stateTransitionHistory" not in new and old["stateTransitionHistory"] is True
    for capabilities in (new, old):
        assert TRANSITIONS_URI in [one["uri"] for one in capabilities["extensions"]]


async def test_a_task_under_way_tells_what_there_was_so_far() -> None:
    async with serving(asker()) as site:
        metadata = {"skillId": "wait"}
        task = await site.send("x", configuration={"returnImmediately": True}, metadata=metadata)
        params = {"id": task["id"]}
        async with site.stream("SubscribeToTask", params, headers=V1) as stream:
            async for frame in stream:
                if "WORKING" in str(frame.data):
                    break
        value = await site.call("GetTask", params, headers=V1 | NEW)
        assert told(value) == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"]
        await site.call("CancelTask", params)
        value = await site.call("GetTask", params, headers=V1 | NEW)
        assert told(value)[-1] == "TASK_STATE_CANCELED"


async def test_many_states_come_page_by_page() -> None:
    async with serving(asker()) as site:
        count = MAX_TRANSITIONS // 2 + 3
        data = {"parts": [{"data": {"count": count}}], "metadata": {"skillId": "often"}}
        task = await site.send(None, **data)
        for _ in range(count):
            task = await site.send("yes", taskId=task["id"])
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        params = {"id": task["id"]}
        pages: list[Any] = []
        after = 0
        while True:
            headers = V1 | NEW | ({"Last-Event-ID": str(after)} if after else {})
            value = await site.call("GetTask", params, headers=headers)
            pages.append(value["metadata"][TRANSITIONS_URI])
            after = pages[-1].get("nextPosition", 0)
            if not after:
                break
        # The same where headers cannot be set, but for the extension.
        path = f"/tasks/{task['id']}?lastEventId={pages[0]['nextPosition']}"
        second = (await site.http.get(path, headers=V1 | NEW)).json()
        assert second["metadata"][TRANSITIONS_URI] == pages[1]
    sizes = [len(page["transitions"]) for page in pages]
    assert sizes == [MAX_TRANSITIONS, 2 + 2 * count + 1 - MAX_TRANSITIONS]
    states = [one["state"].split("_", 2)[2] for page in pages for one in page["transitions"]]
    assert states == ["SUBMITTED", "WORKING", *["INPUT_REQUIRED", "WORKING"] * count, "COMPLETED"]


async def test_a_position_that_is_none_is_refused_and_a_later_one_finds_nothing() -> None:
    async with serving(asker()) as site:
        params = {"id": await lived(site)}
        for wrong in ("x", "-1", "1.5", "9" * 30):
            headers = V1 | NEW | {"Last-Event-ID": wrong}
            error = await site.refusal("GetTask", params, headers=headers)
            assert error["code"] == -32602
        value = await site.call("GetTask", params, headers=V1 | NEW | {"Last-Event-ID": "9999"})
        assert value["metadata"][TRANSITIONS_URI] == {"transitions": []}
        # Without the extension a position says nothing here.
        await site.call("GetTask", params, headers=V1 | {"Last-Event-ID": "x"})


async def test_somebody_elses_task_is_not_found() -> None:
    tokens = {"a" * 20: Caller("ada", True), "b" * 20: Caller("bob", True)}
    settings = Settings(stores=StoreSettings(location="memory:"))
    app = App(asker(), settings=settings, authenticators=[BearerTokens(tokens=tokens)])
    async with hosting(app) as url, client(url) as http:
        site = Site(url, http, app)
        ada, bob = ({"Authorization": f"Bearer {token}"} for token in tokens)
        message = {"messageId": "a", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        task = await site.call("SendMessage", {"message": message}, headers=V1 | ada)
        params = {"id": task["task"]["id"]}
        mine = await site.call("GetTask", params, headers=V1 | NEW | ada)
        assert len(told(mine)) == 3
        theirs = await site.refusal("GetTask", params, headers=V1 | NEW | bob)
        nobody = await site.refusal("GetTask", {"id": "0" * 32}, headers=V1 | NEW | bob)
        assert theirs["code"] == nobody["code"] == -32001
        assert "ransition" not in str(theirs)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_our_client_reads_all_of_them(version: str, binding: str) -> None:
    async with serving(asker()) as site:
        count = MAX_TRANSITIONS // 2 + 3
        data = {"parts": [{"data": {"count": count}}], "metadata": {"skillId": "often"}}
        task = await site.send(None, **data)
        for _ in range(count):
            task = await site.send("yes", taskId=task["id"])
        async with Client(site.url, version=version, bindings=[binding]) as agent:
            found = await agent.transitions(task["id"])
            with pytest.raises(TaskNotFound):
                await agent.transitions("0" * 32)
    waits = [TaskState.INPUT_REQUIRED, TaskState.WORKING] * count
    expected = [TaskState.SUBMITTED, TaskState.WORKING, *waits, TaskState.COMPLETED]
    assert [one.state for one in found] == expected
    assert [one.position for one in found] == sorted({one.position for one in found})


def page(*states: Any, next: Any = None) -> Any:
    said = [{"position": place, "state": state} for place, state in states]
    return {"transitions": said} | ({} if next is None else {"nextPosition": next})


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (None, UnsupportedOperation),
        (5, InvalidAgentResponse),
        ({"transitions": [5]}, InvalidAgentResponse),
        (page((1, "dancing")), InvalidAgentResponse),
        (page((2, "working"), (2, "completed")), InvalidAgentResponse),
        (page((1, "working"), next=1), InvalidAgentResponse),
        (page(next=7), InvalidAgentResponse),
        (page((1, "working"), next=9), InvalidAgentResponse),
    ],
)
async def test_what_an_agent_tells_wrongly_is_an_error_and_has_an_end(
    told: Any, error: type[Exception]
) -> None:
    metadata = {} if told is None else {TRANSITIONS_URI: told}
    status = TaskStatus(TaskState.WORKING)
    task = Task(TaskId("t"), ContextId("c"), status, metadata=metadata)

    async def ask(after: int | None) -> Task:
        return task

    with pytest.raises(error):
        await within(read_all(ask))
