"""What waits for a person: who sees it, in which order, and who may answer."""

from typing import Any

import pytest
from harness.waiting import within

from dragoman import Agent, Turn
from dragoman.server.operator import inbox
from tests.http.test_access_control import ALICE, ANNA, BOSS, CHIEF
from tests.server.operator.operator_site import FORM, OperatorSite, operator_site


async def ended(site: OperatorSite, task: str) -> str:
    while True:
        view = await site.read(f"/tasks/{task}")
        if view["isEnded"]:
            return view["task"]["state"]


async def test_what_waits_is_listed_longest_first_to_who_may_see_it(location: str) -> None:
    async with operator_site(location=location) as site:
        tasks = [await site.made("x", token, "order") for token in (ALICE, ANNA, ALICE)]
        await site.made()

        async def waiting(token: str, **query: Any) -> list[str]:
            return [item["taskId"] for item in await site.walk("/inbox", token, **query)]

        assert await waiting(BOSS) == tasks
        for limit in (1, 2):
            assert await waiting(BOSS, limit=limit) == tasks
        assert await waiting(ALICE) == [tasks[0], tasks[2]]
        assert await waiting(ANNA) == await waiting(CHIEF) == [tasks[1]]
        # It says what it is about.
        first = await site.read(f"/inbox/{tasks[0]}")
        assert (first["words"], first["prompt"]) == ("x", "What shall it be?")
        assert await waiting(BOSS, tenant="acme") == [tasks[1]]
        assert await waiting(BOSS, agent="other") == []
        (item,) = await site.walk("/inbox", ANNA)
        assert item["kind"] == "form" and item["schema"] == FORM
        assert item["prompt"] == "What shall it be?" and item["since"]
        # By its own id and by its task's; to others there is none.
        for name in (item["id"], tasks[1]):
            for token in (ANNA, CHIEF, BOSS):
                assert await site.read(f"/inbox/{name}", token) == item
            assert (await site.ask(f"/inbox/{name}", ALICE)).status_code == 404
        view = await site.read(f"/tasks/{tasks[1]}", ANNA)
        assert view["requests"] == [item]


async def test_an_answer_is_taken_of_who_may_see_the_request() -> None:
    async with operator_site() as site:
        for token in (ALICE, BOSS):
            task = await site.made("x", ALICE, "order")
            body = {"id": task, "value": {"size": "M"}}
            hidden = await site.post("/inbox", body, ANNA)
            never = await site.post("/inbox", body | {"id": "0" * len(task)}, ANNA)
            assert hidden.status_code == never.status_code == 404
            assert hidden.text.replace(task, "0" * len(task)) == never.text
            taken = await site.post("/inbox", body, token)
            assert taken.status_code == 200, taken.text
            assert taken.json() == {"taskId": task, "result": "answered"}
            assert await within(ended(site, task)) == "TASK_STATE_COMPLETED"
            again = await site.post("/inbox", body, token)
            assert again.status_code == 404


async def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    async with operator_site() as site:
        task = await site.made("x", ALICE, "order")
        await site.post("/inbox", {"id": task, "value": {"size": "XL"}}, ALICE)

        async def problem() -> str:
            while True:
                for item in await site.walk("/inbox", ALICE):
                    if found := item.get("problem"):
                        return found

        assert "choices" in await within(problem())
        declined = await site.post("/inbox", {"id": task, "decline": "no idea"}, ALICE)
        assert declined.status_code == 200
        assert await within(ended(site, task)) == "TASK_STATE_FAILED"


async def test_an_answer_that_is_none_is_told() -> None:
    async with operator_site() as site:
        task = await site.made("x", ALICE, "order")
        bad: list[Any] = [{"id": 7}, {"value": 1}, {"id": task}, {"id": task, "more": 1}, [], None]
        for body in bad:
            assert (await site.post("/inbox", body, ALICE)).status_code == 400, body
        assert len(await site.walk("/inbox", ALICE)) == 1


async def test_each_question_of_a_task_is_answered_by_an_admin_of_its_tenant() -> None:
    agent = Agent("Clerk", "Asks.")

    @agent.skill
    async def pay(text: str, turn: Turn) -> str:
        if await turn.confirm(f"Pay {text}?"):
            return f"paid, {await turn.choose('From?', ['cash', 'bank'])}"
        return "not paid"

    async with operator_site(agent) as site:
        task, other = await site.made("x", ANNA, "pay"), await site.made("x", ALICE, "pay")
        (asked,) = await site.walk("/inbox", CHIEF)
        assert (asked["taskId"], asked["kind"], asked["tenant"]) == (task, "confirmation", "acme")
        for who, name in ((CHIEF, other), (BOSS, "nothing"), (ALICE, task)):
            assert (await site.ask(f"/inbox/{name}", who)).status_code == 404
        posted = await site.post(f"/inbox/{task}", {})
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET")
        refused = await site.post("/inbox", {"id": other, "value": True}, CHIEF)
        assert refused.status_code == 404
        taken = await site.post("/inbox", {"id": asked["id"], "value": True}, CHIEF)
        assert taken.status_code == 200

        async def choice() -> dict[str, Any]:
            while True:
                for item in await site.walk("/inbox", CHIEF):
                    if item["kind"] == "choice":
                        return item

        assert (await within(choice()))["choices"] == ["cash", "bank"]
        taken = await site.post("/inbox", {"id": task, "value": "bank"}, CHIEF)
        assert taken.status_code == 200
        declined = await site.post("/inbox", {"id": other, "decline": "no money"})
        assert declined.status_code == 200
        assert await within(ended(site, task)) == "TASK_STATE_COMPLETED"
        assert await within(ended(site, other)) == "TASK_STATE_FAILED"


async def test_a_question_is_not_lost_behind_those_that_came_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "_AT_ONCE", 2)
    async with operator_site() as site:
        tasks = [await site.made("x", ANNA, "order") for _ in range(5)]
        (asked,) = (await site.read("/inbox", limit=1))["items"]
        assert asked["taskId"] == tasks[0]
        answered = await site.post("/inbox", {"id": asked["id"], "value": {"size": "M"}})
        assert answered.status_code == 200
        assert await within(ended(site, tasks[0])) == "TASK_STATE_COMPLETED"
