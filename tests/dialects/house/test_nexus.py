"""NEXUS, served: at the front door of a gateway, and by the shape of parts everywhere else."""

import asyncio
import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Site, old_message, serving
from harness.waiting import within

from dragoman.dialects.v0_3_shapes import STATE_NAMES
from tests.dialects.house.housemates import PNG, UNKNOWN, agent, gates, nexus_message, to

DOOR = "/api/v1/a2a"
AGENT_SIDE = ("/", "/rpc", "/a2a")
# As the document of NEXUS prints it.
CURL = (
    b'{"jsonrpc":"2.0","id":"1","method":"message/send","params":'
    b'{"message":{"role":"user","parts":[{"type":"text","data":"Hello"}]}}}'
)


async def ended(site: Site, id: str) -> Any:
    """Return a task at the front door once it has ended."""
    await site.rested(id)
    return await site.call("tasks/get", {"id": id}, path=DOOR)


async def sent(site: Site, path: str = "/", **params: Any) -> Any:
    return await site.call("message/send", params, path=path)


# The agent's side


@pytest.mark.parametrize("path", AGENT_SIDE)
async def test_a_message_of_parts_with_data_is_answered_by_a_flat_task_that_ended(
    site: Site, path: str
) -> None:
    """N-3, N-4, N-5, N-6, N-7, N-9: the task is flat, its conversation is user, then agent."""
    task = await sent(site, path, message=nexus_message("hello"))
    assert task["status"] == "completed"
    assert task["messages"] == [
        {"role": "user", "parts": [{"type": "text", "data": "hello"}]},
        {"role": "agent", "parts": [{"type": "text", "data": "Echo: hello"}]},
    ]
    assert task["artifacts"] == [
        {"name": "echo", "parts": [{"type": "text", "data": "Echo: hello"}]}
    ]
    assert task.keys() == {"id", "status", "messages", "artifacts"}, "no context, no kind"


async def test_what_the_agent_said_is_its_answer_and_results_are_not_said_again(site: Site) -> None:
    """N-7: the agent's own word is the last message."""
    task = await sent(site, message=nexus_message("x"), metadata=to("chat"))
    assert [said["parts"][0]["data"] for said in task["messages"]] == ["x", "You said: x"]
    assert task["artifacts"] == []


async def test_an_old_card_is_where_nexus_looks_for_it(site: Site) -> None:
    """N-1, N-2: what such a card must have is there, at the path of old."""
    card = (await site.http.get("/.well-known/agent.json")).json()
    assert all(isinstance(card[name], str) for name in ("name", "description", "url", "version"))
    assert set(card["capabilities"]) >= {"streaming", "pushNotifications"}
    assert all({"id", "name", "description"} <= skill.keys() for skill in card["skills"])


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"type": "image", "data": base64.b64encode(PNG).decode()}, {"raw": "iVBORw=="}),
        (
            {"type": "image", "data": "data:image/png;base64,iVBORw=="},
            {"raw": "iVBORw==", "mediaType": "image/png"},
        ),
        ({"type": "file", "data": "https://example.com/x"}, {"url": "https://example.com/x"}),
        ({"type": "file", "data": "no base64!"}, {"data": "no base64!"}),
        ({"type": "chart", "data": {"a": [1]}}, {"data": {"a": [1]}}),
        ({"type": "chart", "data": "abcd"}, {"data": "abcd"}),
        ({"type": "data", "data": None}, {"data": None}),
    ],
    ids=["base64", "data-url", "url", "other-text", "object", "unknown-type", "null"],
)
async def test_a_part_is_read_by_what_its_data_is_and_shown_as_it_came(
    site: Site, part: Any, read: Any
) -> None:
    """N-5: the type is kept, and nothing of the data is lost."""
    said = nexus_message()
    said["parts"].append(part)
    task = await sent(site, message=said)
    (shown,) = (await site.call("GetTask", {"id": task["id"]}))["history"][0]["parts"][1:]
    kind = shown.pop("metadata", {}).get("nexus:type", "data")
    assert (shown, kind) == (read, part["type"])
    if "mediaType" not in read:
        assert task["messages"][0]["parts"][1] == part


async def test_a_data_part_alone_is_no_sign_of_nexus(site: Site) -> None:
    """N-5: the ancestor of 0.2 writes the same."""
    said = {"role": "user", "parts": [{"type": "data", "data": {"text": "x"}}]}
    task = await sent(site, message=said)
    assert task["kind"] == "task" and task["status"]["state"] == "completed"


@pytest.mark.parametrize(
    ("skill", "shown", "true"),
    [
        ("echo", "completed", None),
        ("fail", "failed", None),
        ("ask", "input-required", None),
        ("grant", "input-required", "auth-required"),
        ("reject", "failed", "rejected"),
    ],
)
async def test_a_state_is_one_of_six_words_and_the_true_one_is_beside_it(
    site: Site, skill: str, shown: str, true: str | None
) -> None:
    """N-8: two states have no word of their own."""
    task = await sent(site, message=nexus_message(), metadata=to(skill))
    if shown == "input-required" and true:
        # A stream or a blocking send of 0.x does not wait for credentials to come.
        task = await site.call("tasks/get", {"id": task["id"]}, path=DOOR)
    assert task["status"] == shown
    assert task.get("metadata", {}).get("a2aState") == true
    assert shown in set(STATE_NAMES.values())


async def test_a_canceled_task_is_called_so(site: Site) -> None:
    """N-8: the sixth word."""
    task = await sent(site, message=nexus_message(), metadata=to("ask"))
    await site.call("tasks/cancel", {"id": task["id"]})
    assert (await site.call("tasks/get", {"id": task["id"]}, path=DOOR))["status"] == "canceled"


@pytest.mark.parametrize("path", [*AGENT_SIDE, DOOR])
async def test_a_task_is_read_again_as_it_was_answered(site: Site, path: str) -> None:
    """N-10: also where everybody reads tasks, because a peer of this house began it."""
    task = await sent(site, message=nexus_message("again"))
    assert await site.call("tasks/get", {"id": task["id"]}, path=path) == task
    other = await site.call("tasks/get", {"id": task["id"]}, headers={"A2A-Version": "0.3"})
    assert other["status"]["state"] == "completed"


async def test_a_task_of_an_official_caller_is_flat_at_the_front_door_alone(site: Site) -> None:
    """N-10: a task made in one dialect is read in every other."""
    task = await site.call("message/send", {"message": old_message("x")})
    assert (await site.call("tasks/get", {"id": task["id"]}))["kind"] == "task"
    flat = await site.call("tasks/get", {"id": task["id"]}, path=DOOR)
    assert (flat["id"], flat["status"]) == (task["id"], "completed")


async def test_an_agent_s_failure_is_a_result(site: Site) -> None:
    """N-020: and its text says nothing about us."""
    task = await sent(site, message=nexus_message(), metadata=to("crash"))
    assert task["status"] == "failed" and task["messages"][-1]["role"] == "agent"
    assert "secret of the house" not in json.dumps(task)


# Ids that callers choose


async def test_a_task_is_made_under_the_id_its_caller_chose(site: Site) -> None:
    """N-4, N-12, N-15, X-23: which may be the id of the request."""
    id = str(uuid.uuid4())
    task = await site.call("message/send", {"id": id, "message": nexus_message()}, id=id)
    assert task["id"] == id
    assert (await site.call("GetTask", {"id": id}))["id"] == id


async def test_the_same_id_and_message_again_is_the_same_task(site: Site) -> None:
    """X-23, N-16: who tries again does not begin anew."""
    id = str(uuid.uuid4())
    before = await site.total()
    tasks = [await sent(site, id=id, message=nexus_message("once")) for _ in range(3)]
    assert tasks[0] == tasks[1] == tasks[2]
    assert await site.total() == before + 1
    assert len(tasks[0]["messages"]) == 2


async def test_a_message_to_a_task_that_waits_goes_on_with_it(site: Site) -> None:
    """N-12: an id that exists is continued."""
    id = str(uuid.uuid4())
    asked = await sent(site, id=id, message=nexus_message("go"), metadata=to("ask"))
    assert asked["status"] == "input-required"
    done = await sent(site, id=id, message=nexus_message("Rome"))
    assert (done["id"], done["status"]) == (id, "completed")
    assert done["artifacts"][0]["parts"] == [{"type": "text", "data": "go to Rome"}]


async def test_a_context_that_is_named_is_kept_and_never_shown(site: Site) -> None:
    """N-4: contexts are hidden, but not ignored."""
    # No id that is made by chance has this in it.
    task = await sent(site, message=nexus_message(), contextId="our-context")
    assert "our-context" not in json.dumps(task)
    assert (await site.call("GetTask", {"id": task["id"]}))["contextId"] == "our-context"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text('[a]\ntoken = "alice-alice-alice"\n[b]\ntoken = "bobby-bobby-bobby"\n')
    return {"auth_tokens": str(file)}


ALICE = {"authorization": "Bearer alice-alice-alice"}
BOB = {"authorization": "Bearer bobby-bobby-bobby"}


async def test_two_callers_may_choose_one_id_and_neither_sees_the_other_s_task(
    tokens: dict[str, Any],
) -> None:
    """N-12, X-23: ids are chosen within what is one's own."""
    async with serving(agent, **tokens) as site:
        for path in ("/", DOOR):
            id = str(uuid.uuid4())
            for text, headers in (("for alice", ALICE), ("for bob", BOB)):
                params = {"id": id, "message": nexus_message(text)}
                task = await site.call("message/send", params, path=path, headers=headers)
                assert task["id"] == id
            for text, headers in (("alice", ALICE), ("bob", BOB)):
                task = await site.call("tasks/get", {"id": id}, path=DOOR, headers=headers)
                assert f"for {text}" in json.dumps(task["messages"][0])


async def test_a_task_of_another_is_as_unknown_as_one_that_never_was(
    tokens: dict[str, Any],
) -> None:
    """N-11, N-018: byte for byte."""
    async with serving(agent, **tokens) as site:
        task = await site.call(
            "message/send", {"message": nexus_message()}, path=DOOR, headers=ALICE
        )

        async def asked(id: str) -> bytes:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": id}}
            response = await site.post(body, DOOR, BOB)
            return response.content.replace(id.encode(), b"<id>")

        assert await asked(task["id"]) == await asked(UNKNOWN)
        anonymous = await site.post(CURL, DOOR)
        assert anonymous.status_code == 401, "the door is not open to everybody"


async def test_chosen_ids_count_as_tasks_of_the_day() -> None:
    """X-23: who names its tasks does not evade the quota."""
    async with serving(agent, quota="1/d") as site:
        await sent(site, id=str(uuid.uuid4()), message=nexus_message())
        params = {"id": str(uuid.uuid4()), "message": nexus_message()}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        assert (await site.post(body)).status_code == 429


# The front door


async def test_the_printed_request_begins_a_task_and_does_not_wait_for_it(site: Site) -> None:
    """N-20, N-034, N-035, X-09: only a message, no id; HTTP 200 with a task under way."""
    response = await site.http.post(
        DOOR, content=CURL, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200
    answer = response.json()
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "1")
    assert (answer["result"]["status"], answer["result"]["artifacts"]) == ("submitted", [])
    task = await ended(site, answer["result"]["id"])
    assert (task["status"], task["messages"][-1]["parts"]) == (
        "completed",
        [{"type": "text", "data": "Echo: Hello"}],
    )


async def test_nobody_waits_at_the_front_door_unless_the_server_says_so(site: Site) -> None:
    """N-14, N-031: the answer comes while the agent works; `nexus_sync` waits."""
    params = {"message": nexus_message("door"), "metadata": to("hold")}
    task = await within(sent(site, DOOR, **params))
    assert task["status"] == "submitted"
    assert task["messages"] == [nexus_message("door")]
    gates.setdefault("door", asyncio.Event()).set()
    assert (await ended(site, task["id"]))["status"] == "completed"
    async with serving(agent, nexus_sync=True) as waiting:
        task = await sent(waiting, DOOR, message=nexus_message())
        assert task["status"] == "completed"


async def test_a_message_to_a_task_that_waits_shows_at_the_door_how_it_stands(site: Site) -> None:
    """N-12, N-20: only what begins a task is told that it began."""
    id = str(uuid.uuid4())
    begun = await sent(site, DOOR, id=id, message=nexus_message("go"), metadata=to("ask"))
    assert begun["status"] == "submitted"
    await site.rested(id)
    assert await sent(site, DOOR, id=id, message=nexus_message("go"), metadata=to("ask")) == begun
    more = await sent(site, DOOR, id=id, message=nexus_message("Rome"))
    assert [said["parts"][0]["data"] for said in more["messages"]][:3] == ["go", "Where?", "Rome"]
    assert (await ended(site, id))["status"] == "completed"


async def test_official_parts_are_read_at_the_front_door_too(site: Site) -> None:
    """N-034: who writes kind and text there is understood."""
    said = {"role": "user", "parts": [{"kind": "text", "text": "x"}]}
    task = await ended(site, (await sent(site, DOOR, message=said))["id"])
    assert task["messages"][-1]["parts"] == [{"type": "text", "data": "Echo: x"}]


async def test_the_agent_a_task_is_for_is_part_of_the_request(site: Site) -> None:
    """N-15, M-061: under the name NEXUS has for it, or under ours."""
    task = await sent(site, DOOR, message=nexus_message(), assignedAgentId="a-1")
    assert (await site.call("GetTask", {"id": task["id"]}))["metadata"] == {"agentId": "a-1"}


# Errors


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", -32700, None),
        (b"[]", -32600, None),
        (b'{"id":7,"method":"message/send"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"message/send","params":[]}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"message/send","params":{}}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{}}', -32602, 7),
        (
            b'{"jsonrpc":"2.0","id":7,"method":"message/send","params":'
            b'{"message":{"role":"user","parts":[{"type":"text"}]}}}',
            -32602,
            7,
        ),
    ],
    ids=["no-json", "no-object", "no-envelope", "params", "no-message", "no-id", "no-data"],
)
async def test_a_request_that_is_none_is_told_so_by_the_documented_code(
    site: Site, body: bytes, code: int, id: Any
) -> None:
    """N-11, N-018, N-034, X-03: and the id of the request comes back."""
    response = await site.http.post(DOOR, content=body)
    assert response.status_code == 200
    assert (response.json()["error"]["code"], response.json()["id"]) == (code, id)


async def test_an_unknown_task_is_a_wrong_parameter(site: Site) -> None:
    """N-11, N-018: this house has no code of its own for it."""
    error = await site.refusal("tasks/get", {"id": UNKNOWN}, path=DOOR)
    assert (error["code"], error["message"]) == (-32602, "Task not found")
    assert (await site.refusal("tasks/get", {"id": UNKNOWN}))["code"] == -32001


@pytest.mark.parametrize("method", ["tasks/cancel", "message/stream", "tasks/nothing", "GetTask"])
async def test_a_method_nexus_has_not_is_named_in_the_refusal(site: Site, method: str) -> None:
    """N-11, N-13, N-018: there are two, and none of them streams."""
    error = await site.refusal(method, {"id": UNKNOWN}, path=DOOR)
    assert (error["code"], error["message"]) == (-32601, f"Method not found: {method}")


async def test_a_finished_task_takes_no_further_message(site: Site) -> None:
    """N-12, X-36: what has ended is not begun again."""
    task = await sent(site, message=nexus_message("first"))
    error = await site.refusal(
        "message/send", {"id": task["id"], "message": nexus_message("second")}
    )
    assert error["code"] == -32601 and "ended" in error["message"]


async def test_a_server_may_leave_nexus_out() -> None:
    """N-3: each dialect can be switched off, and then nothing is known of it."""
    async with serving(agent, dialects="r") as site:
        response = await site.post(CURL, DOOR)
        assert response.status_code == 404
        error = await site.refusal("message/send", {"message": nexus_message()})
        assert error["code"] == -32602
