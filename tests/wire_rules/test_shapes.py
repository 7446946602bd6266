"""Section 2: the shapes of objects, as ProtoJSON in 1.0 and with kinds in 0.x."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from harness.serving import V1, Site, frames

from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.model.task import Task, TaskState
from dragoman.transports import jsonrpc
from tests.wire_rules.conftest import Gates
from tests.wire_rules.rules import (
    INVALID_PARAMS,
    UNKNOWN,
    at_once,
    code_of,
    members,
    new,
    old,
    state,
    task_of,
)

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")


def with_parts(*parts: Any) -> dict[str, Any]:
    return new("take", parts=list(parts))


async def kept(site: Site, *parts: Any) -> Any:
    """Return the parts of a message as the server shows them afterwards."""
    task = await task_of(site, with_parts(*parts))
    return (await site.task(task["id"]))["history"][0]["parts"]


@pytest.mark.requirement("V-10")
def test_a_null_result_stays_in_the_answer() -> None:
    assert jsonrpc.success(1, b"null") == b'{"jsonrpc":"2.0","id":1,"result":null}'


# ProtoJSON


@pytest.mark.requirement("2.1-names")
async def test_1_0_reads_both_spellings_and_emits_camel_case(site: Site) -> None:
    snake = {
        "message_id": "snake-1",
        "role": "ROLE_USER",
        "context_id": "snake",
        "parts": [{"text": "x", "media_type": "text/markdown"}],
    }
    params = {"message": snake, "configuration": {"history_length": 1}}
    task = await task_of(site, params)
    assert task["contextId"] == "snake"
    assert task["history"][0]["parts"] == [{"text": "x", "mediaType": "text/markdown"}]
    page = await site.call("ListTasks", {"context_id": "snake", "include_artifacts": True})
    assert page["tasks"][0]["artifacts"]
    assert not [name for name, _ in members([task, page]) if "_" in name]


@pytest.mark.requirement("2.1-enums")
async def test_a_constant_is_read_by_name_or_number_and_emitted_by_name(site: Site) -> None:
    task = await task_of(site, new(role=1, contextId="enums"))
    assert task["history"][0]["role"] == "ROLE_USER"
    assert state(task) == "TASK_STATE_COMPLETED"
    for status in (3, "TASK_STATE_COMPLETED"):
        page = await site.call("ListTasks", {"contextId": "enums", "status": status})
        assert page["totalSize"] == 1
    for status in (2, "TASK_STATE_WORKING"):
        page = await site.call("ListTasks", {"contextId": "enums", "status": status})
        assert page["totalSize"] == 0
    for unknown in ("completed", "TASK_STATE_DONE", 9, -1):
        assert await code_of(site, "ListTasks", {"status": unknown}) == INVALID_PARAMS


@pytest.mark.requirement("2.1-timestamps")
async def test_times_go_out_in_utc_with_milliseconds(site: Site) -> None:
    for method, params in (("SendStreamingMessage", new("chunks")), ("message/stream", old())):
        events = [frame.result for frame in await site.events(method, params)]
        times = [item for name, item in members(events) if name == "timestamp"]
        assert times and all(TIME.match(time) for time in times)


@pytest.mark.requirement("2.1-timestamps")
async def test_times_come_in_with_offsets_none_or_nanoseconds(site: Site) -> None:
    task = await task_of(site, new(contextId="times"))
    at = datetime.fromisoformat(task["status"]["timestamp"])
    away = (at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "+02:00"
    bare = at.strftime("%Y-%m-%dT%H:%M:%S.%f")
    for since in (away, bare, f"{bare}000Z", bare.removesuffix("000") + "Z"):
        params = {"contextId": "times", "statusTimestampAfter": since}
        assert (await site.call("ListTasks", params))["totalSize"] == 1, since
    later = (at + timedelta(milliseconds=1)).strftime("%Y-%m-%dT%H:%M:%S.%f")
    for since in (later, f"{later}+00:00"):
        params = {"contextId": "times", "statusTimestampAfter": since}
        assert (await site.call("ListTasks", params))["totalSize"] == 0, since


@pytest.mark.requirement("2.1-bytes")
@pytest.mark.parametrize("text", ["-_8", "-_8=", "+/8", "+/8="])
async def test_bytes_come_in_in_either_alphabet_and_go_out_in_the_standard_one(
    site: Site, text: str
) -> None:
    assert await kept(site, {"raw": text}) == [{"raw": "+/8="}]


@pytest.mark.requirement("2.1-int32")
async def test_an_integer_may_be_text_and_is_never_a_fraction(site: Site) -> None:
    assert (await site.call("ListTasks", {"pageSize": "7"}))["pageSize"] == 7
    for wrong in (7.5, "7.5", "seven", 2**31):
        assert await code_of(site, "ListTasks", {"pageSize": wrong}) == INVALID_PARAMS


@pytest.mark.requirement("2.1-numbers")
async def test_values_pass_without_loss(site: Site) -> None:
    value = {"big": 2**53 + 1, "small": 5e-324, "deep": [[[{"": None}]]], "text": "\u0000é😀"}
    assert await kept(site, {"data": value}) == [{"data": value}]
    task = await task_of(site, new(metadata={"skillId": "echo", "big": 2**63 - 1}))
    assert task["history"][0]["metadata"]["big"] == 2**63 - 1


@pytest.mark.requirement("2.1-null")
async def test_null_is_unset_except_as_data(site: Site) -> None:
    assert await kept(site, {"text": "x", "filename": None, "url": None}) == [{"text": "x"}]
    assert await kept(site, {"data": None}) == [{"data": None}]
    task = await task_of(site, new(contextId=None, taskId=None) | {"configuration": None})
    assert task["contextId"]


@pytest.mark.requirement("2.1-defaults")
async def test_members_that_say_nothing_are_left_out(site: Site) -> None:
    events = [frame.result for frame in await site.events("SendStreamingMessage", new("chunks"))]
    task = await site.task(events[0]["task"]["id"])
    empty = [
        (name, item)
        for name, item in members([events, task])
        if item in ("", [], {}) or item is False or item is None or item == 0
    ]
    # The empty text that closes an artifact is content, not a default.
    assert [found for found in empty if found != ("text", "")] == []


@pytest.mark.requirement("2.1-required-response", "T-38")
async def test_an_empty_page_has_all_its_members(site: Site) -> None:
    empty = {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
    assert await site.call("ListTasks", {"contextId": "nobody"}) == empty
    assert (await site.http.get("/tasks?contextId=nobody")).json() == empty


@pytest.mark.requirement("2.1-unknown")
async def test_unknown_members_are_ignored_and_not_shown_to_1_0(site: Site) -> None:
    params = new(surprise=1, parts=[{"text": "x", "surprise": 2}]) | {"surprise": 3}
    task = await task_of(site, params | {"configuration": {"surprise": 4}})
    assert state(task) == "TASK_STATE_COMPLETED"
    shown = [task, await site.task(task["id"]), await site.call("ListTasks", {"surprise": 5})]
    assert "surprise" not in dict(members(shown))


@pytest.mark.requirement("2.1-oneof")
@pytest.mark.parametrize(
    "part", [{}, {"metadata": {}}, {"text": "x", "url": "y"}, {"raw": "", "data": 1}]
)
async def test_a_part_has_exactly_one_content(site: Site, part: Any) -> None:
    assert await code_of(site, "SendMessage", with_parts({"text": "x"}, part)) == INVALID_PARAMS


@pytest.mark.requirement("2.1-required-arrays", "T-65")
async def test_an_empty_text_is_content_and_no_part_is_none(site: Site) -> None:
    assert await kept(site, {"text": ""}) == [{"text": ""}]
    assert await code_of(site, "SendMessage", with_parts()) == INVALID_PARAMS
    bare = old()
    bare["message"]["parts"] = []
    assert await code_of(site, "message/send", bare) == INVALID_PARAMS


@pytest.mark.requirement("2.1-query")
async def test_a_query_spells_values_as_protojson_does(site: Site) -> None:
    task = await task_of(site, new(contextId="query"))
    at = datetime.fromisoformat(task["status"]["timestamp"])
    away = (at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "%2B02:00"
    query = f"contextId=query&status=TASK_STATE_COMPLETED&statusTimestampAfter={away}"
    page = (await site.http.get(f"/tasks?{query}&includeArtifacts=true&pageSize=1")).json()
    assert [found["id"] for found in page["tasks"]] == [task["id"]]
    assert page["tasks"][0]["artifacts"]
    for wrong in ("includeArtifacts=1", "status=completed", "pageSize=many"):
        assert (await site.http.get(f"/tasks?{wrong}")).status_code == 400


# States and roles


@pytest.mark.requirement("2.2-states")
@pytest.mark.parametrize(
    ("skill", "name", "older"),
    [
        ("hold", "TASK_STATE_WORKING", "working"),
        ("echo", "TASK_STATE_COMPLETED", "completed"),
        ("crash", "TASK_STATE_FAILED", "failed"),
        ("ask", "TASK_STATE_INPUT_REQUIRED", "input-required"),
        ("reject", "TASK_STATE_REJECTED", "rejected"),
        ("authorize", "TASK_STATE_AUTH_REQUIRED", "auth-required"),
    ],
)
async def test_each_state_has_the_name_of_its_version(
    site: Site, gates: Gates, skill: str, name: str, older: str
) -> None:
    configuration = {"returnImmediately": skill == "hold"}
    params = new(skill, "states") | {"configuration": configuration}
    async with site.stream("SendStreamingMessage", params) as stream:
        assert state((await anext(stream)).result["task"]) == "TASK_STATE_SUBMITTED"
        async for frame in stream:
            update = frame.result.get("statusUpdate")
            if update and state(update) == name:
                break
    task = update["taskId"]
    assert state(await site.task(task)) == name
    assert state(await site.call("tasks/get", {"id": task})) == older
    gates["states"].set()


@pytest.mark.requirement("2.2-states")
async def test_canceled_has_one_l_in_every_version(site: Site) -> None:
    task = await task_of(site, new("ask"))
    assert state(await site.call("CancelTask", {"id": task["id"]})) == "TASK_STATE_CANCELED"
    assert state(await site.call("tasks/get", {"id": task["id"]})) == "canceled"
    submitted = (await site.events("message/stream", old()))[0].result
    assert state(submitted) == "submitted"


@pytest.mark.requirement("2.2-aliases")
async def test_loose_spellings_of_states_are_read(site: Site) -> None:
    task = await task_of(site, new("ask", contextId="aliases"))
    await site.call("CancelTask", {"id": task["id"]})
    spelled = {"contextId": "aliases", "status": "TASK_STATE_CANCELLED"}
    assert (await site.call("ListTasks", spelled))["totalSize"] == 1
    for name, meant in (
        ("cancelled", TaskState.CANCELED),
        ("input_required", TaskState.INPUT_REQUIRED),
        ("auth_required", TaskState.AUTH_REQUIRED),
        ("started", TaskState.SUBMITTED),
    ):
        read = V0_3.decode_event({"kind": "task", "id": "t", "status": {"state": name}})
        assert isinstance(read, Task) and read.status.state is meant


@pytest.mark.requirement("2.2-unspecified")
async def test_unspecified_is_no_filter_and_no_state(site: Site) -> None:
    await task_of(site, new(contextId="unspecified"))
    for status in ("TASK_STATE_UNSPECIFIED", 0):
        params = {"contextId": "unspecified", "status": status}
        assert (await site.call("ListTasks", params))["totalSize"] == 1
    assert "TASK_STATE_UNSPECIFIED" not in {state.value for state in TaskState}


@pytest.mark.requirement("2.3-roles")
async def test_roles_have_the_names_of_their_version(site: Site) -> None:
    task = await task_of(site, new("ask"))
    assert task["history"][0]["role"] == "ROLE_USER"
    assert task["status"]["message"]["role"] == "ROLE_AGENT"
    older = await site.call("tasks/get", {"id": task["id"]})
    assert older["history"][0]["role"] == "user"
    assert older["status"]["message"]["role"] == "agent"


# Tasks and messages


@pytest.mark.requirement("2.4-id", "5.2-client-task", "5.2-unknown-task")
async def test_a_client_cannot_name_a_task_that_does_not_exist(site: Site) -> None:
    total = await site.total()
    assert await code_of(site, "SendMessage", new(taskId="mine")) == -32001
    assert await code_of(site, "message/send", old(taskId="mine")) == -32001
    assert (await site.http.post("/message:send", json=new(taskId=UNKNOWN))).status_code == 404
    assert await site.total() == total


@pytest.mark.requirement("2.4-context", "2.9-events")
async def test_tasks_and_events_always_name_their_context(site: Site) -> None:
    for method, params in (("SendStreamingMessage", new("chunks")), ("message/stream", old())):
        events = [frame.result for frame in await site.events(method, params)]
        bare = [event if "kind" in event else next(iter(event.values())) for event in events]
        assert len({event["contextId"] for event in bare}) == 1 and bare[0]["contextId"]
        assert {event["taskId"] for event in bare[1:]} == {bare[0]["id"]}
        finals = [event.get("final") for event in bare if "status" in event and "id" not in event]
        if method == "message/stream":
            assert all(isinstance(final, bool) for final in finals) and finals[-1] is True
        else:
            assert "final" not in dict(members(events))


@pytest.mark.requirement("2.4-kind", "P-1")
async def test_objects_name_their_kind_in_0_x_and_never_in_1_0(site: Site) -> None:
    older = await site.call("message/send", old("ask"))
    assert older["kind"] == "task"
    assert older["status"]["message"]["kind"] == "message"
    assert older["history"][0]["parts"][0]["kind"] == "text"
    newer = await site.task(older["id"])
    assert "kind" not in dict(members(newer))
    events = [frame.result for frame in await site.events("message/stream", old("chunks"))]
    assert {event["kind"] for event in events} == {"task", "status-update", "artifact-update"}


@pytest.mark.requirement("2.4-members")
async def test_a_task_has_only_the_members_of_the_proto(site: Site) -> None:
    task = await site.task(
        (await task_of(site, new("two_artifacts") | {"metadata": {"k": 1}}))["id"]
    )
    assert task.keys() <= {"id", "contextId", "status", "artifacts", "history", "metadata"}
    assert task["status"].keys() <= {"state", "message", "timestamp"}
    names = {"messageId", "contextId", "taskId", "role", "parts", "metadata", "extensions"}
    assert task["history"][0].keys() <= names | {"referenceTaskIds"}
    names = {"artifactId", "name", "description", "parts", "metadata", "extensions"}
    assert all(artifact.keys() <= names for artifact in task["artifacts"])


@pytest.mark.requirement("2.6-agent-message", "T-67", "T-24")
async def test_what_the_agent_says_names_its_context_and_its_task_if_there_is_one(
    site: Site,
) -> None:
    task = await task_of(site, new("ask"))
    said = task["status"]["message"]
    assert (said["contextId"], said["taskId"]) == (task["contextId"], task["id"])
    sent = new("reply", "hi")
    # Whatever the wait mode: a direct message is the whole answer.
    for params in (sent, at_once(new("reply", "hi"))):
        direct = (await site.call("SendMessage", params))["message"]
        assert direct["contextId"] and "taskId" not in direct
        assert direct["messageId"] and direct["messageId"] != sent["message"]["messageId"]
    again = (await site.call("SendMessage", new("reply", contextId="mine")))["message"]
    assert again["contextId"] == "mine" and again["messageId"] != direct["messageId"]


@pytest.mark.requirement("2.6-lenient")
async def test_0_x_may_omit_kinds_and_misplace_the_message_id(site: Site) -> None:
    # Of several: where none has a kind, the caller is fasta2a's client, which reads other shapes.
    bare = {"role": "user", "parts": [{"kind": "text", "text": "x"}, {"text": "y"}]}
    task = await site.call("message/send", {"message": bare, "messageId": "beside"})
    assert task["history"][0]["messageId"] == "beside"


@pytest.mark.requirement("2.6-messageId")
async def test_1_0_refuses_a_message_without_an_id(site: Site) -> None:
    params = new()
    del params["message"]["messageId"]
    assert await code_of(site, "SendMessage", params) == INVALID_PARAMS
    assert (await site.http.post("/message:send", json=params)).status_code == 400


@pytest.mark.requirement("P-6")
async def test_type_stands_for_kind_in_0_x_and_for_nothing_in_1_0(site: Site) -> None:
    params = old()
    params["message"]["parts"] = [{"type": "file", "file": {"uri": "https://a.example/"}}]
    params["message"]["metadata"] = {"skillId": "take"}
    task = await site.call("message/send", params)
    assert task["history"][0]["parts"][0]["kind"] == "file"
    file = {"type": "file", "file": {"uri": "https://a.example/"}}
    assert await code_of(site, "SendMessage", with_parts(file)) == INVALID_PARAMS


# Artifacts and events


@pytest.mark.requirement("2.8-artifacts")
async def test_artifacts_have_ids_of_their_own_and_parts(site: Site) -> None:
    task = await task_of(site, new("two_artifacts"))
    one, two = task["artifacts"]
    assert one["artifactId"] != two["artifactId"]
    assert (one["parts"], two["parts"]) == ([{"text": "one"}], [{"data": {"two": 2}}])
    events = [frame.result for frame in await site.events("SendStreamingMessage", new("chunks"))]
    chunks = [event["artifactUpdate"]["artifact"] for event in events if "artifactUpdate" in event]
    assert chunks and all(chunk["parts"] for chunk in chunks)


@pytest.mark.requirement("E-2")
async def test_events_are_wrapped_as_the_proto_says_and_misspelled_ones_are_read(
    site: Site,
) -> None:
    events = [frame.result for frame in await site.events("SendStreamingMessage", new("chunks"))]
    assert all(len(event) == 1 for event in events)
    assert {name for event in events for name in event} == {
        "task",
        "statusUpdate",
        "artifactUpdate",
    }
    assert "index" not in dict(members(events))
    for event in events[1:]:
        ((name, inner),) = event.items()
        wrong = {"task" + name[0].upper() + name[1:]: inner}
        assert V1_0.decode_event(wrong) == V1_0.decode_event(event)


@pytest.mark.requirement("2.10-envelope")
async def test_events_bear_the_id_of_their_request_over_json_rpc_and_are_bare_over_rest(
    site: Site,
) -> None:
    for frame in await site.events("SendStreamingMessage", new()):
        assert frame.data.keys() == {"jsonrpc", "id", "result"} and frame.data["id"] == 1
    async with site.http.stream("POST", "/message:stream", json=new(), headers=V1) as response:
        events = [frame.data async for frame in frames(response)]
    assert "task" in events[0] and "jsonrpc" not in dict(members(events))


@pytest.mark.requirement("2.10-framing")
async def test_an_event_is_one_block_with_one_data_line(site: Site) -> None:
    params = new("echo", "two\nlines\r\u2028here")
    async with site.http.stream("POST", "/message:stream", json=params) as response:
        text = (await response.aread()).decode()
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        names = [line.partition(":")[0] for line in block.split("\n")]
        assert sorted(names) == ["data", "id"]


# Wait mode and history


@pytest.mark.requirement("2.11-wait")
@pytest.mark.parametrize(
    ("method", "configuration", "waits"),
    [
        ("SendMessage", None, True),
        ("SendMessage", {}, True),
        ("SendMessage", {"returnImmediately": False}, True),
        ("SendMessage", {"returnImmediately": True}, False),
        ("message/send", None, True),
        ("message/send", {}, True),
        ("message/send", {"blocking": True}, True),
        ("message/send", {"blocking": False}, False),
    ],
)
async def test_a_send_waits_unless_it_is_told_not_to(
    site: Site, gates: Gates, method: str, configuration: Any, waits: bool
) -> None:
    text = f"{method} {configuration}"
    if waits:
        gates[text].set()
    params = (new if method == "SendMessage" else old)("hold", text)
    result = await site.call(method, params | {"configuration": configuration})
    task = result.get("task", result)
    gates[text].set()
    assert (state(task).lower().endswith("completed")) is waits


@pytest.mark.requirement("2.11-release-candidate")
async def test_blocking_means_nothing_in_1_0(site: Site) -> None:
    task = await task_of(site, new("ask") | {"configuration": {"blocking": False}})
    assert state(task) == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.requirement("2.11-history", "T-30")
async def test_the_latest_messages_are_shown_oldest_first(site: Site) -> None:
    task = await task_of(site, new("ask", "a"))
    await task_of(site, new("ask", "b", taskId=task["id"]))
    whole = (await site.task(task["id"]))["history"]
    assert [said["parts"][0]["text"] for said in whole] == ["a", "Where?", "b"]
    for length, shown in ((1, whole[2:]), (2, whole[1:]), (9, whole)):
        params = {"id": task["id"], "historyLength": length}
        assert (await site.call("GetTask", params))["history"] == shown
        older = await site.call("tasks/get", params)
        assert [m["messageId"] for m in older["history"]] == [m["messageId"] for m in shown]
    for method in ("GetTask", "tasks/get"):
        none = await site.call(method, {"id": task["id"], "historyLength": 0})
        assert not none.get("history")
    assert (await site.task(task["id"]))["history"] == whole


@pytest.mark.requirement("2.11-history")
async def test_a_send_and_the_first_event_of_a_stream_show_no_more_than_asked(site: Site) -> None:
    configuration = {"configuration": {"historyLength": 0}}
    assert "history" not in await task_of(site, new() | configuration)
    events = await site.events("SendStreamingMessage", new() | configuration)
    assert "history" not in events[0].result["task"]


@pytest.mark.requirement("2.11-negative")
@pytest.mark.parametrize("length", [-1, 1.5, "x"])
async def test_a_history_length_that_is_none_is_refused(site: Site, length: Any) -> None:
    for method in ("GetTask", "tasks/get"):
        params = {"id": UNKNOWN, "historyLength": length}
        assert await code_of(site, method, params) == INVALID_PARAMS
    for method, params in (("SendMessage", new()), ("message/send", old())):
        configured = params | {"configuration": {"historyLength": length}}
        assert await code_of(site, method, configured) == INVALID_PARAMS
