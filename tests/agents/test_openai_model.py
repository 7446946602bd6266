"""The client of chat completions, against a server on a socket that speaks them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import app_of, hosting
from harness.waiting import within
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dragoman.agents import openai_model
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import (
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ReplyChunk,
    TokenUsage,
    joined_reply,
)
from dragoman.agents.openai_model import OpenAIModel
from dragoman.agents.tools import Tool, ToolCall

ASKED = ModelRequest(
    [
        ModelMessage("system", "Be brief."),
        ModelMessage("user", "hi"),
        ModelMessage(
            "assistant", "", [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "add", broken="{")]
        ),
        ModelMessage("tool", "2", call_id="c1"),
    ],
    [Tool(name="add", description="Adds.", schema={"type": "object", "properties": {"a": {}}})],
    {"temperature": 0},
)
KEY = "sk-canary-0123456789abcdef"


class Server:
    """Answers with what it is given, one after the other, and keeps what it was asked."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def post(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        self.headers.append(dict(request.headers))
        return self.answers.pop(0)


@asynccontextmanager
async def serving(*answers: Response) -> AsyncGenerator[Server]:
    server = Server(*answers)
    app = Starlette(routes=[Route("/v1/chat/completions", server.post, methods=["POST"])])
    async with hosting(app, lifespan="off") as url:
        server.url = f"{url}/v1"
        yield server


def streamed(*events: Any, done: bool = True, cut: int = 7) -> StreamingResponse:
    """Return a stream of events, in pieces that respect no line."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    body = f": hello\r\n\r\n{text}{'data: [DONE]' if done else ''}\n\n".encode()

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(body), cut):
            yield body[start : start + cut]

    return StreamingResponse(pieces(), media_type="text/event-stream")


def delta(finish: str | None = None, **more: Any) -> Any:
    return {"choices": [{"index": 0, "delta": more, "finish_reason": finish}]}


def piece(index: int, **more: Any) -> Any:
    return delta(tool_calls=[{"index": index, **more}])


async def chunks_of(model: OpenAIModel) -> list[ReplyChunk]:
    return [chunk async for chunk in model.stream(ASKED)]


async def test_a_whole_answer_is_read_and_the_request_is_as_the_interface_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    answer = {
        "choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    async with serving(JSONResponse(answer)) as server:
        model = OpenAIModel("m", url=server.url)
        reply = await within(model.complete(ASKED))
        await model.close()
    assert reply.tool_calls == [ToolCall("x", "add", {"a": 2})]
    assert reply.usage == TokenUsage(7, 3) and reply.text == ""
    (body,) = server.bodies
    assert body["model"] == "m" and body["temperature"] == 0 and "stream" not in body
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool"]
    first, second = body["messages"][2]["tool_calls"]
    assert first["function"] == {"name": "add", "arguments": '{"a":1}'}
    assert second["function"]["arguments"] == "{"
    assert body["messages"][3]["tool_call_id"] == "c1"
    (tool,) = body["tools"]
    assert tool["type"] == "function" and tool["function"]["name"] == "add"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(model) + str(vars(model))


async def test_a_stream_is_put_together_whatever_its_pieces_are() -> None:
    events = [
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo "),
        piece(0, id="a", function={"name": "add", "arguments": ""}),
        piece(1, id="b", function={"name": "add", "arguments": '{"a"'}),
        piece(0, function={"arguments": '{"a": 1}'}),
        piece(1, function={"arguments": ": 2}"}),
        piece(2, function={"name": "add", "arguments": "[]"}),
        delta("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ]
    async with serving(streamed(*events)) as server:
        model = OpenAIModel("m", url=server.url)
        chunks = await within(chunks_of(model))
        await model.close()
    assert [chunk.text for chunk in chunks if chunk.text] == ["Hel", "lo "]
    reply = joined_reply(chunks)
    assert reply.tool_calls == [
        ToolCall("a", "add", {"a": 1}),
        ToolCall("b", "add", {"a": 2}),
        ToolCall("call_2", "add", broken="[]"),
    ]
    assert reply.usage == TokenUsage(5, 2)
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


async def test_the_key_is_read_from_a_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "key"
    answer = {"choices": [{"message": {"content": "ok"}}]}
    async with serving(JSONResponse(answer), JSONResponse(answer)) as server:
        model = OpenAIModel("m", url=server.url, key_file=file)
        with pytest.raises(ModelFailed, match="key file"):
            await model.complete(ASKED)
        for key in ("one", "two"):
            file.write_text(f"{key}\n")
            assert (await within(model.complete(ASKED))).text == "ok"
        await model.close()
    assert [h["authorization"] for h in server.headers] == ["Bearer one", "Bearer two"]


async def test_a_server_that_puts_us_off_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_model, "PAUSE", 0.001)
    good = JSONResponse({"choices": [{"message": {"content": "ok"}}]})
    busy = Response("busy", 429, {"retry-after": "0"})
    async with serving(Response("no", 503), busy, good) as server:
        model = OpenAIModel("m", url=server.url)
        assert (await within(model.complete(ASKED))).text == "ok"
        await model.close()
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Response(f"bad key {KEY}", 401), "the server says 401; check the key"),
        (Response("x", 400), "the server says 400"),
        (JSONResponse({"choices": []}), "no choices"),
        (Response("{"), "not a chat completion"),
        (JSONResponse([]), "not a chat completion"),
    ],
)
async def test_an_answer_of_no_use_is_one_failure_that_quotes_nobody(
    answer: Response, told: str
) -> None:
    async with serving(answer) as server:
        model = OpenAIModel("m", url=server.url)
        with pytest.raises(ModelFailed, match=told) as raised:
            await within(model.complete(ASKED))
        await model.close()
    assert KEY not in str(raised.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_breaks_off_is_a_failure(done: bool) -> None:
    async with serving(streamed(delta(content="Hel"), done=done)) as server:
        model = OpenAIModel("m", url=server.url)
        with pytest.raises(ModelFailed, match="broke off"):
            await within(chunks_of(model))
        await model.close()


async def test_nobody_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_model, "PAUSE", 0.001)
    async with serving() as server:
        url = server.url
    model = OpenAIModel("m", url=url)
    with pytest.raises(ModelFailed, match="refused"):
        await within(model.complete(ASKED))
    await model.close()


async def test_a_loop_speaks_to_it() -> None:
    from dragoman import Client

    async with serving(streamed(delta(content="Hello."), delta("stop"))) as server:
        loop = AgentLoop(OpenAIModel("m", url=server.url))
        app = app_of(loop.agent("Loop", "Thinks."))
        async with Client(app=app) as client:
            assert (await within(client.send("hi"))).text == "Hello."
        await loop.close()
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
