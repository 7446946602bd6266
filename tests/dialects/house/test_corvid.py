"""corvid, served: a text is sent, and its task is read until it has ended."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, old_message, serving
from harness.waiting import within

from dragoman import Agent, Client, TaskState
from dragoman.compat.corvid import RemoteAgents
from dragoman.dialects.house import corvid
from dragoman.egress.egress import Egress
from dragoman.errors import NoAgentAvailable
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.service import Call
from tests.dialects.house.housemates import UNKNOWN, agent, gates, nexus_message

SEND, TASKS = "/a2a/tasks/send", "/a2a/tasks"


async def send(site: Site, **body: Any) -> Any:
    response = await site.http.post(SEND, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def ended(site: Site, id: str) -> Any:
    """Return a task as a corvid client reads it once it rests."""
    await site.rested(id)
    return (await site.http.get(f"{TASKS}/{id}")).json()


def refusal(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert body.keys() == {"error"} and isinstance(body["error"], str), body
    return response.status_code, body["error"]


# The two requests


@pytest.mark.parametrize(
    "body",
    [
        {"message": "hi"},
        {"params": {"message": "hi"}},
        {"method": "tasks/send", "params": {"message": "hi", "depth": 1, "sourceAgent": "a"}},
    ],
    ids=["flat", "params", "method"],
)
async def test_a_text_becomes_a_task_that_is_answered_at_once(site: Site, body: Any) -> None:
    """C-1, C-2, C-012: in either form, with HTTP 200 and a task under way, whoever does it."""
    task = await send(site, **body)
    assert task.keys() == {"id", "state", "messages", "sessionId", "createdAt", "updatedAt"}
    assert task["messages"] == [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]
    assert task["state"] == "working", "although the agent is done at once"
    assert task["sessionId"] and task["createdAt"] == task["updatedAt"]
    for name in ("createdAt", "updatedAt"):
        assert datetime.fromisoformat(task[name]).tzinfo is not None
    done = await ended(site, task["id"])
    assert done["state"] == "completed"
    assert done["createdAt"] <= done["updatedAt"]
    assert {**done, "state": "", "messages": [], "updatedAt": ""} == {
        **task,
        "state": "",
        "messages": [],
        "updatedAt": "",
    }


async def test_a_task_under_way_is_working_and_never_waits_for_its_answer(site: Site) -> None:
    """C-2, C-4: the first answer comes while the agent works."""
    task = await within(send(site, message="corvid-gate", skill="hold"))
    assert task["state"] == "working"
    again = (await site.http.get(f"{TASKS}/{task['id']}")).json()
    assert again["state"] == "working"
    gates.setdefault("corvid-gate", asyncio.Event()).set()
    assert (await ended(site, task["id"]))["state"] == "completed"


async def test_the_agent_s_last_message_is_the_answer(site: Site) -> None:
    """C-8, C-14: in one part, whether the agent said it, made it, or did both."""
    for skill, answer in (
        ("echo", "Echo: x"),
        ("chat", "You said: x"),
        ("talkative", "Found: x"),
        ("tabulate", '{"rows":[1,2]}'),
        ("draw", "[a.png]"),
    ):
        task = await ended(site, (await send(site, message="x", skill=skill))["id"])
        last = task["messages"][-1]
        assert (last["role"], last["parts"]) == ("agent", [{"type": "text", "text": answer}]), skill


@pytest.mark.parametrize(
    ("skill", "state", "said"),
    [
        ("fail", "failed", "It cannot be done."),
        ("reject", "failed", "Not my job."),
        ("ask", "working", "Where?"),
        ("grant", "working", "A token, please."),
    ],
)
async def test_a_state_is_one_of_four_and_words_tell_the_rest(
    site: Site, skill: str, state: str, said: str
) -> None:
    """C-4: what waits is still at work for these clients."""
    task = await ended(site, (await send(site, message="x", skill=skill))["id"])
    assert task["state"] == state
    assert task["messages"][-1]["parts"][0]["text"] == said


async def test_a_canceled_task_failed_and_says_why(site: Site) -> None:
    """C-4: the word for it is the agent's."""
    id = (await send(site, message="x", skill="ask"))["id"]
    await site.rested(id)
    await site.call("CancelTask", {"id": id})
    task = await ended(site, id)
    assert task["state"] == "failed" and "cancel" in task["messages"][-1]["parts"][0]["text"]


async def test_a_task_of_any_dialect_is_read_here(site: Site) -> None:
    """C-3: and one of here in any dialect."""
    made = await site.call("message/send", {"message": old_message("x")})
    assert (await ended(site, made["id"]))["state"] == "completed"
    task = await ended(site, (await send(site, message="y"))["id"])
    other = await site.call("tasks/get", {"id": task["id"]})
    assert other["contextId"] == task["sessionId"]
    flat = await site.call("message/send", {"message": nexus_message()})
    assert (await ended(site, flat["id"]))["state"] == "completed"


async def test_an_unknown_task_is_not_found(site: Site) -> None:
    """C-3, C-012: with these words."""
    assert refusal(await site.http.get(f"{TASKS}/{UNKNOWN}")) == (404, "Task not found")
    assert (await site.http.get(f"{TASKS}/%20")).status_code == 400


async def test_a_task_of_another_is_as_unknown_as_one_that_never_was(tmp_path: Path) -> None:
    """C-3: byte for byte, and nobody gets in without a credential."""
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text('[a]\ntoken = "alice-alice-alice"\n[b]\ntoken = "bobby-bobby-bobby"\n')
    alice = {"authorization": "Bearer alice-alice-alice"}
    bob = {"authorization": "Bearer bobby-bobby-bobby"}
    async with serving(agent, auth_tokens=str(file)) as site:
        id = (await site.http.post(SEND, json={"message": "x"}, headers=alice)).json()["id"]
        assert (await site.http.get(f"{TASKS}/{id}", headers=alice)).status_code == 200
        foreign = await site.http.get(f"{TASKS}/{id}", headers=bob)
        never = await site.http.get(f"{TASKS}/{UNKNOWN}", headers=bob)
        assert foreign.content == never.content and foreign.status_code == 404
        ours = {name: foreign.headers[name] for name in foreign.headers if name != "date"}
        assert ours == {name: never.headers[name] for name in never.headers if name != "date"}
        for refused in (
            await site.http.post(SEND, json={"message": "x"}),
            await site.http.get(f"{TASKS}/{id}"),
        ):
            assert refused.status_code == 401


@pytest.mark.parametrize(("verb", "path", "allow"), [("GET", SEND, "POST"), ("POST", "t", "GET")])
async def test_each_path_has_one_verb(site: Site, verb: str, path: str, allow: str) -> None:
    """C-1, C-3: the other one is told."""
    target = path if path == SEND else f"{TASKS}/{UNKNOWN}"
    response = await site.http.request(verb, target)
    assert (response.status_code, response.headers["allow"]) == (405, allow)


async def test_these_are_no_paths_of_1_0(site: Site) -> None:
    """C-3: whoever names that version means something else, which is not here."""
    id = (await send(site, message="x"))["id"]
    assert (await site.http.get(f"{TASKS}/{id}", headers=V1)).status_code == 404
    older = await site.http.get(f"{TASKS}/{id}", headers={"A2A-Version": "0.3"})
    assert older.json()["id"] == id


async def test_a_server_may_leave_corvid_out() -> None:
    """C-1: then nothing is known of it."""
    async with serving(agent, dialects="none") as site:
        assert (await site.http.post(SEND, json={"message": "x"})).status_code == 404


# What is refused


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": "  "},
        {"message": 7},
        {"message": {"role": "user"}},
        {"message": "x", "timeoutMs": 999},
        {"message": "x", "timeoutMs": 600_001},
        {"message": "x", "timeoutMs": "5000"},
        {"message": "x", "timeoutMs": True},
        {"message": "x", "depth": 0},
        {"message": "x", "depth": 11},
        {"message": "x", "skill": 7},
        {"message": "x", "skill": "nothing"},
        {"message": "x", "sourceAgent": 7},
        {"message": "x", "method": "tasks/get"},
        [],
    ],
    ids=lambda body: json.dumps(body)[:40],
)
async def test_what_is_wrong_with_a_request_is_said_in_one_sentence(site: Site, body: Any) -> None:
    """C-17, C-020: with HTTP 400."""
    status, sentence = refusal(await site.http.post(SEND, json=body))
    assert status == 400 and sentence


async def test_what_is_no_json_is_refused(site: Site) -> None:
    """C-012: with HTTP 400."""
    assert refusal(await site.http.post(SEND, content=b"{"))[0] == 400


async def test_a_task_that_was_passed_on_too_often_goes_no_further(site: Site) -> None:
    """C-17, C-021: three times is the most, unless the server says otherwise."""
    before = await site.total()
    response = await site.http.post(SEND, json={"message": "x", "depth": 4})
    assert refusal(response) == (400, "Invocation depth limit exceeded.")
    assert await site.total() == before
    task = await send(site, message="x", depth=3)
    assert (await site.rested(task["id"]))["metadata"]["depth"] == 3
    async with serving(agent, max_depth=10) as deeper:
        assert (await deeper.http.post(SEND, json={"message": "x", "depth": 10})).is_success


async def test_a_source_that_sends_too_much_is_told_to_wait_and_others_are_not() -> None:
    """C-17, C-022: by the name in the body, else in the header, else `unknown`."""
    async with serving(agent, corvid_rate="5/60s") as site:

        async def status(name: str = "", header: str = "") -> int:
            body = {"message": "x"} | ({"sourceAgent": name} if name else {})
            headers = {"x-source-agent": header} if header else {}
            return (await site.http.post(SEND, json=body, headers=headers)).status_code

        assert [await status("a") for _ in range(6)] == [200] * 5 + [429]
        assert await status("b") == 200
        assert [await status(header="c") for _ in range(6)] == [200] * 5 + [429]
        assert await status("d", header="c") == 200
        assert [await status() for _ in range(6)] == [200] * 5 + [429]
        refused = await site.http.post(SEND, json={"message": "x"})
        assert refusal(refused)[0] == 429 and int(refused.headers["retry-after"]) >= 1


async def test_without_a_limit_a_source_sends_as_many_as_it_likes() -> None:
    """C-17, C-022: who does not say who it is shares a source with all others who do not."""
    async with serving(agent) as site:
        said = [await site.http.post(SEND, json={"message": "x"}) for _ in range(12)]
        assert {one.status_code for one in said} == {200}


async def test_no_agent_for_a_task_is_something_that_was_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C-9, M-061: in the words of corvid."""
    async with serving(agent) as site:

        async def nobody(call: Call) -> Any:
            raise NoAgentAvailable

        (mount,) = site.app.site.mounts.values()
        monkeypatch.setattr(mount.service, "answer", nobody)
        response = await site.http.post(SEND, json={"message": "x"})
        assert refusal(response) == (404, "Agent with default project not found")


# Time


async def test_a_task_that_takes_longer_than_its_sender_waits_failed(site: Site) -> None:
    """C-6, C-7: once, with these words; the agent's end comes too late."""
    task = await send(site, message="late", skill="hold", timeoutMs=1000)
    assert (await site.rested(task["id"]))["status"]["state"] == "TASK_STATE_FAILED"
    gates.setdefault("late", asyncio.Event()).set()
    late = (await site.http.get(f"{TASKS}/{task['id']}")).json()
    assert late["state"] == "failed"
    assert late["messages"][-1]["parts"] == [{"type": "text", "text": "Task timed out"}]
    assert [said["role"] for said in late["messages"]] == ["user", "agent"]


async def test_a_task_has_five_minutes_unless_its_sender_says_otherwise(site: Site) -> None:
    """C-6: which is a deadline like any other, and tasks of others have none."""
    for body, wanted in (({}, 300_000), ({"timeoutMs": 5000}, 5000)):
        task = await send(site, message="x", **body)
        assert (await site.rested(task["id"]))["metadata"][corvid.TIMEOUT] == wanted
    made = await site.call("message/send", {"message": old_message("x")})
    assert corvid.TIMEOUT not in made.get("metadata", {})


def test_a_sender_shortens_the_time_of_a_skill_and_never_extends_it() -> None:
    """C-6: the skill's own deadline stands."""
    quick = Agent("Quick", "Has little time.")

    @quick.skill(deadline=5)
    async def wait(text: str) -> str:
        return text

    def given(timeout: Any) -> float | None:
        message = Message(MessageId("m"), Role.USER, [Part(text="x")])
        return quick.plan(SendMessage(message=message, metadata={"timeoutMs": timeout})).deadline

    assert [given(timeout) for timeout in (1000, 600_000, "1000", -1, 1e300, None)] == [1] + 5 * [5]


# With our own client, which speaks as corvid's does


async def test_a_corvid_client_s_sequence_ends_with_the_answer(site: Site, tmp_path: Path) -> None:
    """C-4, C-13, C-19: sends, polls, and reads the last message of the agent."""
    card = {
        "name": "Corvid",
        "description": "Answers later.",
        "url": site.url + "/",
        "version": "1.0.0",
        "supportedProtocols": ["a2a"],
        "capabilities": {},
        "skills": [],
    }
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card))
    async with Client(file) as remote:
        answer = await within(remote.send("hello", poll_interval=0.01))
        assert (answer.state, answer.text) == (TaskState.COMPLETED, "Echo: hello")
        told = {"skillId": "fail"}
        failed = await within(remote.send("hello", metadata=told, poll_interval=0.01))
        assert (failed.state, failed.text) == (TaskState.FAILED, "It cannot be done.")


async def test_a_corvid_client_waits_so_long_for_each_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-18: ten seconds for a card, thirty for what it sends, ten for each look."""
    waits: list[tuple[str, float]] = []
    get, post = Egress.get, Egress.post

    async def watched_get(egress: Egress, url: str, **more: Any) -> Any:
        waits.append(("GET", more["timeout"]))
        return await get(egress, url, **more)

    async def watched_post(egress: Egress, url: str, *said: Any, **more: Any) -> Any:
        waits.append(("POST", more["timeout"]))
        return await post(egress, url, *said, **more)

    monkeypatch.setattr(Egress, "get", watched_get)
    monkeypatch.setattr(Egress, "post", watched_post)
    agents = RemoteAgents(allow_private=True)
    await within(agents.fetch_agent_card(site.url))
    result = await within(agents.invoke_remote_agent(site.url, "hi", skill="fail"))
    assert (result.success, result.error) == (False, "It cannot be done.")
    assert waits[:2] == [("GET", 10), ("POST", 30)] and {*waits[2:]} == {("GET", 10)}
