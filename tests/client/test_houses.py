"""Agents of four systems that speak dialects of their own, as their own documents show them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness.waiting import within

from dragoman import Client, Part, TaskState
from dragoman.errors import TaskNotFound, UnsupportedOperation

Answering = Callable[[str, str, dict[str, Any]], tuple[int, Any]]


def app(answering: Answering) -> Any:
    """Return an ASGI app that answers JSON; a list is a stream of events."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        sent = (await receive())["body"]
        body = json.loads(sent) if sent else {}
        status, value = answering(scope["method"], scope["path"], body)
        is_stream = isinstance(value, list)
        kind = b"text/event-stream" if is_stream else b"application/json"
        text = (
            "".join(f"data: {json.dumps(event)}\n\n" for event in value)
            if is_stream
            else json.dumps(value)
        )
        head = {"status": status, "headers": [(b"content-type", kind)]}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": text.encode()})

    return serve


# NEXUS

NEXUS_CARD = {
    "name": "Nexus agent",
    "description": "Answers.",
    "url": "http://localhost/rpc",
    "capabilities": {"streaming": True},
    "authentication": {"schemes": []},
}


def nexus(asked: list[dict[str, Any]]) -> Any:
    def answering(verb: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if verb == "GET":
            return (200, NEXUS_CARD) if path == "/.well-known/agent.json" else (404, {})
        asked.append(body)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": body["id"]}
        if body["method"] == "tasks/get" and body["params"]["id"] != "t-1":
            return 200, answer | {"error": {"code": -32602, "message": "Task not found"}}
        result = {
            "id": "t-1",
            "status": "completed",
            "messages": [
                {"role": "user", "parts": [{"type": "text", "data": "hi"}]},
                {"role": "agent", "parts": [{"type": "text", "data": "hello"}]},
            ],
            "artifacts": [
                {"name": "out", "parts": [{"type": "image", "data": "iVBORw=="}]},
                {"parts": [{"type": "file", "data": "https://example.com/x"}]},
            ],
        }
        return 200, answer | {"result": result}

    return app(answering)


async def test_a_nexus_agent_is_known_by_its_card_and_spoken_to_in_its_own_way() -> None:
    asked: list[dict[str, Any]] = []
    async with Client(app=nexus(asked)) as agent:
        answer = await within(agent.send(["hi", Part(raw=b"\x01", media_type="image/png")]))
        assert answer.state is TaskState.COMPLETED and answer.task_id == "t-1"
        assert answer.text == "hello", "no result is a text, so it is what the agent said"
        assert [part.raw or part.url for part in answer.files[:1]] == [b"\x89PNG"]
        assert answer.files[1].url == "https://example.com/x"
        assert (await agent.get("t-1")).id == "t-1"
        with pytest.raises(TaskNotFound):
            await agent.get("t-2")
        with pytest.raises(UnsupportedOperation):
            await agent.cancel("t-1")
    sent = asked[0]["params"]["message"]
    assert sent == {
        "role": "user",
        "parts": [{"type": "text", "data": "hi"}, {"type": "image", "data": "AQ=="}],
    }


async def test_a_nexus_stream_is_made_of_readings() -> None:
    asked: list[dict[str, Any]] = []
    async with Client(app=nexus(asked)) as agent:
        stream = agent.stream("hi", poll_interval=0.01)
        events = [event async for event in stream]
        assert stream.answer.state is TaskState.COMPLETED and events
    assert asked[0]["method"] == "message/send"
    assert [body["method"] for body in asked].count("message/send") == 1


# corvid

CORVID_CARD = {
    "name": "Corvid",
    "description": "Answers later.",
    "url": "http://localhost",
    "version": "1.0.0",
    "supportedProtocols": ["a2a"],
    "capabilities": {"streaming": True},
    "skills": [],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
}


async def test_a_corvid_agent_is_asked_until_its_task_has_ended() -> None:
    asked: list[tuple[str, str, Any]] = []
    states = iter(["working", "working", "completed", "completed"])

    def answering(verb: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.startswith("/.well-known"):
            return 200, CORVID_CARD
        asked.append((verb, path, body))
        if path == "/a2a/tasks/nope":
            return 404, {"error": "Task not found"}
        state = next(states)
        said = [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]
        if state == "completed":
            said.append({"role": "agent", "parts": [{"type": "text", "text": "hello"}]})
        return 200, {"id": "c-1", "state": state, "messages": said, "sessionId": "s-1"}

    async with Client(app=app(answering)) as agent:
        answer = await within(agent.send("hi", poll_interval=0.01))
        assert answer.text == "hello" and answer.state is TaskState.COMPLETED
        assert answer.context_id == "s-1"
        with pytest.raises(TaskNotFound):
            await agent.get("nope")
        with pytest.raises(UnsupportedOperation):
            await agent.send("more", task_id="c-1")
    send = {"method": "tasks/send", "params": {"message": "hi"}}
    assert asked[0] == ("POST", "/a2a/tasks/send", send)
    assert {entry[:2] for entry in asked[1:4]} == {("GET", "/a2a/tasks/c-1")}


# rx

RX_CARD = {
    "name": "Rx",
    "description": "Streams.",
    "url": "http://localhost/api/a2a",
    "version": "1.0.0",
    "protocolVersion": "0.3.0",
    "capabilities": {"streaming": True},
    "skills": [],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
}


async def test_an_rx_stream_with_loose_parts_and_a_state_called_started_is_understood() -> None:
    ids = {"taskId": "r-1", "contextId": "x-1"}

    def answering(verb: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.startswith("/.well-known"):
            return 200, RX_CARD
        assert path == "/api/a2a" and body["method"] == "message/stream"
        part = {"kind": "text", "text": "hel", "index": 0, "append": False}
        results = [
            {"kind": "task", "id": "r-1", "contextId": "x-1", "status": {"state": "started"}},
            {"kind": "artifact-update", **ids, "index": 0, "part": part, "timestamp": "now"},
            {
                "kind": "artifact-update",
                **ids,
                "index": 0,
                "part": part | {"text": "lo", "append": True},
            },
            {
                "kind": "status-update",
                **ids,
                "status": {"state": "completed"},
                "final": True,
            },
        ]
        return 200, [{"jsonrpc": "2.0", "id": body["id"], "result": one} for one in results]

    async with Client(app=app(answering)) as agent:
        assert "".join([piece async for piece in agent.stream_text("hi")]) == "hello"


# selectools

SEL_CARD = {
    "name": "Sel",
    "description": "Answers at once.",
    "url": "",
    "version": "1.3.0",
    "protocolVersion": "0.2.6",
    "capabilities": {"streaming": False, "pushNotifications": False},
    "skills": [],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
}


async def test_an_empty_address_is_the_usual_one_of_the_cards_own_origin() -> None:
    def answering(verb: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if verb == "GET":
            return (200, SEL_CARD) if path == "/.well-known/agent.json" else (404, {})
        assert path == "/a2a"
        result = {
            "kind": "task",
            "id": "s1",
            "contextId": "c1",
            "status": {"state": "completed", "timestamp": "2026-01-01T00:00:00+00:00"},
            "artifacts": [
                {"artifactId": "a", "name": "response", "parts": [{"kind": "text", "text": "ok"}]}
            ],
        }
        return 200, {"jsonrpc": "2.0", "id": body["id"], "result": result}

    async with Client(app=app(answering)) as agent:
        assert (await within(agent.send("hi"))).text == "ok"
        stream = agent.stream("hi")
        assert [event async for event in stream] and stream.answer.text == "ok"
