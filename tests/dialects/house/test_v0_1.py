"""A2A 0.1, the ancestor of the house dialects, known by its methods and the `type` of parts."""

import asyncio
import uuid
from typing import Any

import pytest
from harness.serving import Site, old_message, serving

from tests.dialects.house.housemates import agent, to


def said(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "text": text}], **more}


@pytest.mark.requirement("1.4-ancestor")
async def test_a_message_with_typed_parts_is_answered_in_0_1(site: Site) -> None:
    id = str(uuid.uuid4())
    params = {"id": id, "sessionId": "s-1", "message": said("x")}
    task = await site.call("tasks/send", params)
    assert (task["id"], task["sessionId"], task["status"]["state"]) == (id, "s-1", "completed")
    assert task["artifacts"] == [
        {"name": "echo", "parts": [{"type": "text", "text": "Echo: x"}], "index": 0}
    ]
    assert task.keys() == {"id", "sessionId", "status", "artifacts"}, "nobody asked for history"
    again = await site.call("tasks/get", {"id": id})
    assert again.items() >= task.items() and again["history"] == [said("x")]


@pytest.mark.requirement("1.4-ancestor")
async def test_kinds_of_parts_make_the_same_method_that_of_selectools(site: Site) -> None:
    task = await site.call("tasks/send", {"message": old_message("x")})
    assert task["kind"] == "task"


async def test_a_stream_of_0_1_begins_with_a_status_and_numbers_its_chunks(site: Site) -> None:
    params = {"id": str(uuid.uuid4()), "message": said("x"), "metadata": to("chunks")}
    events = [frame.result for frame in await site.events("tasks/sendSubscribe", params)]
    assert events[0].keys() == {"id", "status", "final"} and events[0]["id"] == params["id"]
    assert events[0]["status"]["state"] == "submitted"
    chunks = [event["artifact"] for event in events if "artifact" in event]
    assert [chunk["append"] for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert {chunk["index"] for chunk in chunks} == {0} and chunks[-1]["lastChunk"] is True
    assert (events[-1]["status"]["state"], events[-1]["final"]) == ("completed", True)


async def test_a_task_of_0_1_goes_on_and_is_told_once(site: Site) -> None:
    id = str(uuid.uuid4())
    params = {"id": id, "message": said("go"), "metadata": to("ask"), "historyLength": 9}
    one, two = await asyncio.gather(*(site.call("tasks/send", params) for _ in range(2)))
    assert one == two and one["status"]["state"] == "input-required"
    assert one["status"]["message"] == {
        "role": "agent",
        "parts": [{"type": "text", "text": "Where?"}],
    }
    done = await site.call("tasks/send", {"id": id, "message": said("Rome")})
    assert done["artifacts"][0]["parts"] == [{"type": "text", "text": "go to Rome"}]


async def test_a_server_may_leave_0_1_out() -> None:
    async with serving(agent, dialects="nexus") as site:
        params = {"message": said()}
        assert (await site.refusal("tasks/send", params))["code"] == -32601
        assert (await site.refusal("tasks/sendSubscribe", params))["code"] == -32601
