"""Agents called over the responses API, by the package of that API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from harness.waiting import eventually

from tests.openai.chat_site import VIAS, ChatSite, chatting

TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(params=VIAS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatSite]:
    async with chatting(request.param, tmp_path) as site:
        yield site


async def test_a_response_is_the_same_whole_and_in_events(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    whole = await responses.create(model="concierge", input="good day", instructions="Be brief.")
    assert (whole.output_text, whole.status) == ("You said: good day ", "completed")
    stream = await responses.create(model="concierge", input="good day", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    # The package's own reading of a stream comes to the same.
    async with responses.stream(model="concierge", input="good day") as reading:
        assert (await reading.get_final_response()).output_text == whole.output_text


async def test_a_response_continues_the_task_that_asked_or_its_context(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    asked = await responses.create(model="concierge/book", input="a room")
    assert asked.output_text == "Where to?"
    code = await responses.create(
        model="concierge/book", input="Rome", previous_response_id=asked.id
    )
    done = await responses.create(model="concierge/book", input="12", previous_response_id=code.id)
    assert done.output_text == "a room to Rome with 2 signs"
    assert len(await site.tasks()) == 1
    after = await responses.create(model="concierge", input="x", previous_response_id=done.id)
    assert after.output_text == "You said: x "
    new, old = await site.tasks()
    assert new["contextId"] == old["contextId"]
    with pytest.raises(openai.BadRequestError) as raised:
        await responses.create(model="concierge", input="x", previous_response_id="resp_none")
    assert raised.value.param == "previous_response_id"


@pytest.mark.parametrize("in_stream", [False, True])
async def test_calls_and_their_outputs_are_items(site: ChatSite, in_stream: bool) -> None:
    responses: Any = site.openai().responses
    body: Any = {"model": "concierge/look", "input": "the sky", "tools": [TOOL]}
    if in_stream:
        async with responses.stream(**body) as reading:
            asked = await reading.get_final_response()
    else:
        asked = await responses.create(**body)
    (call,) = [item for item in asked.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("look", '{"at":"the sky"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    body["input"] = [{"role": "user", "content": "the sky"}, call.model_dump(), output]
    done = await responses.create(**body)
    assert done.output_text == "It saw rain"


async def test_a_task_that_fails_is_a_failed_response(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    whole = await responses.create(model="concierge/fail", input="x")
    assert whole.status == "failed"
    assert whole.error is not None
    assert whole.error.message == "The kitchen is closed."
    stream = await responses.create(model="concierge/fail", input="x", stream=True)
    assert [event.type async for event in stream][-1] == "response.failed"


async def test_pictures_reach_an_agent(site: ChatSite) -> None:
    content: Any = [
        {"type": "input_text", "text": "how large?"},
        {"type": "input_image", "image_url": "data:image/png;base64,MTIzNDU=", "detail": "auto"},
    ]
    found = await site.openai().responses.create(
        model="concierge/measure", input=[{"role": "user", "content": content}]
    )
    assert found.output_text == '{"bytes":5,"text":"how large?"}'


# Responses that were begun before


async def test_a_response_is_read_again_as_it_was(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    for model, more in (
        ("concierge", {}),
        ("concierge/book", {}),
        ("concierge/look", {"tools": [TOOL]}),
        ("concierge/fail", {}),
    ):
        first = await responses.create(model=model, input="tea", **more)
        again = await responses.retrieve(first.id)
        assert (again.id, again.status, again.model) == (first.id, first.status, model)
        assert again.output_text == first.output_text
        assert again.error == first.error
        calls = [one.call_id for one in first.output if one.type == "function_call"]
        assert [one.call_id for one in again.output if one.type == "function_call"] == calls
        assert (len(calls) == 1) is (model == "concierge/look")


async def test_a_response_in_the_background_is_come_back_for(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    begun = await responses.create(model="concierge", input="good day", background=True)
    assert begun.id.startswith("resp_") and begun.background

    async def is_done() -> Any:
        found = await responses.retrieve(begun.id)
        return found if found.status == "completed" else None

    assert (await eventually(is_done)).output_text == "You said: good day "
    with pytest.raises(openai.BadRequestError) as raised:
        await responses.create(model="concierge", input="x", background=True, stream=True)
    assert raised.value.param == "background"


async def test_a_response_in_the_background_is_canceled_once_and_for_all(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    begun = await responses.create(model="concierge/wait", input="x", background=True)
    assert begun.status in ("queued", "in_progress")
    # The caller has left, and the work goes on.
    await eventually(lambda: has_status(responses, begun.id, "in_progress"))
    ended = await responses.cancel(begun.id)
    assert (ended.id, ended.status) == (begun.id, "cancelled")
    assert (await responses.cancel(begun.id)).status == "cancelled"
    assert (await responses.retrieve(begun.id)).status == "cancelled"
    done = await responses.create(model="concierge", input="x")
    assert (await responses.cancel(done.id)).status == "completed"


async def has_status(responses: Any, id: str, status: str) -> bool:
    return (await responses.retrieve(id)).status == status


async def test_a_response_that_is_not_there_is_told_so(site: ChatSite) -> None:
    responses: Any = site.openai().responses
    for id in ("resp_none", "resp_ctx_none", "none", "resp_" + "0" * 36, "resp_ä"):
        for act in (responses.retrieve, responses.cancel):
            with pytest.raises(openai.NotFoundError) as raised:
                await act(id)
            assert raised.value.code == "response_not_found"
    done = await responses.create(model="concierge", input="x")
    with pytest.raises(openai.BadRequestError):
        await responses.retrieve(done.id, stream=True)
    assert (await site.http.delete(f"/v1/responses/{done.id}")).status_code == 405
    assert (await site.http.get(f"/v1/responses/{done.id}/cancel")).status_code == 405
