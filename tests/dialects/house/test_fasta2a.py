"""fasta2a's client, served: the objects of 1.0 under the names of 0.x, known by parts that have no
kind."""

import asyncio
import base64
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving

from dragoman import Agent, Message, Turn
from tests.dialects.house.housemates import PNG, agent, gates, to

UNKNOWN = "00000000-0000-7000-8000-000000000000"


def bare(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return a message as the client writes it."""
    said = message(**more)
    return said | {"role": "user", "parts": list(parts) or [{"text": "hi"}]}


def kinds(value: Any) -> list[Any]:
    """Return all members named `kind`, at any depth."""
    if isinstance(value, dict):
        inner = [kind for item in value.values() for kind in kinds(item)]
        return [value["kind"], *inner] if "kind" in value else inner
    return [kind for item in value for kind in kinds(item)] if isinstance(value, list) else []


async def test_a_message_is_answered_in_its_own_shape(site: Site) -> None:
    said = bare(metadata=to("echo"))
    result = await site.call("message/send", {"message": said})
    assert result.keys() == {"task"}
    task = result["task"]
    assert task["status"]["state"] == "completed"
    assert task["artifacts"][0]["parts"] == [{"text": "Echo: hi"}]
    (history,) = task["history"]
    assert (history["role"], history["parts"]) == ("user", [{"text": "hi"}])
    assert history["messageId"] == said["messageId"] and history["taskId"] == task["id"]
    assert not kinds(result)


async def test_events_of_a_stream_are_wrapped_and_spelled_as_the_request(site: Site) -> None:
    params = {"message": bare(metadata=to("chunks"))}
    events = [frame.result for frame in await site.events("message/stream", params)]
    assert events[0]["task"]["status"]["state"] in ("submitted", "working")
    names = [name for event in events for name in event]
    assert set(names) == {"task", "statusUpdate", "artifactUpdate"} and len(names) == len(events)
    chunks = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    text = "".join(part["text"] for one in chunks for part in one["artifact"]["parts"])
    assert text == "onetwothree"
    assert events[-1]["statusUpdate"]["status"]["state"] == "completed"
    assert not kinds(events)


async def test_files_and_data_come_and_go_as_in_1_0(site: Site) -> None:
    raw = base64.b64encode(PNG).decode()
    file = {"raw": raw, "filename": "a.png", "mediaType": "image/png"}
    said = bare({"text": "x"}, {"data": [1, {"a": None}]}, file, metadata=to("echo"))
    task = (await site.call("message/send", {"message": said}))["task"]
    assert task["history"][0]["parts"] == said["parts"]
    drawn = await site.call("message/send", {"message": bare(metadata=to("draw"))})
    (part,) = drawn["task"]["artifacts"][0]["parts"]
    assert part == file
    # The same task to a caller of 0.3.
    shown = await site.call("tasks/get", {"id": drawn["task"]["id"]})
    (part,) = shown["artifacts"][0]["parts"]
    assert part["kind"] == "file" and part["file"]["bytes"] == raw and "raw" not in part


async def test_a_question_is_asked_and_answered(site: Site) -> None:
    asked = (await site.call("message/send", {"message": bare(metadata=to("ask"))}))["task"]
    status = asked["status"]
    assert status["state"] == "input-required"
    assert (status["message"]["role"], status["message"]["parts"]) == (
        "agent",
        [{"text": "Where?"}],
    )
    answer = bare({"text": "Rome"}, taskId=asked["id"])
    done = (await site.call("message/send", {"message": answer}))["task"]
    assert done["artifacts"][0]["parts"] == [{"text": "hi to Rome"}]


async def test_a_message_without_a_task_is_wrapped_too() -> None:
    replier = Agent("Replier", "Replies.")

    @replier.skill
    async def reply(text: str, turn: Turn) -> Message:
        return turn.reply(f"hello {text}")

    async with serving(replier) as site:
        sent = await site.call("message/send", {"message": bare()})
        (streamed,) = await site.events("message/stream", {"message": bare()})
        for result in (sent, streamed.result):
            assert result.keys() == {"message"}
            said = result["message"]
            assert (said["role"], said["parts"]) == ("agent", [{"text": "hello hi"}])


async def test_a_task_is_read_again_by_a_request_whose_id_is_null(site: Site) -> None:
    drawn = await site.call("message/send", {"message": bare(metadata=to("draw"))})
    body = {"jsonrpc": "2.0", "id": None, "method": "tasks/get"}
    answer = (await site.post(body | {"params": {"id": drawn["task"]["id"]}})).json()
    task = answer["result"]
    (part,) = task["artifacts"][0]["parts"]
    # Others may send such a request too: what 0.3 has is there as well.
    assert task["kind"] == "task" and part["kind"] == "file"
    assert part["raw"] == part["file"]["bytes"] == base64.b64encode(PNG).decode()
    assert (part["filename"], part["mediaType"]) == ("a.png", "image/png")
    missing = (await site.post(body | {"params": {"id": UNKNOWN}})).json()["error"]
    assert (missing["code"], missing["message"]) == (-32001, "Task not found")


async def test_a_receiver_is_named_as_in_1_0_and_its_sender_does_not_wait() -> None:
    async with serving(agent, allow_private=True) as site:
        receiver = {"url": "http://127.0.0.1:9/hook", "token": "t"}
        configuration = {"acceptedOutputModes": [], "taskPushNotificationConfig": receiver}
        held = bare({"text": "fasta2a"}, metadata=to("hold"))
        params = {"message": held, "configuration": configuration}
        task = (await site.call("message/send", params))["task"]
        assert task["status"]["state"] == "working"
        gates.setdefault("fasta2a", asyncio.Event()).set()
        found = await site.call("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
        assert [one["url"] for one in found["configs"]] == [receiver["url"]]
        waiting = configuration | {"blocking": True}
        params = {"message": bare(metadata=to("ask")), "configuration": waiting}
        task = (await site.call("message/send", params))["task"]
        assert task["status"]["state"] == "input-required"
        wrong = {"taskPushNotificationConfig": {"url": 5}}
        refused = await site.refusal("message/send", params | {"configuration": wrong})
        assert refused["data"]["field"] == "configuration.taskPushNotificationConfig.url"


@pytest.mark.parametrize(
    "said",
    [
        old_message("hi"),
        bare(kind="message"),
        bare({"kind": "text", "text": "hi"}),
        bare({"text": "hi"}, {"kind": "text", "text": "ho"}),
        bare({"text": "hi"}, {"file": {"uri": "https://example.com/a"}}),
    ],
    ids=["of 0.3", "message", "part", "one of two", "file"],
)
async def test_what_says_of_which_kind_it_is_is_answered_as_0_3(site: Site, said: Any) -> None:
    assert (await site.call("message/send", {"message": said}))["kind"] == "task"


async def test_whoever_names_a_version_is_answered_in_it(site: Site) -> None:
    headers = {"A2A-Version": "0.3"}
    result = await site.call("message/send", {"message": bare()}, headers=headers)
    assert result["kind"] == "task"


async def test_a_message_that_names_little_is_taken_as_ever(site: Site) -> None:
    """0.x gives a message without an id or a speaker both."""
    result = await site.call("message/send", {"message": {"parts": [{"text": "hi"}]}})
    (history,) = result["task"]["history"]
    assert history["role"] == "user" and history["messageId"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"role": "robot"}, "message.role"),
        ({"parts": [{"text": 5}]}, "message.parts[0].text"),
        ({"parts": [{"raw": "!"}]}, "message.parts[0].raw"),
        ({"taskId": 7}, "message.taskId"),
    ],
)
async def test_what_is_wrong_is_named_in_the_words_of_the_request(
    site: Site, more: Any, field: str
) -> None:
    refused = await site.refusal("message/send", {"message": bare() | more})
    assert refused["code"] == -32602 and refused["data"]["field"] == field


async def test_a_server_may_leave_it_out() -> None:
    async with serving(agent, dialects="nexus") as site:
        assert (await site.call("message/send", {"message": bare()}))["kind"] == "task"


async def test_an_error_of_a_stream_is_an_event_to_a_client_that_reads_nothing_else(
    site: Site,
) -> None:
    lost = {"message": bare(taskId=UNKNOWN)}
    unread = {"message": bare({"raw": "&"})}
    for params, code in ((lost, -32001), (unread, -32602)):
        (frame,) = await site.events("message/stream", params)
        assert frame.data["error"]["code"] == code
        # What waits for an answer reads JSON.
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        assert (await site.post(body)).json()["error"]["code"] == code
    # Nor does this change what 0.3 gets.
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream"}
    answer = await site.post(body | {"params": {"message": old_message("hi", taskId=UNKNOWN)}})
    assert answer.headers["content-type"] == "application/json"
