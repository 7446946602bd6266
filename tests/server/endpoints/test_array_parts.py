"""Data parts that are arrays, in every shape of 0.x: in, out, in streams, read later and pushed."""

import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from harness.serving import Site, frames, serving

from dragoman import Agent, Message

ARRAY: list[Any] = ["Graz", {"tags": ["a"]}, [1]]
WRAPPED = {"value": ARRAY}
MARK = {"data_part_compat": True}
PYTHON = {"user-agent": "python-httpx/0.28.1"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
async def site() -> AsyncGenerator[Site]:
    agent = Agent("Mirror", "Says it again.", input_modes=["*/*"], output_modes=["*/*"])

    @agent.skill(default=True)
    async def mirror(message: Message) -> list[Any]:
        return list(message.parts)

    async with serving(agent) as site:
        yield site


def request(method: str, data: Any, **more: Any) -> dict[str, Any]:
    part = {"kind": "data", "data": data, **more}
    id = f"m-{next(_numbers)}"
    message = {"kind": "message", "messageId": id, "role": "user", "parts": [part]}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}


def part_of(task: Any) -> Any:
    (artifact,) = task["artifacts"]
    (part,) = artifact["parts"]
    return part


@pytest.mark.requirement("P-3")
@pytest.mark.parametrize(
    "headers",
    [{}, {"A2A-Version": "0.3"}, {"A2A-Version": "0.2"}, PYTHON],
    ids=["no version", "0.3", "0.2", "written in Python"],
)
async def test_an_array_comes_back_as_one(site: Site, headers: dict[str, str]) -> None:
    body = request("message/send", ARRAY)
    answered = (await site.post(body, headers=headers)).json()["result"]
    assert part_of(answered) == {"kind": "data", "data": ARRAY}
    (said, *_) = answered["history"]
    assert said["parts"][0]["data"] == ARRAY

    asked = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": answered["id"]}}
    read = (await site.post(asked, headers=headers)).json()["result"]
    assert part_of(read) == {"kind": "data", "data": ARRAY}


@pytest.mark.requirement("P-3")
async def test_an_array_comes_back_as_one_in_a_stream(site: Site) -> None:
    body = request("message/stream", ARRAY)
    async with site.http.stream("POST", "/", json=body) as response:
        events = [frame.result async for frame in frames(response) if frame.data is not None]
    (update,) = [event for event in events if event["kind"] == "artifact-update"]
    assert update["artifact"]["parts"] == [{"kind": "data", "data": ARRAY}]


@pytest.mark.requirement("P-3")
async def test_the_official_python_library_gets_an_object_that_says_what_it_stands_for(
    site: Site,
) -> None:
    body = request("message/send", WRAPPED, metadata=MARK)
    # Its envelopes do not begin as those that people write.
    ordered = {name: body[name] for name in ("id", "jsonrpc", "method", "params")}
    answered = (await site.post(ordered, headers=PYTHON)).json()["result"]
    assert part_of(answered) == {"kind": "data", "data": WRAPPED, "metadata": MARK}
    assert answered["history"][0]["parts"][0]["data"] == WRAPPED

    # What others read of the same task is the array.
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": answered["id"]}}
    assert part_of((await site.post(asked)).json()["result"])["data"] == ARRAY


@pytest.mark.requirement("P-3")
async def test_the_proto_holds_objects_alone(site: Site) -> None:
    message = {"messageId": "m-proto", "role": "ROLE_USER", "content": [{"data": {"data": ARRAY}}]}
    body = {"message": message, "configuration": {"blocking": True}}
    answered = (await site.http.post("/v1/message:send", json=body)).json()["task"]
    assert part_of(answered) == {"data": {"data": WRAPPED}, "metadata": MARK}


@pytest.mark.requirement("P-3")
@pytest.mark.parametrize("data", [1, "text", None, True])
async def test_what_is_neither_an_object_nor_an_array_is_refused(site: Site, data: Any) -> None:
    error = (await site.post(request("message/send", data))).json()["error"]
    assert error["code"] == -32602 and "message.parts[0].data" in str(error)
