"""Who may chat, what is refused and how, and that the paths of REST 0.3 are as they were."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from harness.serving import client, hosting, serving
from harness.waiting import eventually

from dragoman import Agent, App
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_of
from dragoman.gateway.registry.registration import AgentChanges, Registration
from dragoman.openai.part import OpenAIPart
from dragoman.security.keys import key_file
from tests.openai.chat_site import VIAS, ChatSite, Via, answered, chatting, concierge, said

ADA, BOB = "ada-0123456789abcdef0123456789", "bob-0123456789abcdef0123456789"
TOKENS = f'''
[ada]
token = "{ADA}"
scopes = ["vip"]

[bob]
token = "{BOB}"
'''
PATHS = ("/v1/models", "/v1/chat/completions", "/v1/responses")


async def test_it_is_off_unless_a_setting_turns_it_on(tmp_path: Path) -> None:
    async with chatting("served", tmp_path, openai=False) as site:
        for path in PATHS:
            assert (await site.http.get(path)).status_code == 404
            assert (await site.http.post(path, json={})).status_code == 404


async def test_the_paths_of_rest_0_3_are_as_they_were(tmp_path: Path) -> None:
    message = {"role": "ROLE_USER", "messageId": "m", "content": [{"text": "hi"}]}
    answers: list[list[Any]] = []
    for is_on in (False, True):
        folder = tmp_path / str(is_on)
        folder.mkdir()
        async with chatting("served", folder, openai=is_on) as site:
            sent = await site.http.post("/v1/message:send", json={"request": message})
            assert sent.status_code == 200, sent.text
            task = sent.json()["task"]["id"]
            read = await site.http.get(f"/v1/tasks/{task}")
            assert read.json()["id"] == task
            others = ("/v1/card", "/v1/tasks/none", "/v1", "/v1/chat")
            found = [await site.http.get(path) for path in others]
            answers.append([(one.status_code, one.text) for one in found])
    assert answers[0] == answers[1]


def tokens(folder: Path) -> dict[str, Any]:
    file = folder / "tokens.toml"
    file.write_text(TOKENS)
    file.chmod(0o600)
    return {"auth": "bearer", "auth_tokens": str(file)}


@pytest.mark.parametrize("via", VIAS)
async def test_each_caller_has_its_own_models_and_tasks(via: Via, tmp_path: Path) -> None:
    async with chatting(via, tmp_path, **tokens(tmp_path)) as site:
        ada: Any = site.openai(ADA)
        bob: Any = site.openai(BOB)
        with pytest.raises(openai.AuthenticationError, match=r"invalid|required"):
            await site.openai("wrong").models.list()
        seen = {key: {one.id async for one in site.openai(key).models.list()} for key in (ADA, BOB)}
        # What a gateway forwards is for the agent behind it to refuse.
        assert seen[ADA] - seen[BOB] == ({"concierge/upgrade"} if via == "served" else set())
        asked: Any = await ada.responses.create(model="concierge/book", input="a room")
        call: Any = await ada.chat.completions.create(
            model="concierge/look",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "look"}}],
        )
        call_id = call.choices[0].message.tool_calls[0].id
        # To another caller, the tasks of this one are as those that never were.
        for previous in (asked.id, "resp_" + "0" * 36):
            with pytest.raises(openai.BadRequestError) as raised:
                await bob.responses.create(
                    model="concierge/book", input="Rome", previous_response_id=previous
                )
            assert raised.value.code == "previous_response_not_found"
        for act in (bob.responses.retrieve, bob.responses.cancel):
            told: list[Any] = []
            for id in (asked.id, "resp_" + "0" * 36):
                with pytest.raises(openai.NotFoundError) as missing:
                    await act(id)
                told.append(str(missing.value.body).replace(id, "ID"))
            assert told[0] == told[1]
        assert (await ada.responses.retrieve(asked.id)).output_text == "Where to?"
        result: Any = [said("x"), {"role": "tool", "tool_call_id": call_id, "content": "rain"}]
        with pytest.raises(openai.BadRequestError) as raised:
            await bob.chat.completions.create(model="concierge/look", messages=result)
        assert raised.value.code == "unknown_tool_call"
        chat: Any = [said("a room"), answered("Where to?"), said("Rome")]
        new = await bob.chat.completions.create(model="concierge/book", messages=chat)
        assert new.choices[0].message.content == "Where to?"
        same = await ada.responses.create(
            model="concierge/book", input="Rome", previous_response_id=asked.id
        )
        assert same.output_text == "Your code?"


@pytest.mark.parametrize("is_on", [True, False])
async def test_an_api_key_is_a_bearer_token_where_chat_programs_are_served(
    is_on: bool, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    key = key_file.create(keys, "ada", scopes=[], tenant=None, lifetime=None).text
    async with chatting("served", tmp_path, auth="api-key", keys=str(keys), openai=is_on) as site:
        card = {"authorization": f"Bearer {key}"}
        for headers, is_known in ((card, is_on), ({"x-api-key": key}, True)):
            found = await site.http.get("/tasks", headers={"a2a-version": "1.0", **headers})
            assert found.status_code == (200 if is_known else 401)
        for wrong in (key[:-1], f"{key}x", "x"):
            headers = {"authorization": f"Bearer {wrong}"}
            assert (await site.http.get("/v1/models", headers=headers)).status_code == 401
        both = [("authorization", f"Bearer {key}")] * 2
        assert (await site.http.get("/v1/models", headers=both)).status_code == 401


async def test_a_program_that_asks_too_often_is_told_so_in_words(tmp_path: Path) -> None:
    """By the app, and by the connection that remembers it."""
    async with chatting("served", tmp_path, rate_limit="1/60s") as site:
        await site.openai().models.retrieve("concierge")
        for _ in range(3):
            with pytest.raises(openai.RateLimitError, match="Too many") as refused:
                await site.openai().models.retrieve("concierge")
            assert refused.value.type == "rate_limit_error"
            assert refused.value.code == "too_many_requests"


async def test_an_agent_for_some_callers_is_no_model_of_others(tmp_path: Path) -> None:
    async with (
        chatting("gateway", tmp_path, **tokens(tmp_path)) as site,
        serving(concierge()) as private,
    ):
        registry = gateway_of(site.app).registry
        agent = await registry.register(Registration(url=private.url, callers=["token:ada"]))
        hidden, home = agent.name, f"/a2a/{agent.name}/v1"
        seen = {key: {one.id async for one in site.openai(key).models.list()} for key in (ADA, BOB)}
        assert seen[ADA] - seen[BOB] > {hidden}
        chat: Any = {"messages": [said("x")]}
        found = await site.openai(ADA).chat.completions.create(model=hidden, **chat)
        assert found.choices[0].message.content == "You said: x "
        for model in (hidden, "nobody"):
            with pytest.raises(openai.NotFoundError) as raised:
                await site.openai(BOB).chat.completions.create(model=model, **chat)
            assert raised.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await site.openai(BOB, home).chat.completions.create(model=hidden, **chat)
        at_home = site.openai(ADA, home)
        assert {one.id async for one in at_home.models.list()} <= seen[ADA] - seen[BOB]
        found = await at_home.chat.completions.create(model=hidden, **chat)
        assert found.choices[0].message.content == "You said: x "


async def test_an_agent_that_gets_no_tasks_is_not_listed(tmp_path: Path) -> None:
    async with chatting("gateway", tmp_path) as site, serving(concierge()) as new:
        registry = gateway_of(site.app).registry
        agent = await registry.register(Registration(url=new.url, name="next", is_paused=True))
        assert agent.name not in {one.id async for one in site.openai().models.list()}
        await registry.update(agent.id, AgentChanges(is_paused=False))
        assert agent.name in {one.id async for one in site.openai().models.list()}


async def test_at_the_address_of_an_agent_there_is_no_other(tmp_path: Path) -> None:
    other = Agent("Other", "Is another one.")

    @other.skill
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    settings = load_settings({}, store="memory:", openai=True)
    app = App(concierge(), other, settings=settings, parts=[OpenAIPart()])
    async with hosting(app) as url, client(url) as http:
        site = ChatSite(url, http, app)
        at_root = {one.id async for one in site.openai().models.list()}
        assert {"concierge", "other", "other/echo"} < at_root
        home = site.openai(base="/agents/other/v1")
        assert [one.id async for one in home.models.list()] == ["other", "other/echo"]
        chat: Any = {"messages": [said("x")]}
        found = await home.chat.completions.create(model="other", **chat)
        assert found.choices[0].message.content == "x"
        with pytest.raises(openai.NotFoundError):
            await home.chat.completions.create(model="concierge", **chat)


HELLO = {"model": "concierge", "messages": [said("x")]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
BAD: list[tuple[str, Any, str | None]] = [
    ("no JSON", b"{", None),
    ("a list", [], "body"),
    ("nothing", {}, "messages"),
    ("no model", {"messages": [said("x")]}, "model"),
    ("a number for a model", HELLO | {"model": 3}, "model"),
    ("no messages", HELLO | {"messages": []}, "messages"),
    ("messages that are a text", HELLO | {"messages": "x"}, "messages"),
    ("a message that is a text", HELLO | {"messages": ["x"]}, "messages[0]"),
    ("a stranger", HELLO | {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
    ("no content", HELLO | {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("an empty message", HELLO | {"messages": [said("")]}, "messages"),
    ("the assistant last", HELLO | {"messages": [said("x"), answered("y")]}, "messages"),
    ("only a system", HELLO | {"messages": [{"role": "system", "content": "x"}]}, "messages"),
    ("no base64", HELLO | {"messages": [said([IMAGE])]}, "messages[0].content[0].image_url.url"),
    ("a file elsewhere", HELLO | {"messages": [said([FILE])]}, "messages[0].content[0].file"),
    (
        "an unknown part",
        HELLO | {"messages": [said([{"type": "x"}])]},
        "messages[0].content[0].type",
    ),
    ("several answers", HELLO | {"n": 2}, "n"),
    ("a text for a flag", HELLO | {"stream": "yes"}, "stream"),
    ("a number for a flag", HELLO | {"stream": 1}, "stream"),
    ("tools that are none", HELLO | {"tools": "x"}, "tools"),
    ("a tool without a name", HELLO | {"tools": [{"type": "function"}]}, "tools[0].name"),
    ("too many tools", HELLO | {"tools": [{"type": "x"}] * 129}, "tools"),
    ("a bad conversation", HELLO | {"conversation": "a b"}, "conversation"),
    ("bad metadata", HELLO | {"metadata": 1}, "metadata"),
]


async def test_bad_requests_are_refused_in_the_shape_of_that_api(tmp_path: Path) -> None:
    async with chatting("served", tmp_path) as site:
        for name, body, field in BAD:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = {"content-type": "application/json"}
            response = await site.http.post("/v1/chat/completions", content=content, headers=kind)
            assert response.status_code == 400, name
            error = response.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}, name
            assert (error["type"], error["param"]) == ("invalid_request_error", field), name
        for body in (
            {"model": "concierge"},
            {"model": "concierge", "input": [{"type": "item_reference"}]},
            {"model": "concierge", "input": [{"type": "function_call_output", "output": "x"}]},
            {"model": "concierge", "input": "x", "background": True, "stream": True},
        ):
            response = await site.http.post("/v1/responses", json=body)
            assert response.status_code == 400, body
        for path in PATHS[1:]:
            assert (await site.http.get(path)).status_code == 405
            plain = await site.http.post(path, content=b"x", headers={"content-type": "text/html"})
            assert plain.status_code == 400
            assert plain.json()["error"]["code"] == "content_type_not_supported"
            headers = {"Idempotency-Key": "a b"}
            body = HELLO | {"input": "x"}
            assert (await site.http.post(path, json=body, headers=headers)).status_code == 400
        refused = await site.http.post(
            "/v1/chat/completions",
            json=HELLO
            | {
                "messages": [
                    said([IMAGE | {"image_url": {"url": "data:application/zip;base64,eA=="}}])
                ]
            },
        )
        assert refused.json()["error"]["code"] == "content_type_not_supported"
        assert await site.tasks() == []


async def test_a_task_may_go_on_without_the_program_that_began_it(tmp_path: Path) -> None:
    async with chatting("served", tmp_path, openai_cancel_on_disconnect=False) as site:

        async def ask() -> None:
            await site.ask("concierge/wait", said("x"))

        async def is_working() -> bool:
            tasks = await site.tasks()
            return bool(tasks) and tasks[0]["status"]["state"] == "TASK_STATE_WORKING"

        asking = asyncio.create_task(ask())
        await eventually(is_working)
        asking.cancel()
        await eventually(lambda: len(site.app.site.streams) == 0)
        assert await is_working()


async def test_a_question_is_answered_after_a_restart(tmp_path: Path) -> None:
    async with chatting("served", tmp_path) as site:
        await site.ask("concierge/book", said("a room"))
    async with chatting("served", tmp_path) as site:
        code = await site.ask("concierge/book", said("a room"), answered("Where to?"), said("Rome"))
        assert code.message.content == "Your code?"


async def test_programs_hear_that_the_server_stops(tmp_path: Path) -> None:
    async with chatting("served", tmp_path) as site:
        asking = [
            asyncio.create_task(site.http.post("/v1/chat/completions", json=body))
            for body in (
                {"model": "concierge/wait", "messages": [said("x")], "stream": stream}
                for stream in (False, True)
            )
        ]

        async def are_working() -> bool:
            states = [task["status"]["state"] for task in await site.tasks()]
            return states == ["TASK_STATE_WORKING"] * 2

        await eventually(are_working)
        site.app.end_streams()
        whole, stream = await asyncio.gather(*asking)
        assert whole.status_code == 503
        assert whole.json()["error"]["type"] == "server_error"
        assert '"type":"server_error"' in stream.text
        assert {task["status"]["state"] for task in await site.tasks()} == {"TASK_STATE_WORKING"}
