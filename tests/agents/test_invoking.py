"""A loop without a server: invoked, waited for, canceled, and watched from inside."""

import asyncio
from typing import Any

import pytest
from harness.serving import app_of
from harness.waiting import within

from dragoman import Client, TaskState
from dragoman.agents.hooks import Redaction
from dragoman.agents.internal_events import INTERNAL_EVENT, InternalEvent, InternalEvents
from dragoman.agents.loop import AgentLoop
from dragoman.agents.memory import ContextMemory
from dragoman.agents.models import ModelRequest
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall
from dragoman.errors import ConfigError
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.task import Task


def heard(request: ModelRequest) -> str:
    return " | ".join(said.text for said in request.messages)


async def test_a_message_becomes_a_stream_of_a2a_events() -> None:
    """R-080."""
    loop = AgentLoop(ScriptedModel(heard), memory=ContextMemory())
    try:
        events = [event async for event in loop.invoke("hello")]
        assert isinstance(events[0], Task)
        assert any(isinstance(event, ArtifactUpdate) for event in events)
        assert isinstance(events[-1], StatusUpdate)
        assert events[-1].status.state is TaskState.COMPLETED
        stream = loop.invoke("again", context_id=events[0].context_id)
        async for _ in stream:
            pass
        assert stream.answer.text == "hello | hello | again"
    finally:
        await loop.close()


async def test_an_invoked_task_is_canceled_by_its_id() -> None:
    """R-080: what the model does then is stopped."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    loop = AgentLoop(ScriptedModel(ToolCall("c", "hang"), "never"), tools=[hang])
    try:
        stream = loop.invoke("x")
        first = await within(anext(aiter(stream)))
        assert isinstance(first, Task)
        await within(begun.wait())
        task = await within(loop.cancel(first.id))
        assert task.status.state is TaskState.CANCELED
        await within(stopped.wait())
    finally:
        await loop.close()


async def test_code_that_is_not_async_waits_for_the_whole_answer() -> None:
    """R-080: from one call to the next the conversation is kept, and other loops are refused."""
    loop = AgentLoop(ScriptedModel(heard), memory=ContextMemory())
    try:
        first = await asyncio.to_thread(loop.invoke_sync, "one")
        assert first.text == "one"
        second = await asyncio.to_thread(loop.invoke_sync, "two", context_id=first.context_id)
        assert second.text == "one | one | two"
        with pytest.raises(ConfigError, match="not both"):
            await anext(aiter(loop.invoke("three")))
    finally:
        await loop.close()


def fails() -> str:
    """Fails."""
    raise ConnectionError("no line")


def watched(**more: Any) -> AgentLoop:
    model = ScriptedModel([ToolCall("c1", "fails"), ToolCall("c2", "add", {"a": 1})], "Done.")
    return AgentLoop(model, tools=[fails, add], hooks=[InternalEvents(**more), Redaction()])


def add(a: int) -> int:
    """Adds one."""
    return a + 1


async def shown(loop: AgentLoop, metadata: dict[str, Any]) -> list[Any]:
    """Return the internal events that a caller sees, in its stream or in the task."""
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        stream = client.stream("x", metadata=metadata)
        said = [
            part
            async for event in stream
            if isinstance(event, StatusUpdate) and event.status.message is not None
            for part in event.status.message.parts
        ]
        assert stream.task is not None
        task = await client.get(stream.task.id)
        said += [part for message in task.history for part in message.parts]
    return [part.data for part in said if part.media_type == INTERNAL_EVENT]


async def test_an_observer_sees_model_and_tool_calls_and_callers_do_not() -> None:
    """R-082: but for those who ask, of an author who lets them."""
    seen: list[InternalEvent] = []
    asking = {"internalEvents": True}
    assert await shown(watched(watch=seen.append), asking) == []
    kinds = [(event.kind, event.tool, event.success) for event in seen]
    assert (kinds[0], kinds[-1]) == (("llm-call", "", True), ("llm-call", "", True))
    assert sorted(kinds[1:-1]) == [
        ("tool-complete", "add", True),
        ("tool-complete", "fails", False),
        ("tool-start", "add", True),
        ("tool-start", "fails", True),
    ]
    assert await shown(watched(to_callers=True), {}) == []
    told = await shown(watched(to_callers=True), asking)
    assert {one["kind"] for one in told} == {"llm-call", "tool-start", "tool-complete"}
    assert "no line" not in str(told)


async def test_an_observer_that_raises_changes_nothing() -> None:
    """R-082."""
    seen: list[InternalEvent] = []

    async def watch(event: InternalEvent) -> None:
        seen.append(event)
        raise RuntimeError("no")

    model = ScriptedModel("Fine.")
    loop = AgentLoop(model, hooks=[InternalEvents(watch)])
    try:
        stream = loop.invoke("x")
        chunks = [event async for event in stream if isinstance(event, ArtifactUpdate)]
    finally:
        await loop.close()
    assert stream.answer.text == "Fine." and chunks
    assert [event.kind for event in seen] == ["llm-call"]
