"""Tasks over the gateway's REST API."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import V1, frames, message
from harness.waiting import WAIT, within

from dragoman.gateway.api import streams
from dragoman.gateway.app import gateway_of
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.record import TaskReading
from dragoman.model.task import TaskState, TaskStatus
from dragoman.service import Call, TaskReply
from dragoman.stores.sqlite.ledger import ledger as stored_ledger
from tests.gateway.api.api_site import DONE, GatewaySite, gateway, owners


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewaySite]:
    """A gateway that several tests share."""
    async with gateway(tmp_path_factory.mktemp("gateway")) as found:
        yield found


NOBODY = "01a1e487-0000-7000-8000-000000000000"


async def test_a_task_is_acknowledged_before_its_agent_is_done(site: GatewaySite) -> None:
    made = await within(site.make(input={"do": "wait"}, description="for ever"))
    assert made["status"] not in DONE
    assert (made["title"], made["description"]) == ("a task", "for ever")
    assert made["assigned_agent_id"] == site.agent
    assert made["input"] == {"do": "wait"}
    assert made["completed_at"] is None and made["output"] is None


async def test_an_agent_of_text_is_given_the_input_as_json(site: GatewaySite) -> None:
    """N-045: and the record has it as it was said."""
    made = await site.make(input={"b": [1, "é"], "a": None})
    done = await site.done(made["id"])
    assert done["messages"][0] == {
        "role": "user",
        "parts": [{"type": "data", "data": {"b": [1, "é"], "a": None}}],
    }
    assert done["output"] == {"result": 'heard: {"b":[1,"é"],"a":null}'}
    assert done["artifacts"][0]["parts"][0]["data"] == done["output"]["result"]
    assert done["status"] == "completed"
    assert done["completed_at"] >= done["created_at"]
    assert done == await site.ask("GET", f"/tasks/{made['id']}")


async def test_a_task_is_given_by_an_agents_name_too(site: GatewaySite) -> None:
    made = await site.make(assignedAgentId="echo")
    assert made["assigned_agent_id"] == site.agent


async def test_a_paused_agent_gets_no_further_tasks_until_it_goes_on(site: GatewaySite) -> None:
    under_way = await site.make(input={"do": "ask"})
    paused = await site.ask("PATCH", f"/agents/{site.agent}", {"isPaused": True})
    assert paused["is_paused"] and paused["status"] == "online"
    named = {"title": "a task", "assignedAgentId": site.agent}
    refused = await site.ask("POST", "/tasks", named, status=503)
    assert refused["code"] == "AGENT_OFFLINE" and "paused" in refused["message"]
    for metadata in ({"skillId": "echo"}, {}):
        body = {"message": message("repeat what you hear"), "metadata": metadata}
        answer = await site.http.post("/message:send", json=body, headers=V1)
        assert "No agent available" in answer.text, answer.text
    await site.ask("POST", f"/tasks/{under_way['id']}/cancel")
    going = await site.ask("PATCH", f"/agents/{site.agent}", {"isPaused": False})
    assert not going["is_paused"]
    assert (await site.make())["assigned_agent_id"] == site.agent


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"assignedAgentId": NOBODY}, 404, "AGENT_NOT_FOUND"),
        ({"assignedAgentId": "no-such-name"}, 400, "VALIDATION_ERROR"),
        ({"title": ""}, 400, "VALIDATION_ERROR"),
        ({"title": "x" * 201}, 400, "VALIDATION_ERROR"),
        ({"description": "x" * 2001}, 400, "VALIDATION_ERROR"),
        ({"timeoutSeconds": 9}, 400, "VALIDATION_ERROR"),
        ({"timeoutSeconds": 3601}, 400, "VALIDATION_ERROR"),
        ({"input": []}, 400, "VALIDATION_ERROR"),
        ({"minTrustScore": 100}, 403, "TRUST_THRESHOLD_NOT_MET"),
    ],
)
async def test_what_cannot_be_a_task_is_refused_and_leaves_none(
    site: GatewaySite, given: dict[str, Any], status: int, code: str
) -> None:
    before = (await site.ask("GET", "/tasks"))["total"]
    body = {"assignedAgentId": site.agent, "title": "a task", **given}
    error = await site.ask("POST", "/tasks", body, status=status)
    assert error["code"] == code
    assert (await site.ask("GET", "/tasks"))["total"] == before


async def test_an_agent_that_is_away_gets_no_task(site: GatewaySite) -> None:
    await site.ask("POST", f"/agents/{site.agent}/heartbeat", {"status": "offline"})
    body = {"assignedAgentId": site.agent, "title": "a task"}
    response = await site.raw("POST", "/tasks", body)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "AGENT_OFFLINE"
    assert int(response.headers["retry-after"]) >= 1
    await site.ask("POST", f"/agents/{site.agent}/heartbeat")
    await site.make()


async def test_an_agent_that_works_for_others_alone_is_not_there(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, seller, buyer):
        registry = gateway_of(site.app).registry
        agent = registry.get(site.agent)
        assert agent is not None
        body = {"assignedAgentId": site.agent, "title": "a task"}
        with pytest.MonkeyPatch.context() as patch:
            kept = msgspec.structs.replace(agent, callers=["token:somebody"], status="offline")
            patch.setattr(registry, "get", lambda ref: kept if ref == site.agent else None)
            error = await site.ask("POST", "/tasks", body, status=404, headers=buyer)
            assert error["code"] == "AGENT_NOT_FOUND"
            # Its owner is told that it is away.
            error = await site.ask("POST", "/tasks", body, status=503, headers=seller)
            assert error["code"] == "AGENT_OFFLINE"


@pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/dashboard/tasks"])
async def test_who_cannot_pay_is_told_so_before_anything_is_made(tmp_path: Path, path: str) -> None:
    async with owners(tmp_path, price=700) as (site, seller, buyer):
        body = {"assignedAgentId": site.agent, "title": "a task", "input": {"do": "wait"}}
        if "dashboard" in path:
            body = {"agentId": site.agent, "message": 'please "wait"'}
        first = await site.http.post(path, json=body, headers=buyer)
        assert first.status_code == 202
        second = await site.http.post(path, json=body, headers=buyer)
        assert second.status_code == 402
        error = second.json()["error"]
        assert error["code"] == "INSUFFICIENT_CREDITS"
        assert error["details"] == {"balance": 300, "cost": 700}
        listed = await site.ask("GET", "/tasks", headers=buyer)
        assert listed["total"] == 1
        assert (await site.ask("GET", "/tasks", headers=seller))["total"] == 0


async def test_a_budget_is_kept(tmp_path: Path) -> None:
    async with owners(tmp_path, price=5) as (site, _, buyer):
        body = {"assignedAgentId": site.agent, "title": "a task", "maxBudgetCredits": 4.99}
        error = await site.ask("POST", "/tasks", body, status=402, headers=buyer)
        assert error["details"] == {"balance": 1000, "cost": 5}
        body["maxBudgetCredits"] = 5
        made = await site.ask("POST", "/tasks", body, status=202, headers=buyer)
        assert made["max_budget_credits"] == 5


async def test_the_same_request_under_the_same_key_is_the_same_task(site: GatewaySite) -> None:
    before = (await site.ask("GET", "/tasks"))["total"]
    key = {"Idempotency-Key": "an order of mine"}
    error = await site.ask(
        "POST",
        "/tasks",
        {"assignedAgentId": site.agent, "title": "a task"},
        status=400,
        headers=key,
    )
    assert error["details"] == {"field": "Idempotency-Key"}
    key = {"Idempotency-Key": "order-1"}
    first = await site.make(headers=key, input={"n": 1})
    again = await site.make(headers=key, input={"n": 1})
    other = await site.make(headers=key, input={"n": 2})
    assert again["id"] == first["id"] != other["id"]
    # Agents may know a message by its id alone, so two that differ have not the same.
    sent: list[str] = []
    for one in (first, other):
        reply = await gateway_of(site.app).service.answer(
            Call(operation=ops.GetTask(task_id=TaskId(one["id"])))
        )
        assert isinstance(reply, TaskReply)
        sent.append(reply.reading.task.history[0].message_id)
    assert sent[0] != sent[1]
    assert (await site.ask("GET", "/tasks"))["total"] == before + 2


async def test_tasks_are_listed_newest_first_and_by_status_and_agent(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        await _list_them(site)


async def _list_them(site: GatewaySite) -> None:
    made = [await site.make(f"task {n}") for n in range(3)]
    for one in made:
        await site.done(one["id"])
    failed = await site.make("failing", input={"do": "fail"})
    assert (await site.done(failed["id"]))["error_message"]
    for many in (stored_ledger._MANY, 0):
        with pytest.MonkeyPatch.context() as patch:
            # Few tasks are looked up in another way than many.
            patch.setattr(stored_ledger, "_MANY", many)
            listed = await site.ask("GET", "/tasks?limit=2&offset=1")
        assert [one["title"] for one in listed["tasks"]] == ["task 2", "task 1"]
        assert (listed["total"], listed["limit"], listed["offset"]) == (4, 2, 1)
    listed = await site.ask("GET", "/tasks?status=failed")
    assert [one["id"] for one in listed["tasks"]] == [failed["id"]]
    assert (await site.ask("GET", "/tasks?status=assigned"))["total"] == 0
    assert (await site.ask("GET", f"/tasks?assignedAgentId={site.agent}"))["total"] == 4
    assert (await site.ask("GET", f"/tasks?assignedAgentId={NOBODY}"))["tasks"] == []
    for query in ("status=done", "limit=0", "limit=101", "offset=-1", "limit=1&limit=2"):
        error = await site.ask("GET", f"/tasks?{query}", status=400)
        assert error["code"] == "VALIDATION_ERROR"


async def test_a_task_that_is_not_there_is_a_404_and_what_is_no_id_a_400(site: GatewaySite) -> None:
    for path in ("", "/receipt"):
        error = await site.ask("GET", f"/tasks/{NOBODY}{path}", status=404)
        assert error == {"code": "TASK_NOT_FOUND", "message": "Task not found"}
        error = await site.ask("GET", f"/tasks/not-a-uuid{path}", status=400)
        assert error["code"] == "VALIDATION_ERROR"
    for deed, body in (("cancel", None), ("reply", {"message": "hello"}), ("refund", None)):
        error = await site.ask("POST", f"/tasks/{NOBODY}/{deed}", body, status=404)
        assert error["code"] == "TASK_NOT_FOUND"


async def test_the_task_of_another_is_the_same_as_none(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, seller, buyer):
        body = {"assignedAgentId": site.agent, "title": "mine"}
        made = await site.ask("POST", "/tasks", body, status=202, headers=buyer)
        deeds = (
            ("GET", "", None),
            ("POST", "/cancel", None),
            ("POST", "/reply", {"message": "hello"}),
            ("GET", "/stream", None),
        )
        for verb, path, said in deeds:
            foreign = await site.raw(verb, f"/tasks/{made['id']}{path}", said, headers=seller)
            missing = await site.raw(verb, f"/tasks/{NOBODY}{path}", said, headers=seller)
            assert foreign.status_code == missing.status_code
            assert foreign.content == missing.content
        assert (await site.ask("GET", f"/tasks/{made['id']}", headers=buyer))["title"] == "mine"


async def test_a_cancelled_task_stays_cancelled_and_its_agent_is_told(site: GatewaySite) -> None:
    made = await site.make(input={"do": "wait"})
    await site.until(made["id"], "running", "waiting")
    ended = await site.ask("POST", f"/tasks/{made['id']}/cancel")
    assert ended["status"] == "cancelled" and ended["a2a_state"] == "canceled"
    assert ended["completed_at"] is not None
    error = await site.ask("POST", f"/tasks/{made['id']}/cancel", status=400)
    assert error["code"] == "VALIDATION_ERROR"
    assert error["message"] == "Cannot cancel task with status: cancelled"
    assert (await site.ask("GET", f"/tasks/{made['id']}"))["status"] == "cancelled"


async def test_a_reply_goes_to_the_agent_that_asked(site: GatewaySite) -> None:
    made = await site.make(input={"do": "ask"})
    asked = await site.until(made["id"], "running", "Which one?")
    assert asked["a2a_state"] == "input-required"
    answered = await site.ask("POST", f"/tasks/{made['id']}/reply", {"message": "the red one"})
    assert answered["id"] == made["id"]
    done = await site.done(made["id"])
    assert done["output"] == {"result": "chosen: the red one"}
    assert {"role": "user", "parts": [{"type": "text", "data": "the red one"}]} in done["messages"]
    error = await site.ask("POST", f"/tasks/{made['id']}/reply", {"message": "more"}, status=400)
    assert error["message"] == "Cannot reply to task with status: completed"


async def test_a_failed_task_says_why(site: GatewaySite) -> None:
    made = await site.make(input={"do": "fail"})
    done = await site.done(made["id"])
    assert done["status"] == "failed" and done["error_message"]
    assert done["output"] is None and done["actual_cost_credits"] == 0


async def test_a_task_in_plain_words_is_made_from_the_dashboard(site: GatewaySite) -> None:
    body = {"agentId": site.agent, "message": "Say it again"}
    response = await site.http.post("/api/dashboard/tasks", json=body)
    assert response.status_code == 202
    done = await site.done(response.json()["data"]["taskId"])
    assert done["title"] == "Say it again"
    assert done["input"] == {"message": "Say it again"}
    for wrong in ({"agentId": site.agent, "message": ""}, {"message": "x"}):
        response = await site.http.post("/api/dashboard/tasks", json=wrong)
        assert response.status_code == 400


# Streams


async def test_a_stream_shows_the_whole_task_at_every_change_and_ends_with_it(
    site: GatewaySite,
) -> None:
    made = await site.make(input={"do": "ask"})
    await site.until(made["id"], "running", "Which one?")
    following = asyncio.create_task(site.events(made["id"]))
    await site.ask("POST", f"/tasks/{made['id']}/reply", {"message": "the red one"})
    found = await within(following)
    assert found[0].event == "status" and found[0].data["id"] == made["id"]
    assert found[-1].event == "complete"
    assert found[-1].data["output"] == {"result": "chosen: the red one"}
    assert found[-2].event == "status" and found[-2].data == found[-1].data
    ids = [int(frame.id) for frame in found if frame.id is not None]
    assert ids == sorted(set(ids))
    # Of an ended task there is one reading.
    again = await site.events(made["id"])
    assert [frame.event for frame in again] == ["status", "complete"]
    assert again[-1].data == found[-1].data and again[-1].id == found[-1].id


async def test_a_stream_of_a_task_that_ends_when_it_is_asked_for_shows_its_end(
    site: GatewaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await site.make()
    done = await site.done(made["id"])
    read, looks = streams.reading_of, list[TaskReading]()

    async def earlier(ask: Any, task_id: TaskId) -> TaskReading:
        reading = await read(ask, task_id)
        looks.append(reading)
        if len(looks) > 1:
            return reading
        working = msgspec.structs.replace(reading.task, status=TaskStatus(TaskState.WORKING))
        return TaskReading(reading.seq, working)

    monkeypatch.setattr(streams, "reading_of", earlier)
    found = await site.events(made["id"])
    assert found[-1].event == "complete" and found[-1].data == done


async def test_a_stream_goes_on_from_the_last_event_that_was_seen(site: GatewaySite) -> None:
    made = await site.make(input={"do": "ask"})
    await site.until(made["id"], "running", "Which one?")
    await site.ask("POST", f"/tasks/{made['id']}/reply", {"message": "the red one"})
    await site.done(made["id"])
    whole = await site.events(made["id"], Last_Event_ID="1")
    seen = [frame.id for frame in whole if frame.id is not None]
    assert len(seen) > 3
    states = [frame.data["a2a_state"] for frame in whole if frame.event == "status"]
    # Each as it was at its position, and not as it is.
    assert "input-required" in states and states.count("completed") == 1
    for position in seen[:-1]:
        rest = await site.events(made["id"], Last_Event_ID=str(position))
        # The task as it was then opens the stream, under the position it was at.
        assert rest[0].event == "status" and rest[0].id == position
        assert [frame.id for frame in rest if frame.id] == seen[seen.index(position) :]
        assert rest[-1].data == whole[-1].data


async def test_a_stream_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        made = await site.make(input={"n": 1})
        await site.done(made["id"])
        before = await site.events(made["id"], Last_Event_ID="1")
    async with gateway(tmp_path) as site:
        assert await site.events(made["id"], Last_Event_ID="1") == before


async def test_what_the_agent_says_on_the_way_is_an_event(site: GatewaySite) -> None:
    made = await site.make(input={"do": "wait"})
    path = f"/api/v1/tasks/{made['id']}/stream"
    async with asyncio.timeout(WAIT), site.http.stream("GET", path) as response:
        async for frame in frames(response):
            shown = frame.data or {}
            said = shown if frame.event == "message" else (shown.get("messages") or [{}])[-1]
            if said.get("role") == "agent":
                assert said["parts"] == [{"type": "text", "data": "waiting"}]
                break


async def test_a_stream_of_no_task_is_one_event_that_says_so(site: GatewaySite) -> None:
    (frame,) = await site.events(NOBODY)
    assert frame.event == "error" and frame.data["code"] == "TASK_NOT_FOUND"
    error = await site.ask("GET", "/tasks/not-a-uuid/stream", status=400)
    assert error["code"] == "VALIDATION_ERROR"


async def test_a_quiet_stream_is_kept_alive(tmp_path: Path) -> None:
    async with gateway(tmp_path, keepalive=0.2) as site:
        made = await site.make(input={"do": "wait"})
        path = f"/api/v1/tasks/{made['id']}/stream"
        async with asyncio.timeout(WAIT), site.http.stream("GET", path) as response:
            async for frame in frames(response):
                if frame.comment is not None:
                    assert frame.comment == "keep-alive"
                    break
