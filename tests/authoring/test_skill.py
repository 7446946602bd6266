"""A plain function is a skill: of every kind, with every result; and which one a message is for."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from harness.serving import Site, message, serving
from harness.waiting import within

from dragoman import Agent, Message, Part, Turn
from tests.authoring.one_skill import Order, Point, made, plain, raw, result, shown

# Kinds of functions


async def awaited(text: str) -> str:
    return f"awaited {text}"


def chunks(text: str) -> Iterator[str]:
    yield "chunk "
    yield text


async def async_chunks(text: str) -> AsyncIterator[str]:
    yield "async "
    yield text


@pytest.mark.parametrize("function", [plain, awaited, chunks, async_chunks])
async def test_every_kind_of_function_is_a_skill(function: Callable[..., Any]) -> None:
    task = await result(function, "x")
    text = "".join(part["text"] for part in shown(task))
    assert text == {"plain": "plain x", "awaited": "awaited x", "chunks": "chunk x"}.get(
        function.__name__, "async x"
    )
    assert task["artifacts"][0]["name"] == function.__name__


@pytest.mark.parametrize("function", [chunks, async_chunks])
async def test_each_yield_is_a_chunk_of_one_artifact(function: Callable[..., Any]) -> None:
    async with serving(made(function)) as site:
        events = await site.events("SendStreamingMessage", {"message": message("x")})
    found = [e.result["artifactUpdate"] for e in events if "artifactUpdate" in e.result]
    texts = [chunk["artifact"]["parts"][0]["text"] for chunk in found]
    assert "".join(texts).endswith(" x") and len(texts) >= 2
    assert len({chunk["artifact"]["artifactId"] for chunk in found}) == 1
    assert found[-1]["lastChunk"] is True


async def test_a_skill_without_arguments_or_result_just_completes() -> None:
    ran = []

    def nothing() -> None:
        ran.append(True)

    task = await result(nothing, "x")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED" and "artifacts" not in task
    assert ran == [True]


async def test_a_generator_that_yields_nothing_makes_no_artifact() -> None:
    def none() -> Iterator[str]:
        yield from ()

    task = await result(none, "x")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED" and "artifacts" not in task


async def test_blocking_code_does_not_hold_up_other_callers() -> None:
    started, go = threading.Event(), threading.Event()

    def block(text: str) -> str:
        started.set()
        assert go.wait(60)
        return text

    async with serving(made(block)) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        assert await asyncio.to_thread(started.wait, 60)
        waiting = asyncio.create_task(site.send("y"))
        try:
            answers = await within(
                asyncio.gather(*(site.task(task["id"]) for _ in range(50))), seconds=30
            )
            assert all(a["status"]["state"] == "TASK_STATE_WORKING" for a in answers)
            assert not waiting.done()
        finally:
            go.set()
        assert shown(await within(waiting)) == [{"text": "y"}]


# Results


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("text", {"text": "text"}),
        ("", {"text": ""}),
        (b"abc", raw(b"abc", mediaType="application/octet-stream")),
        ({"a": [1, None]}, {"data": {"a": [1, None]}}),
        ([1, 2], {"data": [1, 2]}),
        ([], {"data": []}),
        (0, {"data": 0}),
        (False, {"data": False}),
        (1.5, {"data": 1.5}),
        (Order("tea", 2), {"data": {"item": "tea", "count": 2}}),
        (Point(1, 2), {"data": {"x": 1, "y": 2}}),
        (Part(url="https://example.com/"), {"url": "https://example.com/"}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_result_is_one_artifact(value: Any, part: Any, is_async: bool) -> None:
    async def later() -> Any:
        return value

    def at_once() -> Any:
        return value

    assert shown(await result(later if is_async else at_once, "x")) == [part]


async def test_parts_and_the_parts_of_a_message_stay_together() -> None:
    def parts() -> list[Part]:
        return [Part(text="a"), Part(data={"b": 1})]

    assert shown(await result(parts, "x")) == [{"text": "a"}, {"data": {"b": 1}}]


async def test_a_model_that_dumps_itself_is_data() -> None:
    class Model:
        def model_dump(self, *, mode: str) -> dict[str, str]:
            return {"mode": mode}

    def model() -> Model:
        return Model()

    assert shown(await result(model, "x")) == [{"data": {"mode": "json"}}]


async def test_a_skill_that_says_so_answers_with_a_message_and_makes_no_task() -> None:
    def reply(text: str, turn: Turn) -> Message | None:
        return turn.reply(f"hi {text}", metadata={"k": 1})

    async with serving(made(reply)) as site:
        answer = await site.send("x", contextId="c")
        assert answer["parts"] == [{"text": "hi x"}] and answer["role"] == "ROLE_AGENT"
        assert answer["contextId"] == "c" and "taskId" not in answer
        assert answer["metadata"] == {"k": 1}
        assert await site.total() == 0


async def test_a_message_of_a_skill_that_did_not_say_so_is_its_last_word() -> None:
    def reply(text: str, turn: Turn):  # type: ignore[no-untyped-def]
        return turn.reply("bye")

    task = await result(reply, "x")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["message"]["parts"] == [{"text": "bye"}]


# Choosing a skill


@pytest.fixture(scope="module")
async def three() -> AsyncIterator[Site]:
    agent = Agent("Three", "Has three skills.")

    @agent.skill
    def first(text: str) -> str:
        return "first"

    @agent.skill(id="second-one", default=True, name="Second", description="Is second.")
    def second(text: str) -> str:
        return "second"

    @agent.skill(tags=["t"])
    def third(text: str) -> str:
        return "third"

    async with serving(agent) as site:
        yield site


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ({}, {}, "second"),
        ({"skillId": "third"}, {}, "third"),
        ({"skill": "first"}, {}, "first"),
        ({}, {"skillId": "third"}, "third"),
        ({}, {"skill": "first"}, "first"),
        ({"skillId": "first"}, {"skillId": "third"}, "first"),
        ({"other": "x"}, {"skillId": "second-one"}, "second"),
    ],
)
async def test_metadata_names_the_skill(three: Site, inner: Any, outer: Any, expected: str) -> None:
    params = {"message": message("x", metadata=inner), "metadata": outer}
    assert shown((await three.call("SendMessage", params))["task"]) == [{"text": expected}]


@pytest.mark.parametrize("wanted", ["fourth", "", 5, None, ["first"]])
async def test_a_skill_nobody_has_is_refused(three: Site, wanted: Any) -> None:
    total = await three.total()
    params = {"message": message("x", metadata={"skillId": wanted})}
    if wanted is None:
        assert "task" in await three.call("SendMessage", params)
        return
    refused = await three.refusal("SendMessage", params)
    assert refused["code"] == -32602
    assert "first, second-one, third" in refused["message"]
    assert await three.total() == total


async def test_without_a_default_the_first_skill_answers() -> None:
    agent = Agent("Two", "Has two skills.")
    agent.skill(plain)
    agent.skill(awaited)
    async with serving(agent) as site:
        assert shown(await site.send("x")) == [{"text": "plain x"}]


async def test_an_agent_without_skills_refuses_every_message() -> None:
    async with serving(Agent("None", "Has none.")) as site:
        assert (await site.refusal("SendMessage", {"message": message("x")}))["code"] == -32602
