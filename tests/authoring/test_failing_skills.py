"""Code of a skill that breaks, or gives back what cannot be: what the caller hears, and the log."""

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from dragoman import SyncTurn, TaskFailed, TaskRejected, Turn
from dragoman.engine.running.author_code import author_trace
from tests.authoring.one_skill import result


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
