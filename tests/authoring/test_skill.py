"""What an author may write: every kind of function, every way a message becomes arguments, every
way a result becomes an artifact, and what happens when the code is wrong."""

import asyncio
import base64
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from harness.serving import Site, message, serving
from harness.waiting import within

from dragoman import Agent, Message, Part, SyncTurn, TaskFailed, TaskRejected, Turn
from dragoman.engine.running.author_code import author_trace
from dragoman.errors import ConfigError


@dataclass
class Order:
    item: str
    count: int = 1


class Point(msgspec.Struct):
    x: int
    y: int


class Options(TypedDict):
    loud: bool


def made(function: Callable[..., Any], **options: Any) -> Agent:
    agent = Agent("One", "Has one skill.")
    agent.skill(**options)(function)
    return agent


async def result(function: Callable[..., Any], *parts: Any, **more: Any) -> Any:
    """Return the task that a message with such parts leads to."""
    async with serving(made(function)) as site:
        said = [{"text": part} if isinstance(part, str) else part for part in parts]
        return await site.send(None, parts=said, **more)


def shown(task: Any) -> Any:
    """Return the parts of a completed task's only artifact."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    (artifact,) = task["artifacts"]
    return artifact["parts"]


async def test_an_object_that_does_not_name_the_only_argument_is_told_its_name() -> None:
    async def count(to: int) -> str:
        return str(to)

    async with serving(made(count)) as site:
        given = {"message": message("x") | {"parts": [{"data": {"too": 3}}]}}
        refused = await site.refusal("SendMessage", given)
    assert "message.parts: has no member to" in refused["message"]


def raw(content: bytes, **more: Any) -> dict[str, Any]:
    return {"raw": base64.b64encode(content).decode(), **more}


# Kinds of functions


def plain(text: str) -> str:
    return f"plain {text}"


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


# Arguments


async def test_text_parts_are_joined_for_a_text_argument() -> None:
    def joined(text: str) -> str:
        return text

    assert shown(await result(joined, "one", "two")) == [{"text": "one\ntwo"}]
    # Who sends data to a text argument sends its JSON.
    assert shown(await result(joined, {"data": [1]})) == [{"text": "[1]"}]


async def test_text_is_read_as_what_the_argument_is() -> None:
    def double(number: int) -> int:
        return number * 2

    assert shown(await result(double, "21")) == [{"data": 42}]
    assert shown(await result(double, {"data": 4})) == [{"data": 8}]

    def negate(flag: bool) -> bool:
        return not flag

    assert shown(await result(negate, "true")) == [{"data": False}]


async def test_data_fills_arguments_by_name() -> None:
    def add(left: int, right: int = 10) -> int:
        return left + right

    assert shown(await result(add, {"data": {"left": 1, "right": 2}})) == [{"data": 3}]
    assert shown(await result(add, {"data": {"left": 1}})) == [{"data": 11}]
    assert shown(await result(add, {"data": {"left": 1, "other": 2}})) == [{"data": 11}]


async def test_data_and_text_and_a_file_come_together() -> None:
    def describe(text: str, file: bytes, options: Options) -> list[Any]:
        return [text, len(file), options["loud"]]

    parts = ["read this", raw(b"12345"), {"data": {"options": {"loud": True}}}]
    assert shown(await result(describe, *parts)) == [{"data": ["read this", 5, True]}]


@pytest.mark.parametrize(
    "given", [{"item": "tea", "count": 2}, {"order": {"item": "tea", "count": 2}}]
)
async def test_an_object_is_read_as_a_dataclass(given: Any) -> None:
    def take(order: Order) -> str:
        assert isinstance(order, Order)
        return f"{order.count} {order.item}"

    assert shown(await result(take, {"data": given})) == [{"text": "2 tea"}]


async def test_an_object_is_read_as_a_struct_or_a_typed_dict_or_left_alone() -> None:
    def norm(point: Point) -> int:
        return point.x + point.y

    def loud(options: Options) -> bool:
        return options["loud"]

    def keys(data: dict[str, Any]) -> list[str]:
        return sorted(data)

    assert shown(await result(norm, {"data": {"x": 1, "y": 2}})) == [{"data": 3}]
    assert shown(await result(loud, {"data": {"loud": True}})) == [{"data": True}]
    assert shown(await result(keys, {"data": {"b": 1, "a": 2}})) == [{"data": ["a", "b"]}]
    # A member that happens to be called like the argument does not hide the object.
    assert shown(await result(keys, {"data": {"b": 1, "data": 2}})) == [{"data": ["b", "data"]}]


@dataclass
class Refund:
    number: int


async def test_a_union_of_dataclasses_takes_the_first_that_fits() -> None:
    def take(wanted: Order | Refund | None = None) -> str:
        return repr(wanted)

    order, refund = {"item": "tea", "count": 2}, {"number": 7}
    for given in (order, {"wanted": order}):
        assert "Order(" in shown(await result(take, {"data": given}))[0]["text"]
    for given in (refund, {"wanted": refund}):
        assert shown(await result(take, {"data": given})) == [{"text": "Refund(number=7)"}]
    assert shown(await result(take, {"data": {"wanted": None}})) == [{"text": "None"}]
    async with serving(made(take)) as site:
        given = {"message": message("x") | {"parts": [{"data": {"wanted": {"number": "x"}}}]}}
        told = await site.refusal("SendMessage", given)
    assert "message.parts:wanted: " in told["message"]
    assert "it is none of Order, Refund, NoneType" in told["message"]
    (skill,) = made(take).skills.values()
    schema = skill.schema()
    assert {"Order", "Refund"} <= schema["$defs"].keys()
    assert {"$ref": "#/$defs/Refund"} in schema["properties"]["wanted"]["anyOf"]


async def test_a_text_that_does_not_fit_is_read_as_data_if_it_is_json() -> None:
    def add(left: int, right: int = 10) -> int:
        return left + right

    def take(order: Order, note: str = "") -> str:
        return f"{order.count} {order.item} {note}"

    def either(value: str | dict[str, int]) -> Any:
        return value

    def rows(names: list[str]) -> int:
        return len(names)

    assert shown(await result(add, '{"left": 1, "right": 2}')) == [{"data": 3}]
    assert shown(await result(take, '{"order": {"item": "tea", "count": 2}, "note": "hot"}')) == [
        {"text": "2 tea hot"}
    ]
    assert shown(await result(take, '{"item": "tea", "count": 2}')) == [{"text": "2 tea "}]
    assert shown(await result(rows, '["a", "b"]')) == [{"data": 2}]
    # A text that fits stays one.
    assert shown(await result(either, '{"a": 1}')) == [{"text": '{"a": 1}'}]
    async with serving(made(add)) as site:
        told = await site.refusal("SendMessage", {"message": message("one and two")})
        assert 'write it as JSON: {"left": …}' in told["message"]
        told = await site.refusal("SendMessage", {"message": message('{"left": "x"}')})
        assert "message.parts:left: " in told["message"] and "write it" not in told["message"]


async def test_an_argument_without_a_type_takes_what_there_is() -> None:
    def kind(value) -> str:  # type: ignore[no-untyped-def]
        return type(value).__name__

    assert shown(await result(kind, "x")) == [{"text": "str"}]
    assert shown(await result(kind, {"data": {"a": 1}})) == [{"text": "dict"}]


async def test_files_go_to_arguments_for_files_in_order() -> None:
    def two(first: bytes, second: Part) -> str:
        assert isinstance(second.raw, bytes)
        return f"{first.decode()} {second.raw.decode()} {second.filename} {second.type}"

    parts = [raw(b"a"), raw(b"b", filename="b.txt", mediaType="text/plain")]
    assert shown(await result(two, *parts)) == [{"text": "a b b.txt text/plain"}]


async def test_a_file_elsewhere_is_handed_over_as_its_address() -> None:
    def where(file: Part) -> str:
        assert isinstance(file.url, str)
        return file.url

    address = {"url": "https://example.com/x"}
    assert shown(await result(where, address)) == [{"text": "https://example.com/x"}]


async def test_a_file_may_be_left_out_where_there_is_a_default() -> None:
    def size(text: str, file: bytes | None = None) -> str:
        return f"{text} {len(file or b'')}"

    assert shown(await result(size, "x")) == [{"text": "x 0"}]
    assert shown(await result(size, "x", raw(b"123"))) == [{"text": "x 3"}]

    def maybe(text: str | None = None) -> str:
        return text or "nothing"

    assert shown(await result(maybe, raw(b"1"))) == [{"text": "nothing"}]
    assert shown(await result(maybe, "x")) == [{"text": "x"}]


async def test_the_message_itself_can_be_had() -> None:
    def whole(message: Message, turn: Turn) -> list[Any]:
        return [message.message_id == turn.message.message_id, message.metadata["k"]]

    task = await result(whole, "x", metadata={"k": "v"})
    assert shown(task) == [{"data": [True, "v"]}]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([raw(b"1")], "left"),
        ([{"data": {"right": 1}}], "left"),
        ([{"data": {"left": "x", "right": 1}}], "left"),
        ([{"data": {"left": 1.5, "right": 1}}], "left"),
        ([{"data": [1, 2]}], "left"),
        (["many"], "left"),
        ([{"data": {"left": 1}}], "right"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name_and_nothing_is_made(
    parts: list[Any], named: str
) -> None:
    def add(left: int, right: int) -> int:
        raise AssertionError("never called")

    async with serving(made(add)) as site:
        params = {"message": message(None) | {"parts": []}}
        params["message"]["parts"] = [{"text": p} if isinstance(p, str) else p for p in parts]
        for method in ("SendMessage", "SendStreamingMessage"):
            refused = await site.refusal(method, params)
            assert refused["code"] == -32602 and named in refused["message"]
        assert (await site.http.post("/message:send", json=params)).status_code == 400
        assert await site.total() == 0


def test_arguments_nothing_can_fill_are_refused_when_the_skill_is_made() -> None:
    def rest(*args: str) -> None: ...
    def options(**more: str) -> None: ...

    for function in (rest, options):
        with pytest.raises(TypeError, match="cannot be filled"):
            made(function)


def test_two_skills_of_one_id_and_an_agent_without_a_name_are_refused() -> None:
    agent = made(plain)
    with pytest.raises(ConfigError, match="plain exists already"):
        agent.skill(plain)
    with pytest.raises(ConfigError, match="needs a name"):
        Agent(" ", "Nameless.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"description": ["a", "b"]}, r"description=\['a', 'b'\]: must be str"),
        ({"icon_url": 1}, "icon_url=1: must be str | None"),
        ({"provider": "me"}, "provider='me': must be .*AgentProvider | None"),
        ({"input_modes": "text/plain"}, r"must be a list of str, as in input_modes=\['text/plain'"),
        ({"extensions": ["urn:x"]}, r"extensions=\['urn:x'\]: must be a list of AgentExtension"),
    ],
)
def test_an_agent_of_wrong_types_is_refused_when_it_is_made(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong: dict[str, Any] = {"name": "Wrong", "description": "Is wrong."} | options
        Agent(**wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tags": "weather"}, r"must be a list of str, as in tags=\['weather'\]"),
        ({"scopes": "pay"}, r"must be a list of str, as in scopes=\['pay'\]"),
        ({"tags": 7}, "tags=7: must be a list of str"),
        ({"examples": [7]}, r"examples=\[7\]: must be a list of str"),
        ({"deadline": "tomorrow"}, "deadline='tomorrow': must be .*timedelta"),
        ({"id": 7}, "id=7: must be str"),
    ],
)
def test_a_skill_of_wrong_types_is_refused_when_it_is_made(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(plain, **options)


def test_a_decorator_with_a_text_and_a_second_default_are_refused() -> None:
    wrong: Any = "shout"
    with pytest.raises(ConfigError, match="options by name: id='shout'"):
        Agent("One", "Has a skill.").skill(wrong)
    agent = made(plain, default=True)
    with pytest.raises(ConfigError, match="the skill plain is the default already"):
        agent.skill(id="other", default=True)(plain)


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


# Failures


async def forgets_await() -> Any:
    return forgets_await()


def forgets_that_it_is_async() -> Any:
    return forgets_await()


async def yields_no_content() -> AsyncIterator[Any]:
    yield forgets_await()


def yields_no_content_in_a_thread() -> Iterator[Any]:
    yield object()


async def returns_no_content() -> Any:
    return object()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (forgets_await, "write `await` before the call"),
        (forgets_that_it_is_async, "write `await` before the call"),
        (yields_no_content, "write `await` before the call"),
        (yields_no_content_in_a_thread, "type object is unsupported; content is text"),
        (returns_no_content, "type object is unsupported; content is text"),
    ],
)
async def test_a_result_that_is_none_is_logged_with_the_function_and_its_place(
    function: Callable[..., Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = await result(function, "x")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    (logged,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert logged.exc_info and logged.exc_info[1]
    said = str(logged.exc_info[1])
    line = function.__code__.co_firstlineno
    assert said.startswith(
        f"what {function.__name__} ({__file__}, line {line}) returned or yielded"
    )
    assert says in said


async def step_without_a_name(text: str, turn: Turn) -> Any:
    wrong: Any = turn.step
    return await wrong(forgets_await, text)


async def step_that_was_called(text: str, turn: Turn) -> Any:
    wrong: Any = turn.step
    return await wrong("charge", forgets_await())


def step_that_was_called_in_a_thread(text: str, turn: SyncTurn) -> Any:
    wrong: Any = turn.step
    return wrong("charge", forgets_await())


async def sleeps_for_a_text(text: str, turn: Turn) -> None:
    wrong: Any = "5s"
    await turn.sleep(wrong)


async def chooses_from_a_text(text: str, turn: Turn) -> str:
    return await turn.choose("Which?", "abc")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (step_without_a_name, "in the place of the function there is a str"),
        (step_that_was_called, "there is a coroutine: the function was called already"),
        (step_that_was_called_in_a_thread, "there is a coroutine: the function was called"),
        (sleeps_for_a_text, "sleep takes seconds or a timedelta, not str"),
        (chooses_from_a_text, "choices are a list of texts"),
    ],
)
async def test_a_turn_that_is_used_wrongly_is_logged_with_what_it_takes(
    function: Callable[..., Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = await result(function, "x")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert says in caplog.text and f"at {__file__}, line " in caplog.text


async def test_an_error_of_what_makes_content_is_logged_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Model:
        def model_dump(self, *, mode: str) -> dict[str, str]:
            raise ValueError(mode)

    async def model() -> Model:
        return Model()

    assert (await result(model, "x"))["status"]["state"] == "TASK_STATE_FAILED"
    assert "ValueError at " in caplog.text and "returned or yielded" not in caplog.text


def nan() -> float:
    return float("nan")


def hidden_infinity() -> dict[str, Any]:
    return {"a": [{"b": float("inf")}]}


def no_json() -> object:
    return object()


def raises() -> str:
    raise RuntimeError("a secret at /etc/passwd")


async def raises_later() -> str:
    raise KeyError("a secret")


def raises_midway() -> Iterator[str]:
    yield "begun"
    raise ValueError("a secret")


@pytest.mark.requirement("X-12", "T-6")
@pytest.mark.parametrize(
    "function", [nan, hidden_infinity, no_json, raises, raises_later, raises_midway]
)
async def test_code_that_breaks_fails_its_task_and_only_the_log_knows_why(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dragoman"):
        task = await result(function, "x")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    ((said,),) = [task["status"]["message"]["parts"]]
    found = re.fullmatch(r"The agent failed\. Incident ([0-9a-f-]{36})\.", said["text"])
    assert found, said
    assert "secret" not in str(task)
    assert found[1] in caplog.text and "Traceback" in caplog.text


@pytest.mark.parametrize("function", [raises, raises_later, raises_midway])
async def test_the_traceback_of_an_incident_begins_with_the_authors_own_code(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dragoman"):
        await result(function, "x")
    _, _, trace = caplog.text.partition("Traceback (most recent call last):\n")
    assert trace.startswith(f'  File "{__file__}"'), trace


def test_the_traceback_of_an_error_without_the_authors_code_is_whole() -> None:
    with pytest.raises(ValueError) as found:
        json.loads("{")
    trace = found.value.__traceback__
    assert trace is not None and author_trace(found.value) is trace
    # Without the line of this file, as if none but libraries had called.
    assert author_trace(found.value.with_traceback(trace.tb_next)) is trace.tb_next is not None


async def test_an_author_may_fail_or_refuse_with_a_sentence_for_the_caller() -> None:
    async def fails() -> str:
        raise TaskFailed("No such city.")

    def refuses() -> str:
        raise TaskRejected("Not on Sundays.")

    def refuses_by_turn(turn: Turn) -> str:
        turn.reject("Not on Mondays.")

    for function, state, sentence in (
        (fails, "FAILED", "No such city."),
        (refuses, "REJECTED", "Not on Sundays."),
        (refuses_by_turn, "REJECTED", "Not on Mondays."),
    ):
        task = await result(function, "x")
        assert task["status"]["state"] == f"TASK_STATE_{state}"
        assert task["status"]["message"]["parts"] == [{"text": sentence}]


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


# Modes


@pytest.mark.parametrize(
    ("accepted", "fits"),
    [
        ([], True),
        (["text/plain"], True),
        (["image/png", "TEXT/PLAIN"], True),
        (["text/*"], True),
        (["*/*"], True),
        (["image/png"], False),
        (["application/json", "video/*"], False),
    ],
)
async def test_a_caller_that_accepts_nothing_we_produce_is_refused(
    accepted: list[str], fits: bool
) -> None:
    async with serving(made(plain, output_modes=["text/plain"])) as site:
        params = {"message": message("x"), "configuration": {"acceptedOutputModes": accepted}}
        answer = await site.answer("SendMessage", params)
        assert ("result" in answer) is fits
        if not fits:
            assert answer["error"]["code"] == -32005
            assert await site.total() == 0


async def test_a_part_of_a_type_the_skill_does_not_take_is_refused() -> None:
    async with serving(made(plain, input_modes=["text/plain", "image/*"])) as site:
        good = {"parts": [{"text": "x"}, raw(b"1", mediaType="image/png")]}
        assert shown(await site.send(None, **good))
        for part in ({"data": {}}, raw(b"1"), {"text": "x", "mediaType": "text/html"}):
            params = {"message": message(None) | {"parts": [{"text": "x"}, part]}}
            refused = await site.refusal("SendMessage", params)
            assert refused["code"] == -32005 and "message.parts[1]" in refused["message"]
        assert await site.total() == 1


async def pay(amount: int) -> str:
    """Takes an argument that is no text."""
    return f"Paid {amount}."


async def join_texts(left: str, right: str) -> str:
    """Takes two."""
    return left + right


@pytest.mark.parametrize(
    ("function", "given"), [(pay, {"amount": 3}), (join_texts, {"left": "a", "right": "b"})]
)
async def test_a_skill_takes_its_arguments_as_data_whatever_else_its_agent_takes(
    function: Callable[..., Any], given: dict[str, Any]
) -> None:
    agent = Agent("Modes", "Minds.", input_modes=["text/plain"])
    agent.skill(function)
    agent.skill(plain)
    agent.skill(id="strict", input_modes=["text/plain"])(function)
    modes = {id: skill.card.input_modes for id, skill in agent.skills.items()}
    # A skill that says what it takes means it, and a text needs nothing more.
    assert modes == {
        function.__name__: ["text/plain", "application/json"],
        "plain": [],
        "strict": ["text/plain"],
    }
    assert made(function).skills[function.__name__].card.input_modes == []
    async with serving(agent) as site:
        parts = {"parts": [{"data": given}]}
        assert shown(await site.send(None, **parts, metadata={"skillId": function.__name__}))
        for skill in ("plain", "strict"):
            sent = {"message": message(None, **parts, metadata={"skillId": skill})}
            assert (await site.refusal("SendMessage", sent))["code"] == -32005


class Unfillable:
    """A type of the author's that no JSON describes."""


def test_a_type_that_no_message_can_fill_is_refused_when_the_skill_is_made() -> None:
    async def use(thing: Unfillable) -> str:
        return str(thing)

    with pytest.raises(TypeError, match="skill use: no message can fill thing"):
        Agent("A", "B").skill(use)
