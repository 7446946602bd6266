"""Tasks of all agents and owners: filters, text, pages, and who may see what."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.serving import client, hosting
from harness.waiting import eventually

from dragoman import App
from dragoman.config import load_settings
from dragoman.server import upkeep
from dragoman.server.operator.tasks import words as task_words
from tests.http.test_access_control import ALICE, ANNA, BOSS, CHIEF, FREE_ANNA, bearer, send
from tests.server.operator.operator_site import API, clerk, operator_site


def ids(items: list[Any]) -> list[str]:
    return [item["id"] for item in items]


async def test_tasks_are_found_by_every_filter_and_by_text(location: str) -> None:
    async with operator_site(location=location) as site:
        first = await site.made("a red house", ALICE)
        second = await site.made("a blue car", ANNA)
        failed = await site.made("the red letter", ALICE, "fail")
        asking = await site.made("a form", FREE_ANNA, "order")

        async def found(token: str = BOSS, **query: Any) -> list[str]:
            return ids(await site.walk("/tasks", token, **query))

        assert await found() == [asking, failed, second, first]
        for limit in (1, 2, 3):
            assert await found(limit=limit) == [asking, failed, second, first]
        assert await found(state="TASK_STATE_FAILED") == [failed]
        assert await found(tenant="acme") == [second]
        assert await found(owner="token:alice") == [failed, first]
        assert await found(agent="clerk", state="TASK_STATE_COMPLETED") == [second, first]
        assert await found(agent="other") == []
        (item,) = [one for one in await site.walk("/tasks") if one["id"] == failed]
        assert await found(context=item["contextId"]) == [failed]
        assert await found(since=item["statusAt"]) == [asking, failed]
        assert await found(until=item["statusAt"]) == [second, first]
        assert item["words"] == "the red letter" and "cannot read" in item["error"]
        assert item["skill"] == "fail" and item["madeAt"] <= item["statusAt"]
        # Each sees what is its own, whatever it asks for.
        assert await found(ALICE) == [failed, first]
        assert await found(ALICE, owner="token:anna") == []
        assert await found(ANNA) == [second] and await found(FREE_ANNA) == [asking]
        assert await found(CHIEF) == [second]
        assert await found(CHIEF, tenant="other") == []
        assert await found(CHIEF, tenant="acme", owner="token:anna") == [second]


@pytest.mark.parametrize("is_indexed", [False, True])
async def test_tasks_are_found_by_words_before_and_after_they_are_indexed(
    location: str, is_indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the test alone.
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    async with operator_site(location=location) as site:
        first = await site.made("a red house", ALICE)
        second = await site.made("a blue car", ANNA)
        failed = await site.made("the red_letter", ALICE, "fail")
        asking = await site.made("a form", FREE_ANNA, "order")
        sized = await site.made('Größe "XL" \\ 7, 赤い家', ALICE)
        if is_indexed:
            assert not await task_words.index_some(site.app.store)
            assert not await site.app.store.unindexed(10)

        async def found(token: str = BOSS, **query: Any) -> list[str]:
            return ids(await site.walk("/tasks", token, **query))

        # In the first message and in the error, in any letters, from the beginning of a word.
        assert await found(text="RED") == [failed, first]
        assert await found(text="let") == await found(text="cannot read the") == [failed]
        assert await found(text="house a") == [first]
        assert await found(text="a") == [asking, second, first]
        assert await found(text="a", limit=1) == [asking, second, first]
        assert await found(text="red", state="TASK_STATE_COMPLETED") == [first]
        assert await found(text="ouse") == await found(text="green") == await found(text="!") == []
        # Letters that are several in small, what JSON escapes, and scripts without spaces.
        for text in ("GRÖSSE", '"xl"', "grö 7", "家", "家赤"):
            assert await found(text=text) == [sized], text
        # Each sees what is its own, whatever it asks for.
        assert await found(ALICE, text="a") == [first]
        assert await found(ANNA, text="a") == [second]
        assert await found(ANNA, text="red") == await found(CHIEF, text="red") == []
        assert await found(CHIEF, text="a") == [second]
        assert await found(CHIEF, text="a", tenant="other") == []


async def test_what_waits_for_the_index_is_searched_as_far_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest first; the answer tells that there may be more."""
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    monkeypatch.setattr(task_words, "_READ", 4)
    async with operator_site() as site:
        made = [await site.made(f"needle {n}" if n % 3 == 0 else "hay") for n in range(8)]
        page = await site.read("/tasks", text="needle")
        assert ids(page["items"]) == [made[6]] and page["isPartial"]
        while await task_words.index_some(site.app.store):
            pass
        late = await site.made("a needle")
        page = await site.read("/tasks", text="needle")
        assert ids(page["items"]) == [late, made[6], made[3], made[0]] and not page["isPartial"]


async def test_an_error_is_found_that_came_after_its_task_was_indexed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    async with operator_site(location=location) as site:
        task = await site.made("long work", ALICE, "wait")
        await task_words.index_some(site.app.store)
        assert (await site.post(f"/tasks/{task}/cancel")).status_code == 200
        for _ in range(2):
            assert ids(await site.walk("/tasks", text="work")) == [task]
            assert ids(await site.walk("/tasks", text="work", state="TASK_STATE_CANCELED")) == [
                task
            ]
            await task_words.index_some(site.app.store)
        assert not await site.app.store.unindexed(10)


async def test_a_server_indexes_words_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 0.01)
    async with operator_site() as site:
        await site.made("a red house")

        async def is_indexed() -> bool:
            return not await site.app.store.unindexed(10)

        await eventually(is_indexed)


async def test_a_token_is_of_one_list_and_one_viewer() -> None:
    async with operator_site() as site:
        for _ in range(3):
            await site.made()
        token = (await site.read("/tasks", limit=1))["nextPageToken"]
        assert (await site.ask("/tasks", pageToken=token)).status_code == 200
        for who, query in (
            (ALICE, {}),
            (CHIEF, {}),
            (BOSS, {"state": "TASK_STATE_COMPLETED"}),
            (BOSS, {"text": "x"}),
        ):
            refused = await site.ask("/tasks", who, pageToken=token, **query)
            assert refused.status_code == 400, (who, query)
        assert (await site.ask("/inbox", pageToken=token)).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 201},
        {"limit": "many"},
        {"state": "DONE"},
        {"since": "yesterday"},
        {"until": "2026-01-01T00:00:00"},
        {"text": "x" * 257},
        {"pageToken": "!"},
        {"pageToken": "\0"},
        {"limit": "1e9"},
        {"limit": "00000000199999999"},
        {"since": ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]},
    ],
)
async def test_a_filter_that_is_none_is_told(query: dict[str, Any]) -> None:
    async with operator_site() as site:
        refused = await site.ask("/tasks", **query)
        assert refused.status_code == 400, refused.text


async def test_what_a_viewer_may_not_see_does_not_exist() -> None:
    async with operator_site() as site:
        task = await site.made("secret words", ALICE)
        for path in ("", "/state", "/events", "/events/stream", "/transitions", "/tree"):
            never = await site.ask(f"/tasks/{'0' * len(task)}{path}", ANNA)
            for token in (ANNA, CHIEF, FREE_ANNA):
                hidden = await site.ask(f"/tasks/{task}{path}", token)
                assert hidden.status_code == 404, (path, token)
                assert hidden.text.replace(task, "0" * len(task)) == never.text
        for token in (ANNA, CHIEF):
            assert (await site.post(f"/tasks/{task}/cancel", token=token)).status_code == 404
        assert (await site.read(f"/tasks/{task}", ALICE))["task"]["words"] == "secret words"


async def test_a_task_is_shown_as_it_was_at_any_position(location: str) -> None:
    async with operator_site(location=location) as site:
        task = await site.made("3", skill="count")
        view = await site.read(f"/tasks/{task}", ALICE)
        assert view["isEnded"] and view["attempt"] == 1 and view["deadline"] == ""
        last = view["task"]["events"]
        states = [await site.read(f"/tasks/{task}/state", at=at) for at in range(1, last + 1)]
        assert [one["position"] for one in states] == list(range(1, last + 1))
        assert states[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
        assert states[-1] == await site.read(f"/tasks/{task}/state")
        assert states[-1]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await site.read(f"/tasks/{task}/state", at=last + 100) == states[-1]


async def test_an_owner_and_an_operator_cancel_a_task(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with operator_site(audit=str(audit)) as site:
        for token in (ALICE, BOSS):
            task = await site.made(skill="wait")
            refused = await site.ask(f"/tasks/{task}/cancel")
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
            ended = await site.post(f"/tasks/{task}/cancel", token=token)
            assert ended.status_code == 200, ended.text
            assert ended.json()["task"]["state"] == "TASK_STATE_CANCELED"
            again = await site.post(f"/tasks/{task}/cancel", token=token)
            assert again.status_code == 400
            seen = await site.http.get(f"/tasks/{task}", headers=bearer(ALICE))
            assert seen.json()["status"]["state"] == "TASK_STATE_CANCELED"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    acts = [line for line in lines if line["act"] == "console.task.cancel"]
    assert [line["who"] for line in acts] == ["token:alice"] * 2 + ["token:boss"] * 2
    assert task in acts[-1]["object"]


async def test_the_user_of_a_server_on_this_machine_sees_everything() -> None:
    """Without authentication, where only this machine can call, and not elsewhere."""
    for is_local in (True, False):
        app = App(clerk(), settings=load_settings({}, store="memory:"), is_local=is_local)
        async with hosting(app) as url, client(url) as http:
            await send(http, "none", metadata={"skillId": "hello"})
            me = (await http.get(f"{API}/me")).json()
            assert me["role"] == ("operator" if is_local else "caller")
            assert not me["isAuthenticated"] and me["agents"] == ["clerk"]
            assert not me["hasRegistry"]
            assert len((await http.get(f"{API}/tasks")).json()["items"]) == 1


async def test_paths_and_verbs_that_are_none_are_told() -> None:
    async with operator_site() as site:
        assert (await site.ask("/nothing")).status_code == 404
        refused = await site.post("/tasks")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        described = (await site.http.get(f"{API}/openapi.json")).json()
        assert f"{API}/tasks/{{id}}/events" in described["paths"]
