"""What operators see and do: everything there is, or what is in their tenant; and it is noted."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import client, hosting
from harness.waiting import within

from dragoman import Agent, App, Client, Settings, Turn
from dragoman.config import StoreSettings, load_settings
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.server.operator import inbox
from dragoman.stores.interface import Survey, TaskRow
from dragoman.stores.memory import MemoryStore
from tests.http.test_access_control import ALICE, ANNA, BOSS, CHIEF, TOKENS, bearer, house, send


@asynccontextmanager
async def site(**settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    chosen = load_settings({}, **{"store": "memory:"} | settings)
    app = App(house(), settings=chosen, authenticators=[BearerTokens(tokens=TOKENS)])
    async with hosting(app) as url, client(url) as http:
        yield http


async def made(http: httpx.AsyncClient, token: str, skill: str = "hello") -> str:
    sent = await send(http, token, metadata={"skillId": skill})
    return sent.json()["result"]["task"]["id"]


async def read(http: httpx.AsyncClient, path: str, token: str) -> Any:
    answer = await http.get(path, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "private, no-store"
    return answer.json()


async def test_an_operator_sees_the_tasks_of_all_owners_page_by_page() -> None:
    async with site() as http:
        tasks = [await made(http, token) for token in (ALICE, ANNA, ALICE, ANNA, ALICE)]
        page = await read(http, "/admin/tasks?limit=2", BOSS)
        assert [item["id"] for item in page["items"]] == tasks[:2:-1]
        rest = await read(http, f"/admin/tasks?pageToken={page['nextPageToken']}", BOSS)
        assert [item["id"] for item in rest["items"]] == tasks[2::-1]
        assert rest["nextPageToken"] == ""
        assert page["items"][1]["tenant"] == "acme" and page["items"][1]["owner"]
        done = await read(http, "/admin/tasks?status=TASK_STATE_COMPLETED", BOSS)
        assert len(done["items"]) == 5
        assert (await read(http, "/admin/tasks?tenant=acme", BOSS))["items"][0]["id"] == tasks[3]


async def test_the_admin_of_a_tenant_sees_that_tenant_and_nothing_else() -> None:
    async with site() as http:
        outside, inside = await made(http, ALICE), await made(http, ANNA)
        assert [item["id"] for item in (await read(http, "/admin/tasks", CHIEF))["items"]] == [
            inside
        ]
        assert (await read(http, f"/admin/tasks/{inside}", CHIEF))["id"] == inside
        foreign = await http.get(f"/admin/tasks/{outside}", headers=bearer(CHIEF))
        never = await http.get("/admin/tasks/" + "0" * len(outside), headers=bearer(CHIEF))
        assert foreign.status_code == 404
        assert foreign.content.replace(outside.encode(), b"0" * len(outside)) == never.content
        assert (await http.get("/admin/tasks?tenant=x", headers=bearer(CHIEF))).status_code == 404
        assert (await http.get("/admin/status", headers=bearer(CHIEF))).status_code == 403


@pytest.mark.parametrize("path", ["/admin/status", "/admin/tasks", "/admin/tasks/x"])
async def test_others_have_no_business_here(path: str) -> None:
    async with site() as http:
        assert (await http.get(path, headers=bearer(ALICE))).status_code == 403
        assert (await http.get(path)).status_code == 401


async def test_an_operator_ends_a_task_and_that_is_noted(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with site(audit=str(audit)) as http:
        task = await made(http, ALICE, "wait")
        path = f"/admin/tasks/{task}:cancel"
        assert (await http.get(path, headers=bearer(BOSS))).status_code == 405
        ended = await http.post(path, headers=bearer(BOSS))
        assert ended.json()["status"]["state"] == "TASK_STATE_CANCELED"
        again = await http.post(path, headers=bearer(BOSS))
        assert again.status_code == 400
        seen = await http.get(f"/tasks/{task}", headers=bearer(ALICE))
        assert seen.json()["status"]["state"] == "TASK_STATE_CANCELED"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    acts = [line for line in lines if line["act"] == "admin.task.cancel"]
    assert len(acts) == 2 and task in acts[0]["object"] and acts[0]["who"].endswith("boss")


@pytest.mark.parametrize(
    "query",
    [
        "&".join(["a=1"] * 21),
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=1e9",
        "limit=00000000199999999",
        "status=never",
        "pageToken=%00",
    ],
)
async def test_what_makes_no_sense_is_refused(query: str) -> None:
    async with site() as http:
        assert (await http.get(f"/admin/tasks?{query}", headers=bearer(BOSS))).status_code == 400


async def test_the_status_tells_an_operator_how_the_server_is() -> None:
    async with site() as http:
        await made(http, ALICE, "wait")
        status = await read(http, "/admin/status", BOSS)
        assert status["state"] == "ok" and status["agents"] == ["house"]
        assert status["authentication"] == ["bearer"] and status["runningTasks"] == 1


async def test_what_goes_wrong_inside_is_an_incident_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: MemoryStore, survey: Survey) -> list[TaskRow]:
        raise OSError("/secret/path is away")

    monkeypatch.setattr(MemoryStore, "survey", broken)
    async with site() as http:
        answer = await http.get("/admin/tasks", headers=bearer(BOSS))
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "incident" in caplog.text and "/secret/path" in caplog.text


async def test_an_operator_sees_what_others_were_given_for_a_task() -> None:
    chief = Agent("Chief", "Has others work.")
    # A second agent of the same server does the work, so that both tasks are in one store.
    below: list[Client] = []

    @chief.skill
    async def work(text: str, turn: Turn) -> str:
        return (await turn.call(below[0], text)).text

    tokens = BearerTokens(tokens=TOKENS)
    app = App(
        chief,
        house(),
        settings=Settings(stores=StoreSettings(location="memory:")),
        authenticators=[tokens],
    )
    async with (
        hosting(app) as url,
        client(url) as http,
        Client(f"{url}/agents/house", bearer=ALICE) as other,
    ):
        below.append(other)
        task = await made(http, ANNA, "work")
        tree = await read(http, f"/admin/tasks/{task}:tree", BOSS)
        (child,) = tree["children"]
        assert tree["id"] == task and tree["agent"] == "chief"
        assert child["agent"] == "house" and child["state"] == "TASK_STATE_COMPLETED"
        # The admin of a tenant sees what is there; what is elsewhere is only a name.
        ours = await read(http, f"/admin/tasks/{task}:tree", CHIEF)
        assert ours["children"][0].keys() == {"id", "agent", "url"}
        for token, status in ((ALICE, 403), ("nobody", 401)):
            refused = await http.get(f"/admin/tasks/{task}:tree", headers=bearer(token))
            assert refused.status_code == status
        unknown = await http.get("/admin/tasks/none:tree", headers=bearer(BOSS))
        assert unknown.status_code == 404


async def test_an_operator_answers_what_waits_for_a_person() -> None:
    agent = Agent("Clerk", "Asks.")

    @agent.skill
    async def pay(text: str, turn: Turn) -> str:
        if await turn.confirm(f"Pay {text}?"):
            return f"paid, {await turn.choose('From?', ['cash', 'bank'])}"
        return "not paid"

    tokens = BearerTokens(tokens=TOKENS)
    app = App(
        agent, settings=Settings(stores=StoreSettings(location="memory:")), authenticators=[tokens]
    )
    async with hosting(app) as url, client(url) as http:

        async def answer(token: str, **body: Any) -> httpx.Response:
            return await http.post("/admin/inbox", json=body, headers=bearer(token))

        task = await made(http, ANNA, "pay")
        other = await made(http, ALICE, "pay")
        (asked,) = (await read(http, "/admin/inbox", CHIEF))["items"]
        assert (asked["taskId"], asked["kind"], asked["tenant"]) == (task, "confirmation", "acme")
        assert len((await read(http, "/admin/inbox", BOSS))["items"]) == 2
        # One of them, by its own id or by its task's; what is in another tenant is not there.
        for name in (asked["id"], task):
            assert await read(http, f"/admin/inbox/{name}", CHIEF) == asked
        for who, name, status in ((CHIEF, other, 404), (BOSS, "nothing", 404), (ANNA, task, 403)):
            missing = await http.get(f"/admin/inbox/{name}", headers=bearer(who))
            assert missing.status_code == status
        posted = await http.post(f"/admin/inbox/{task}", json={}, headers=bearer(BOSS))
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET")
        assert (await answer(CHIEF, id=other, value=True)).status_code == 404
        assert (await answer(ALICE, id=other, value=True)).status_code == 403
        for wrong in ({"id": 7}, {"value": 1}, {"id": task}, {"id": task, "more": 1}, []):
            refused = await http.post("/admin/inbox", json=wrong, headers=bearer(BOSS))
            assert refused.status_code == 400
        assert (await answer(CHIEF, id=asked["id"], value=True)).status_code == 200

        async def waits_for(kind: str) -> dict[str, Any]:
            while True:
                for item in (await read(http, "/admin/inbox", CHIEF))["items"]:
                    if item["kind"] == kind:
                        return item

        choice = await within(waits_for("choice"))
        assert choice["choices"] == ["cash", "bank"]
        assert (await answer(CHIEF, id=task, value="bank")).status_code == 200
        assert (await answer(BOSS, id=other, decline="no money")).status_code == 200
        assert await within(ended(http, task)) == "TASK_STATE_COMPLETED"
        assert await within(ended(http, other)) == "TASK_STATE_FAILED"


async def test_a_question_is_not_lost_behind_those_that_came_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "_AT_ONCE", 2)
    agent = Agent("Clerk", "Asks.")

    @agent.skill
    async def pay(text: str, turn: Turn) -> str:
        return "paid" if await turn.confirm(f"Pay {text}?") else "not paid"

    tokens = BearerTokens(tokens=TOKENS)
    app = App(
        agent, settings=Settings(stores=StoreSettings(location="memory:")), authenticators=[tokens]
    )
    async with hosting(app) as url, client(url) as http:
        tasks = [await made(http, ANNA, "pay") for _ in range(5)]
        (asked,) = (await read(http, "/admin/inbox?limit=1", BOSS))["items"]
        assert asked["taskId"] == tasks[0]
        body = {"id": asked["id"], "value": True}
        answered = await http.post("/admin/inbox", json=body, headers=bearer(BOSS))
        assert answered.status_code == 200
        assert await within(ended(http, tasks[0])) == "TASK_STATE_COMPLETED"


async def ended(http: httpx.AsyncClient, task: str) -> str:
    while True:
        state = (await read(http, f"/admin/tasks/{task}", BOSS))["status"]["state"]
        if state in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED"):
            return state
