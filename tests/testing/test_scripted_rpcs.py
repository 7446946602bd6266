"""Scripted agents over gRPC: what a script says is what callers of rpcs are told."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.processes import running
from harness.rpcs import message, rpcs_to

from dragoman import Client
from dragoman.errors import Overloaded, TaskNotFound
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.serve import serving

pytestmark = pytest.mark.usefixtures("one_loop")

FILE = b"\x00\x01 bytes \xff"
PARTS = [
    {"raw": base64.b64encode(FILE).decode(), "filename": "a.bin"},
    {"data": {"city": "Graz", "tags": ["a", 1]}},
]
SCRIPT: dict[str, Any] = {
    "cursors": True,
    "card": {"bindings": ["GRPC", "JSONRPC"]},
    "rules": [
        {
            "when": {"equals": "chunks"},
            "steps": [
                {"artifact": "a", "text": "one "},
                {"cut": 2, "times": 2},
                {"artifact": "a", "text": "two ", "append": True},
                {"artifact": "a", "text": "three", "append": True, "last": True},
            ],
        },
        {"when": {"equals": "parts"}, "steps": [{"artifact": "a", "parts": PARTS}]},
        {"when": {"equals": "busy"}, "steps": [{"error": "Overloaded", "retryAfter": "7"}]},
        {"when": {"equals": "message"}, "steps": [{"message": "said"}]},
    ],
}


@pytest.fixture(scope="module")
async def played(one_loop: None) -> AsyncIterator[tuple[ScriptedAgent, str]]:
    agent = ScriptedAgent(SCRIPT)
    async with serving(agent) as url:
        yield agent, url


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_script_is_played_over_grpc(
    played: tuple[ScriptedAgent, str], version: str
) -> None:
    agent, url = played
    async with Client(url, bindings=["grpc"], version=version) as client:
        answer = await client.send("hello")
        assert answer.text == "hello" and answer.task is not None
        assert (await client.get(answer.task.id)).id == answer.task.id
        assert (await client.send("message")).text == "said"
        found = (await client.send("parts")).task
        assert found is not None
        file, data = found.artifacts[0].parts
        assert file.raw == FILE and data.data == PARTS[1]["data"]
        with pytest.raises(TaskNotFound):
            await client.get("none")
        assert client.interface.protocol_binding == "GRPC"
    seen = agent.calls("GetTask")[-1]
    assert (seen.binding, seen.version) == ("GRPC", version)


async def test_a_refusal_of_a_script_is_a_status(played: tuple[ScriptedAgent, str]) -> None:
    async with rpcs_to(played[1]) as rpcs:
        status, error = await rpcs.refusal("SendMessage", message("busy", "busy"))
        assert (status, type(error)) == ("RESOURCE_EXHAUSTED", Overloaded)
        assert error.facts["retryAfter"] == "7"
        status, _ = await rpcs.refusal("SendMessage", b"\xff")
        assert status == "INVALID_ARGUMENT"


async def test_a_stream_that_a_script_cuts_goes_on(played: tuple[ScriptedAgent, str]) -> None:
    agent, url = played
    async with Client(url, bindings=["grpc"]) as client:
        stream = client.stream("chunks")
        events = [event async for event in stream]
    assert stream.answer.text == "one two three"
    assert len(events) == len({str(event) for event in events})
    assert len(agent.calls("SubscribeToTask")) >= 1


async def test_a_script_is_served_over_grpc_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text("{}")
    words = ("mock", "script.json", "--listen", "127.0.0.1:0", "--transport", "grpc")
    with running(*words, cwd=tmp_path) as server:
        async with Client(server.ready()) as client:
            assert (await client.send("hello")).text == "hello"
            assert {one.protocol_binding for one in client.card.supported_interfaces} == {"GRPC"}
