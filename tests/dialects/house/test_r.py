"""R over JSON-RPC, served: at its own path, and elsewhere to who asks as only R does."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Frame, Site, old_message, serving
from harness.waiting import within

from dragoman import Agent, Part, TaskState
from dragoman.dialects.house import r, r_service
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_shapes import decode_state
from dragoman.engine.engine import Engine
from dragoman.model.events import ArtifactUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskStatus
from dragoman.service import TaskReply
from tests.dialects.house.housemates import SSE, UNKNOWN, agent, gates, rx_message, to

HOME = "/api/a2a"


def told(task: Any) -> Any:
    """Return the form in which a question wants its answer."""
    return task["status"]["message"]["inputRequest"]


def answer(task_id: str, request_id: str, result: Any, **more: Any) -> dict[str, Any]:
    """Return the message that answers a question, as R's clients do: by reference."""
    said = old_message("here", referenceTaskIds=[task_id], **more)
    said["parts"].append({"kind": "tool-result", "toolUseId": request_id, "result": result})
    return said


async def asked(site: Site, skill: str = "ask", path: str = HOME) -> Any:
    """Return a task that waits for its caller."""
    params = {"message": old_message("go", metadata=to(skill))}
    return await site.call("message/send", params, path=path)


async def kinds(events: list[Frame]) -> list[str]:
    return [event.result["kind"] for event in events]


# Streams


async def test_a_stream_has_its_events_in_order_and_each_is_a_whole_answer(site: Site) -> None:
    """R-1, R-2, R-3, R-4, R-25: the task, the work, chunks of one result, and one final event."""
    params = {"message": old_message("x", metadata=to("chunks"))}
    events = await site.events("message/stream", params, path=HOME, headers=SSE)
    assert all((event.data["jsonrpc"], event.data["id"]) == ("2.0", 1) for event in events)
    first, working, *chunks, last = [event.result for event in events]
    assert (first["kind"], first["status"]["state"]) == ("task", "submitted")
    assert [said["role"] for said in first["history"]] == ["user"]
    assert (working["kind"], working["status"]["state"]) == ("status-update", "working")
    assert {chunk["artifact"]["artifactId"] for chunk in chunks} == {
        chunks[0]["artifact"]["artifactId"]
    }
    assert [chunk["append"] for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [chunk["lastChunk"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (last["kind"], last["status"]["state"]) == ("status-update", "completed")
    statuses = [event.result for event in events if event.result["kind"] == "status-update"]
    assert [status["final"] for status in statuses] == [False, True]


async def test_a_stream_says_that_it_stays_and_is_not_kept(site: Site) -> None:
    """R-2, R-30: the headers of R, and lines that begin with `data: `."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream"}
    body["params"] = {"message": old_message("x")}  # type: ignore[assignment]
    async with site.http.stream("POST", HOME, json=body) as response:
        lines = [line async for line in response.aiter_lines()]
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["connection"] == "keep-alive"
    data = [line for line in lines if line.startswith("data")]
    assert data and all(line.startswith("data: {") for line in data)


async def test_the_kind_is_the_first_member_of_every_result(site: Site) -> None:
    """R-5, R-10: of events and of tasks."""
    params = {"message": old_message("x")}
    events = await site.events("message/stream", params, path=HOME)
    task = await site.call("message/send", {"message": old_message("y")}, path=HOME)
    assert all(next(iter(value)) == "kind" for value in [task, *(e.result for e in events)])
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")


async def test_a_message_without_an_id_is_given_one(site: Site) -> None:
    """R-10, X-21: what is missing is made up and shown."""
    task = await site.call("message/send", {"message": rx_message("x")}, path=HOME)
    assert task["history"][0]["messageId"]


async def test_a_stream_that_breaks_ends_with_one_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-11, R-023: and the error says nothing about us."""
    follow = Engine.follow

    async def broken(engine: Engine, call: Any) -> Any:
        async for batch in follow(engine, call):
            yield batch
            raise RuntimeError("the secret of the house")

    monkeypatch.setattr(Engine, "follow", broken)
    params = {"message": old_message("x")}
    *_, last = await site.events("message/stream", params, path=HOME)
    error = last.data["error"]
    assert error["code"] == -32603 and error["data"]["error"] == "Internal error"
    assert "secret" not in json.dumps(last.data)


async def test_a_stream_is_not_cut_and_its_task_survives_a_reader_that_leaves(site: Site) -> None:
    """R-24, R-051: over JSON-RPC the task goes on."""
    params = {"message": old_message("r-leaves", metadata=to("hold"))}
    async with site.stream("message/stream", params, path=HOME) as stream:
        id = (await within(anext(stream))).result["id"]
    gates.setdefault("r-leaves", asyncio.Event()).set()
    assert (await site.rested(id))["status"]["state"] == "TASK_STATE_COMPLETED"


# Envelopes and errors


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", -32700, None),
        (b"[]", -32600, None),
        (b'{"id":7,"method":"message/send","params":{}}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":7,"params":{}}', -32600, 7),
        (b'{"jsonrpc":"2.0","method":"message/stream","params":{}}', -32600, None),
    ],
    ids=["json", "object", "jsonrpc", "method", "id"],
)
@pytest.mark.parametrize("headers", [{}, SSE], ids=["any", "sse"])
async def test_a_bad_envelope_is_a_bad_request_of_http_at_home_alone(
    site: Site, body: bytes, code: int, id: Any, headers: dict[str, str]
) -> None:
    """R-7, R-005, X-03, X-22: with a reason, and the id if there is one."""
    response = await site.http.post(HOME, content=body, headers=headers)
    said = response.json()
    assert (response.status_code, said["error"]["code"], said["id"]) == (400, code, id)
    assert said["error"]["data"]["reason"]
    assert (await site.http.post("/a2a", content=body)).status_code == 200


async def test_an_unknown_method_is_named(site: Site) -> None:
    """R-8, R-004: with HTTP 200."""
    error = await site.refusal("tasks/nothing", {}, path=HOME)
    assert (error["code"], error["data"]["method"]) == (-32601, "tasks/nothing")


@pytest.mark.parametrize("params", [{}, {"message": rx_message(kind="task")}, {"message": 7}])
async def test_a_message_that_is_none_has_its_reason(site: Site, params: Any) -> None:
    """R-9, R-006: with HTTP 200."""
    error = await site.refusal("message/stream", params, path=HOME)
    assert error["code"] == -32602 and error["data"]["reason"]


async def test_an_error_is_an_event_for_who_reads_only_events(site: Site) -> None:
    """R-8: R's clients accept nothing else."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/nothing", "params": {}}
    response = await site.http.post(HOME, json=body, headers=SSE)
    assert response.headers["content-type"] == "text/event-stream"
    (line,) = [line for line in response.text.splitlines() if line]
    assert json.loads(line.removeprefix("data: "))["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tasks/get", {"id": UNKNOWN}, -32004),
        ("tasks/get", {"taskId": UNKNOWN}, -32004),
        ("message/send", {"message": old_message("x", taskId=UNKNOWN)}, -32004),
        ("tasks/pushNotificationConfig/get", {"id": UNKNOWN}, -32004),
    ],
)
async def test_an_unknown_task_has_the_code_of_r_at_home_and_the_official_one_elsewhere(
    site: Site, method: str, params: Any, code: int
) -> None:
    """R-18, X-02: or wherever somebody asks as only R does."""
    error = await site.refusal(method, params, path=HOME)
    assert (error["code"], error["message"]) == (code, "Task not found")
    assert error["data"] == {"taskId": UNKNOWN}
    elsewhere = await site.refusal(method, params)
    assert elsewhere["code"] == (-32004 if "taskId" in params else -32001)


async def test_other_codes_of_r(site: Site) -> None:
    """R-18: what is not among its codes has the nearest one."""
    task = await site.call("message/send", {"message": old_message("x")}, path=HOME)
    error = await site.refusal("tasks/cancel", {"id": task["id"]}, path=HOME)
    assert (error["code"], error["message"]) == (-32602, "Task cannot be canceled")
    params = {"message": old_message("x", taskId=task["id"])}
    error = await site.refusal("message/send", params, path=HOME)
    assert error["code"] == -32601 and error["data"]["reason"] == "TASK_TERMINAL"


async def test_1_0_is_spoken_at_home_in_its_own_words(site: Site) -> None:
    """R-1: the path takes every version, each answered in its own shape."""
    error = await site.refusal("GetTask", {"id": UNKNOWN}, path=HOME)
    assert error["code"] == -32001
    assert error["data"][0]["reason"] == "TASK_NOT_FOUND"


async def test_a_task_of_another_is_as_unknown_as_one_that_never_was(tmp_path: Path) -> None:
    """R-18: byte for byte, read, followed or answered by reference."""
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text('[a]\ntoken = "alice-alice-alice"\n[b]\ntoken = "bobby-bobby-bobby"\n')
    alice = {"authorization": "Bearer alice-alice-alice"}
    bob = {"authorization": "Bearer bobby-bobby-bobby"}
    async with serving(agent, auth_tokens=str(file)) as site:
        params = {"message": old_message("go", metadata=to("ask"))}
        task = await site.call("message/send", params, path=HOME, headers=alice)
        for headers in (bob, bob | SSE):

            async def read(id: str, headers: dict[str, str] = headers) -> bytes:
                body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}
                response = await site.post(body | {"params": {"taskId": id}}, HOME, headers)
                return response.content.replace(id.encode(), b"<id>")

            assert await read(task["id"]) == await read(UNKNOWN)
        said = answer(task["id"], told(task)["requestId"], "Rome")
        other = await site.call("message/send", {"message": said}, path=HOME, headers=bob)
        assert other["id"] != task["id"] and other["status"]["state"] == "completed"
        found = await site.call("tasks/get", {"id": task["id"]}, path=HOME, headers=alice)
        assert found["status"]["state"] == "input-required"


# Questions and answers


async def test_a_question_says_how_it_is_answered(site: Site) -> None:
    """R-12, R-040: in the message of the status; to others it is an ordinary question."""
    task = await asked(site)
    form = told(task)
    assert form.keys() == {"kind", "prompt", "sensitive", "requestId"}
    assert (form["kind"], form["prompt"], form["sensitive"]) == ("input-request", "Where?", False)
    assert form["requestId"] == task["status"]["message"]["messageId"]
    assert told(await asked(site, "secret"))["sensitive"] is True
    other = await site.call("tasks/get", {"id": task["id"]})
    assert "inputRequest" not in other["status"]["message"]
    assert other["status"]["message"]["parts"] == [{"kind": "text", "text": "Where?"}]


def test_a_question_that_says_itself_how_it_is_answered_is_shown_so() -> None:
    """R-12: an author may set it, and an agent of R behind us has."""
    form = {"prompt": "City?", "sensitive": True, "requestId": "q-1"}
    for given in ({"metadata": {"rx:inputRequest": form}}, {"extra": {"inputRequest": form}}):
        said = Message(MessageId("m"), Role.AGENT, [Part(text="Where?")], **given)
        status = TaskStatus(TaskState.INPUT_REQUIRED, said)
        task = Task(TaskId("t"), ContextId("c"), status)
        value = json.loads(r.RX.encode_opening(TaskReply(TaskReading(1, task))))
        shown = value["status"]["message"]
        assert shown["inputRequest"] == {"kind": "input-request", **form}
        assert "metadata" not in shown
        assert r_service.open_question_ids(status) == ["q-1"]


async def test_an_answer_by_reference_goes_on_with_the_task_that_asked(site: Site) -> None:
    """R-13, R-14, R-041, X-14: as a new message without the task's id."""
    task = await asked(site)
    said = answer(task["id"], told(task)["requestId"], "Rome")
    done = await site.call("message/send", {"message": said}, path=HOME)
    assert (done["id"], done["status"]["state"]) == (task["id"], "completed")
    assert done["artifacts"][0]["parts"][0]["text"] == "go to Rome"
    before = await site.total()
    assert (await site.call("message/send", {"message": said}, path=HOME))["id"] == task["id"]
    assert await site.total() == before, "said again it is not said twice"


@pytest.mark.requirement("P-9")
async def test_an_answer_is_shown_to_each_reader_in_its_own_way(site: Site) -> None:
    """R-13, R-044, P-9: a part of R's own kind, and data for everybody else."""
    task = await asked(site)
    said = answer(task["id"], told(task)["requestId"], {"city": "Rome"})
    await site.call("message/send", {"message": said}, path=HOME)
    ours = await site.call("tasks/get", {"id": task["id"]}, path=HOME)
    assert ours["history"][-1]["parts"] == said["parts"]
    data = {"toolUseId": told(task)["requestId"], "result": {"city": "Rome"}}
    kind = "application/vnd.a2a.tool-result+json"
    old = await site.call("tasks/get", {"id": task["id"]})
    assert old["history"][-1]["parts"][1] == {
        "kind": "data",
        "data": data,
        "metadata": {"rx:kind": "tool-result", "a2a:mediaType": kind},
    }
    new = (await site.task(task["id"]))["history"][-1]["parts"][1]
    assert (new["data"], new["mediaType"]) == (data, kind)


async def test_a_use_of_a_tool_is_data_of_any_shape(site: Site) -> None:
    """R-13, R-044: its shape is nobody's but the sender's, and comes back as it was."""
    said = old_message("x")
    said["parts"].append({"kind": "tool-use", "id": "u-1", "input": [1]})
    task = await site.call("message/send", {"message": said}, path=HOME)
    assert task["history"][0]["parts"] == said["parts"]


async def test_only_the_answer_to_the_open_question_of_one_task_resumes_it(site: Site) -> None:
    """R-14, X-14: otherwise a reference is a link, and the message begins a task."""
    one, two = await asked(site), await asked(site)
    right = told(one)["requestId"]
    wrong = [
        answer(one["id"], "another", "Rome"),
        answer(UNKNOWN, right, "Rome"),
        answer(one["id"], right, "Rome") | {"referenceTaskIds": [one["id"], two["id"]]},
        old_message("Rome", referenceTaskIds=[one["id"]]),
        answer(one["id"], right, "Rome") | {"referenceTaskIds": []},
    ]
    for said in wrong:
        other = await site.call("message/send", {"message": said}, path=HOME)
        assert other["id"] not in (one["id"], two["id"]), said
    for task in (one, two):
        found = await site.call("tasks/get", {"id": task["id"]}, path=HOME)
        assert found["status"]["state"] == "input-required"
    linked = answer(one["id"], right, "Rome") | {"referenceTaskIds": [UNKNOWN, one["id"]]}
    done = await site.call("message/send", {"message": linked}, path=HOME)
    assert done["id"] == one["id"], "others that are not waiting do not count"


async def test_a_task_that_is_named_wins_over_what_is_referred_to(site: Site) -> None:
    """X-14: taskId is the official way, and stays it."""
    one, two = await asked(site), await asked(site)
    said = answer(one["id"], told(one)["requestId"], "Rome", taskId=two["id"])
    assert (await site.call("message/send", {"message": said}, path=HOME))["id"] == two["id"]


async def test_a_reference_without_an_answer_begins_a_task_of_its_own(site: Site) -> None:
    """R-15, R-030: as a parent does that calls another agent."""
    said = old_message("x", referenceTaskIds=[UNKNOWN])
    task = await site.call("message/send", {"message": said}, path=HOME)
    assert task["id"] != UNKNOWN and task["history"][0]["referenceTaskIds"] == [UNKNOWN]


async def test_a_sensitive_answer_is_shown_to_nobody(site: Site) -> None:
    """R-042: not even in the part that brought it."""
    task = await asked(site, "secret")
    said = answer(task["id"], told(task)["requestId"], "hunter2", metadata={"pin": "hunter2"})
    said["parts"][0]["text"] = "hunter2"
    done = await site.call("message/send", {"message": said}, path=HOME)
    assert done["artifacts"][0]["parts"][0]["text"] == "7 characters"
    for path in (HOME, "/"):
        found = await site.call("tasks/get", {"id": task["id"]}, path=path)
        assert "hunter2" not in json.dumps(found)


async def test_a_question_nobody_answers_in_time_need_not_end_a_task(site: Site) -> None:
    """R-17, R-043: the agent goes on and says so."""
    params = {"message": old_message("x", metadata=to("impatient"))}
    events = await site.events("message/stream", params, path=HOME)
    statuses = [e.result["status"] for e in events if e.result["kind"] == "status-update"]
    said = [s["message"]["parts"][0]["text"] for s in statuses if "message" in s]
    assert "Continuing without client input..." in said
    assert statuses[-1]["state"] == "completed"


async def test_what_is_said_elsewhere_in_the_way_of_r_is_understood(site: Site) -> None:
    """R-13, R-18: a part of its kind is enough."""
    task = await asked(site, path="/")
    form = told(await site.call("tasks/get", {"taskId": task["id"]}))
    done = await site.call(
        "message/send", {"message": answer(task["id"], form["requestId"], "Rome")}
    )
    assert (done["id"], done["status"]["state"]) == (task["id"], "completed")


# What R's own agents send


def test_the_words_of_r_s_own_samples_are_read() -> None:
    """R-6, R-29, X-16, X-17: though its types say otherwise, and nobody here writes them."""
    assert decode_state("started", "state") is TaskState.SUBMITTED
    sample = {
        "kind": "artifact-update",
        "taskId": "t",
        "contextId": "c",
        "index": 2,
        "part": {"kind": "text", "text": "x", "index": 2, "append": True},
        "timestamp": "2026-01-01T00:00:00Z",
    }
    read = V0_3.decode_event(sample)
    assert isinstance(read, ArtifactUpdate) and read.append
    assert (read.artifact.artifact_id, read.artifact.parts) == ("rx-2", [Part(text="x")])


async def test_a_skill_that_is_not_for_a_caller_is_refused_within_json_rpc() -> None:
    """R-19, R-071, X-28: with HTTP 403, at home in an envelope."""
    guarded = Agent("Guarded", "Has a skill for some.")

    @guarded.skill(scopes=["gold"])
    async def vault(text: str) -> str:
        return text

    async with serving(guarded, auth_token="alice-alice-alice") as site:
        bearer = {"authorization": "Bearer alice-alice-alice"}
        params = {"message": old_message("x")}
        for method in ("message/stream", "message/send"):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            refused = await site.post(body, HOME, bearer)
            assert refused.status_code == 403
            error = refused.json()["error"]
            assert error["code"] == -32603
            assert error["message"] == "Forbidden: Insufficient permissions for skill 'vault'"
            assert error["data"]["reason"] == "FORBIDDEN"
            assert (await site.post(body, "/a2a", bearer)).status_code == 403


# Streams that stay


async def test_a_question_leaves_the_stream_open_and_both_streams_get_what_follows(
    site: Site,
) -> None:
    """R-31, R-040, X-12: not final; the answer opens a second stream."""
    params = {"message": old_message("go", metadata=to("ask"))}
    async with asyncio.timeout(60), site.stream("message/stream", params, path=HOME) as stream:
        seen: list[Any] = []
        async for frame in stream:
            seen.append(frame.result)
            if seen[-1].get("status", {}).get("state") == "input-required":
                break
        question = seen[-1]
        assert (question["kind"], question["final"]) == ("status-update", False)
        request_id = question["status"]["message"]["inputRequest"]["requestId"]
        said = {"message": answer(question["taskId"], request_id, "Rome")}
        second = await site.events("message/stream", said, path=HOME)
        rest = [frame.result async for frame in stream]
    assert (rest[-1]["status"]["state"], rest[-1]["final"]) == ("completed", True)
    assert second[-1].result == rest[-1] | {"metadata": second[-1].result["metadata"]}
    states = [event["status"]["state"] for event in rest if event["kind"] == "status-update"]
    assert states == ["working", "completed"]


async def test_elsewhere_a_question_ends_the_stream(site: Site) -> None:
    """R-31: as 0.3 has it."""
    params = {"message": old_message("go", metadata=to("ask"))}
    *_, last = await site.events("message/stream", params)
    assert (last.result["status"]["state"], last.result["final"]) == ("input-required", True)


async def test_a_reader_who_comes_back_gets_the_status_first_and_then_the_rest(site: Site) -> None:
    """R-16, R-050, X-11: by reading the task with an eye for events."""
    params = {"message": old_message("r-back", metadata=to("hold"))}
    configuration = {"blocking": False}
    task = await site.call("message/send", params | {"configuration": configuration}, path=HOME)
    back = {"taskId": task["id"]}
    async with (
        asyncio.timeout(60),
        site.stream("tasks/get", back, path=HOME, headers=SSE) as stream,
    ):
        first = (await anext(stream)).result
        assert (first["kind"], first["status"]["state"]) == ("status-update", "working")
        assert first["final"] is False and first["metadata"]["traceId"]
        gates.setdefault("r-back", asyncio.Event()).set()
        rest = [frame.result async for frame in stream]
    assert (rest[-1]["status"]["state"], rest[-1]["final"]) == ("completed", True)
    assert any(event["kind"] == "artifact-update" for event in rest)


async def test_who_comes_back_too_late_gets_the_end_alone(site: Site) -> None:
    """R-16, X-11: of a task that has ended there is one event."""
    task = await site.call("message/send", {"message": old_message("x")}, path=HOME)
    (only,) = await site.events("tasks/get", {"taskId": task["id"]}, path=HOME, headers=SSE)
    assert (only.result["kind"], only.result["final"]) == ("status-update", True)


async def test_who_reads_no_events_gets_the_task(site: Site) -> None:
    """R-16, X-11: and who asks officially always does."""
    task = await site.call("message/send", {"message": old_message("x")}, path=HOME)
    plain = {"accept": "application/json"}
    found = await site.call("tasks/get", {"taskId": task["id"]}, path=HOME, headers=plain)
    assert found == task
    both = {"accept": "application/json, text/event-stream"}
    assert await site.call("tasks/get", {"id": task["id"]}, path=HOME, headers=both) == task


async def test_a_server_may_leave_r_out() -> None:
    """R-1: then nothing is known of it."""
    async with serving(agent, dialects="nexus, corvid") as site:
        assert (await site.http.post(HOME, json={})).status_code == 404
        error = await site.refusal("tasks/get", {"taskId": UNKNOWN})
        assert error["code"] == -32602
