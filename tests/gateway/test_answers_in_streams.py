"""A stream that carries an answer opens after the answer, in every dialect and binding, directly
and through a gateway: a client that stops at the question would never see what came of it."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.serving import V1, Site, frames, message, old_message, serving

from tests.gateway.gateway_site import gateway, workshop

WITHIN = 60.0


class Place(NamedTuple):
    """Where an agent is served."""

    site: Site
    prefix: str


@pytest.fixture(params=["direct", "gateway"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    async with serving(workshop()) as upstream:
        if request.param == "direct":
            yield Place(upstream, "")
            return
        async with gateway(tmp_path) as site:
            agent = await site.register(upstream.url)
            yield Place(site, f"/a2a/{agent.name}")


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def new(task: str) -> dict[str, Any]:
    return {"message": message("Rome", taskId=task)}


def old(task: str) -> dict[str, Any]:
    return {"message": old_message("Rome", taskId=task)}


def proto(task: str) -> dict[str, Any]:
    said = {"messageId": f"p-{task}", "role": "ROLE_USER", "content": [{"text": "Rome"}]}
    return {"message": said | {"taskId": task}}


def ancestor(task: str) -> dict[str, Any]:
    return {"id": task, "message": {"role": "user", "parts": [{"type": "text", "text": "Rome"}]}}


def bare(task: str) -> dict[str, Any]:
    said = {"role": "user", "parts": [{"text": "Rome"}], "messageId": f"b-{task}", "taskId": task}
    return {"message": said}


class Way(NamedTuple):
    """How an answer is streamed: where to, with what, and under which headers."""

    path: str
    body: Any
    headers: dict[str, str]


WAYS = {
    "1.0 JSON-RPC": lambda task: Way("/", rpc("SendStreamingMessage", new(task)), V1),
    "1.0 REST": lambda task: Way("/message:stream", new(task), V1),
    "0.3 JSON-RPC": lambda task: Way("/", rpc("message/stream", old(task)), {}),
    "0.3 REST": lambda task: Way("/v1/message:stream", proto(task), {}),
    "0.2 JSON-RPC": lambda task: Way("/", rpc("message/stream", old(task)), {"A2A-Version": "0.2"}),
    "0.1 JSON-RPC": lambda task: Way("/", rpc("tasks/sendSubscribe", ancestor(task)), {}),
    "R over REST": lambda task: Way("/v1/message:stream", old(task), {}),
    "parts without a kind": lambda task: Way("/", rpc("message/stream", bare(task)), {}),
}


def states(event: Any) -> list[str]:
    """Return the state in an event of any dialect, in one spelling."""
    found = re.findall(r"'state': '([\w-]+)'", repr(event))
    return [state.removeprefix("TASK_STATE_").replace("-", "_").upper() for state in found]


@pytest.mark.requirement("T-9")
@pytest.mark.parametrize("way", WAYS)
async def test_the_first_event_shows_the_task_as_the_answer_leaves_it(
    place: Place, way: str
) -> None:
    site, prefix = place
    sent = message("tea", metadata={"skillId": "order"})
    asked = await site.call("SendMessage", {"message": sent}, path=prefix or "/", headers=V1)
    assert asked["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    path, body, headers = WAYS[way](asked["task"]["id"])
    path = prefix + path if prefix and path != "/" else prefix or path
    async with (
        asyncio.timeout(WITHIN),
        site.http.stream("POST", path, json=body, headers=headers) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream", await response.aread()
        events = [frame.data async for frame in frames(response) if frame.comment is None]
    seen = [state for event in events for state in states(event)]
    assert seen[0] == "WORKING" and seen[-1] == "COMPLETED"
    assert "INPUT_REQUIRED" not in seen
    assert "tea to Rome" in repr(events)


async def test_an_answer_by_reference_opens_its_stream_after_it_too() -> None:
    """R's callers answer by the id of the question, in a message without a task."""
    async with serving(workshop()) as site:
        params = {"message": old_message("tea", metadata={"skillId": "order"})}
        asked = await site.call("message/send", params, path="/api/a2a")
        named = asked["status"]["message"]["inputRequest"]["requestId"]
        said = old_message("Rome", referenceTaskIds=[asked["id"]])
        said["parts"].append({"kind": "tool-result", "toolUseId": named, "result": "Rome"})
        events = await site.events("message/stream", {"message": said}, path="/api/a2a")
        seen = [state for event in events for state in states(event.result)]
        assert (seen[0], seen[-1], "INPUT_REQUIRED" in seen) == ("WORKING", "COMPLETED", False)


async def test_the_same_answer_again_joins_the_task_where_it_is() -> None:
    """A reader whose stream broke off sends the answer once more: it is not asked again either."""
    async with serving(workshop()) as site:
        sent = message("tea", metadata={"skillId": "order"})
        asked = (await site.call("SendMessage", {"message": sent}, headers=V1))["task"]
        answer = new(asked["id"])
        first, again = await asyncio.gather(
            *(site.events("SendStreamingMessage", answer, headers=V1) for _ in range(2))
        )
        for events in (first, again):
            seen = [state for event in events for state in states(event.result)]
            assert "INPUT_REQUIRED" not in seen and seen[-1] == "COMPLETED"
