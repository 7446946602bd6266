"""Agents called as models, by the package that chat programs are made with."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from harness.serving import client, hosting
from harness.waiting import eventually

from dragoman import AgentLoop, App
from dragoman.agents.internal_events import InternalEvents
from dragoman.agents.scripted import ScriptedModel
from dragoman.config import load_settings
from dragoman.openai.part import OpenAIPart
from tests.openai.chat_site import VIAS, ChatSite, answered, chatting, said


@pytest.fixture(params=VIAS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatSite]:
    async with chatting(request.param, tmp_path) as site:
        yield site


async def test_models_are_agents_and_their_skills(site: ChatSite) -> None:
    models = {model.id: model async for model in site.openai().models.list()}
    assert {"concierge", "concierge/talk", "concierge/book"} <= models.keys()
    assert models["concierge"].object == "model"
    one = await site.openai().models.retrieve("concierge/talk")
    assert one.id == "concierge/talk"
    with pytest.raises(openai.NotFoundError) as raised:
        await site.openai().models.retrieve("nobody")
    assert raised.value.code == "model_not_found"


async def test_an_answer_is_the_same_whole_and_in_pieces(site: ChatSite) -> None:
    whole = await site.ask("concierge", said("good day"))
    assert (whole.message.content, whole.finish_reason) == ("You said: good day ", "stop")
    stream = await site.openai().chat.completions.create(
        model="concierge", messages=[{"role": "user", "content": "good day"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == whole.message.content
    assert len([text for text in texts if text]) > 1 or len(chunks) == 3
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_skill_that_takes_no_text_reads_a_json_object(site: ChatSite) -> None:
    done = await site.ask("concierge/reserve", said('{"seats": 2, "rows": ["a", "b"]}'))
    assert json.loads(done.message.content) == {"seats": 2, "rows": ["a", "b"]}
    with pytest.raises(openai.APIStatusError) as raised:
        await site.ask("concierge/reserve", said("two seats, please"))
    assert 'write it as JSON: {"seats": …, "rows": …}' in raised.value.message
    with pytest.raises(openai.APIStatusError) as raised:
        await site.ask("concierge/reserve", said('{"seats": "many", "rows": []}'))
    assert "seats" in raised.value.message and "write it" not in raised.value.message


async def test_a_question_is_a_message_and_the_next_message_its_answer(site: ChatSite) -> None:
    chat = [{"role": "system", "content": "Be brief."}, said("a room")]
    for answer in ("Rome", "1234"):
        question = await site.ask("concierge/book", *chat)
        assert question.finish_reason == "stop"
        chat += [answered(question.message.content), said(answer)]
    assert [one["content"] for one in chat[2::2]] == ["Where to?", "Your code?"]
    done = await site.ask("concierge/book", *chat)
    assert done.message.content == "a room to Rome with 4 signs"
    (task,) = await site.tasks()
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    # The chat goes on: nothing waits, so a new task begins.
    again = await site.ask("concierge/book", *chat, answered(done.message.content), said("a car"))
    assert again.message.content == "Where to?"
    assert len(await site.tasks()) == 2


async def test_an_answer_goes_to_the_chat_that_was_asked(site: ChatSite) -> None:
    for what in ("a room", "a car"):
        assert (await site.ask("concierge/book", said(what))).message.content == "Where to?"
    asked = answered("Where to?")
    code = await site.ask("concierge/book", said("a room"), asked, said("Rome"))
    assert code.message.content == "Your code?"
    # Another beginning, another question, another answer before: none of these is that chat.
    other = [said("a boat"), asked, said("Rome")]
    assert (await site.ask("concierge/book", *other)).message.content == "Where to?"
    other = [said("a car"), answered("Which one?"), said("Rome")]
    assert (await site.ask("concierge/book", *other)).message.content == "Where to?"
    other = [said("a room"), asked, said("Oslo"), answered("Your code?"), said("1")]
    assert (await site.ask("concierge/book", *other)).message.content == "Where to?"
    same = [said("a room"), asked, said("Rome"), answered("Your code?"), said("1")]
    assert (
        await site.ask("concierge/book", *same)
    ).message.content == "a room to Rome with 1 signs"


async def test_a_named_conversation_is_one_context(site: ChatSite) -> None:
    named = {"extra_headers": {"X-Conversation-Id": "c-1"}}
    assert (await site.ask("concierge/book", said("a room"), **named)).message.content
    # Of a conversation with a name, the last message is enough.
    code = await site.ask("concierge/book", said("Rome"), **named)
    assert code.message.content == "Your code?"
    body = {"extra_body": {"metadata": {"conversation_id": "c-1"}}}
    done = await site.ask("concierge/book", said("123"), **body)
    assert done.message.content == "a room to Rome with 3 signs"
    assert {task["contextId"] for task in await site.tasks()} == {"c-1"}


async def test_the_chats_of_a_user_are_one_context_without_the_name(site: ChatSite) -> None:
    for user in ("ada", "ada", "bob"):
        await site.ask("concierge", said("x"), user=user)
    bob, *ada = [task["contextId"] for task in await site.tasks()]
    assert ada[0] == ada[1] != bob
    assert "ada" not in ada[0]


async def test_an_agent_may_read_what_its_chat_had_before(site: ChatSite) -> None:
    chat = [{"role": "developer", "content": "Be brief."}, said("one"), answered("two")]
    found = await site.ask("concierge/recall", *chat, said("three"))
    for text in ("Be brief.", "one", "two"):
        assert f'"text":"{text}"' in found.message.content
    assert '"text":"three"' not in found.message.content


TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object"}},
}


async def test_a_tool_of_the_program_is_called_and_its_result_goes_back(site: ChatSite) -> None:
    chat: list[Any] = [said("the sky")]
    asked = await site.ask("concierge/look", *chat, tools=[TOOL])
    assert asked.finish_reason == "tool_calls"
    (call,) = asked.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("look", '{"at":"the sky"}')
    chat += [
        asked.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    done = await site.ask("concierge/look", *chat, tools=[TOOL])
    assert done.message.content == "It saw rain"
    with pytest.raises(openai.BadRequestError) as raised:
        await site.ask("concierge/look", *chat, tools=[TOOL])
    assert raised.value.code == "unknown_tool_call"
    # A program without the tool is told in words.
    asked = await site.ask("concierge/look", said("the sea"))
    assert "look" in asked.message.content
    assert not asked.message.tool_calls


async def test_results_of_several_calls_go_to_their_calls(site: ChatSite) -> None:
    asked = await site.ask("concierge/compare", said("sky sea"), tools=[TOOL])
    calls = {call.function.arguments: call.id for call in asked.message.tool_calls}
    results = [
        {"role": "tool", "tool_call_id": calls[f'{{"at":"{place}"}}'], "content": f"the {place}"}
        for place in ("sea", "sky")
    ]
    chat = [said("sky sea"), asked.message.model_dump(), *results]
    done = await site.ask("concierge/compare", *chat, tools=[TOOL])
    assert done.message.content == "the sky and the sea"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_shown_before_a_question_is_not_shown_again(
    site: ChatSite, stream: bool
) -> None:
    async def ask(*messages: Any) -> str:
        if not stream:
            return (await site.ask("concierge/draft", *messages)).message.content
        body: Any = {"model": "concierge/draft", "messages": messages, "stream": True}
        chunks = await site.openai().chat.completions.create(**body)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    first = await ask(said("A letter"))
    assert first == "A letter, a draft.\nWhat next?"
    assert await ask(said("A letter"), answered(first), said("send it")) == "Then send it."
    assert len(await site.tasks()) == 1


async def test_pictures_and_files_reach_agents_that_take_them(site: ChatSite) -> None:
    picture = "data:image/png;base64," + base64.b64encode(b"12345").decode()
    parts: list[Any] = [
        {"type": "text", "text": "how large?"},
        {"type": "image_url", "image_url": {"url": picture}},
    ]
    found = await site.ask("concierge/measure", said(parts))
    assert found.message.content == '{"bytes":5,"text":"how large?"}'
    file = {"filename": "a.pdf", "file_data": base64.b64encode(b"123").decode()}
    found = await site.ask("concierge/measure", said([{"type": "file", "file": file}]))
    assert found.message.content == '{"bytes":3,"text":""}'
    drawn = await site.ask("concierge/draw", said("x"))
    assert drawn.message.content == "Here:\n![ab.png](data:image/png;base64,cG5n)"


async def test_a_task_that_fails_is_an_error_that_is_not_repeated(site: ChatSite) -> None:
    retrying = site.openai().with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError) as raised:
        await retrying.chat.completions.create(
            model="concierge/fail", messages=[{"role": "user", "content": "x"}]
        )
    assert raised.value.code == "task_failed"
    assert "The kitchen is closed." in str(raised.value)
    assert len(await site.tasks()) == 1
    stream = await retrying.chat.completions.create(
        model="concierge/fail", messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(openai.APIError, match=r"The kitchen is closed\."):
        async for _ in stream:
            pass


@pytest.mark.parametrize("stream", [True, False])
async def test_the_task_of_a_program_that_leaves_is_canceled(site: ChatSite, stream: bool) -> None:
    body: Any = {"model": "concierge/wait", "messages": [said("x")], "stream": stream}

    async def ask() -> None:
        answer = await site.openai().chat.completions.create(**body)
        async for _ in answer:
            pass

    async def state() -> str:
        tasks = await site.tasks()
        return tasks[0]["status"]["state"] if tasks else ""

    async def is_working() -> bool:
        return await state() == "TASK_STATE_WORKING"

    async def is_canceled() -> bool:
        return await state() == "TASK_STATE_CANCELED"

    asking = asyncio.create_task(ask())
    await eventually(is_working)
    asking.cancel()
    await eventually(is_canceled)


async def test_a_request_sent_twice_with_one_key_is_one_task(site: ChatSite) -> None:
    once = {"extra_headers": {"Idempotency-Key": "k-1"}}
    first = await site.ask("concierge/book", said("a room"), **once)
    again = await site.ask("concierge/book", said("a room"), **once)
    assert first.message.content == again.message.content == "Where to?"
    assert len(await site.tasks()) == 1
    chat = [said("a room"), answered("Where to?"), said("Rome")]
    once = {"extra_headers": {"Idempotency-Key": "k-2"}}
    first = await site.ask("concierge/book", *chat, **once)
    again = await site.ask("concierge/book", *chat, **once)
    assert first.message.content == again.message.content == "Your code?"
    assert len(await site.tasks()) == 1


async def test_the_use_of_tokens_is_told_where_the_agent_tells_it(tmp_path: Path) -> None:
    model = ScriptedModel("Good day.", "Good day.", "Good day.", "Good day.")
    loop = AgentLoop(model, hooks=[InternalEvents(to_callers=True)])
    settings = load_settings({}, store="memory:", openai=True)
    app = App(loop.agent("Loop", "Thinks."), settings=settings, parts=[OpenAIPart()])
    async with hosting(app) as url, client(url) as http:
        chat = ChatSite(url, http, app).openai()
        body: Any = {"model": "loop", "messages": [said("one two three")]}
        whole = await chat.chat.completions.create(**body)
        assert whole.choices[0].message.content == "Good day."
        assert whole.usage is not None
        assert whole.usage.completion_tokens > 0
        assert whole.usage.total_tokens > whole.usage.completion_tokens
        for options in ({"include_usage": True}, {}):
            stream = await chat.chat.completions.create(**body, stream=True, stream_options=options)
            chunks = [chunk async for chunk in stream]
            told = [chunk.usage for chunk in chunks if chunk.usage is not None]
            assert told == ([whole.usage] if options else [])
            assert all("llm-call" not in chunk.model_dump_json() for chunk in chunks)
        response = await chat.responses.create(model="loop", input="one two three")
        assert response.usage is not None
        assert response.usage.output_tokens == whole.usage.completion_tokens
