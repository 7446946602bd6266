"""The steps of a turn in its log: looked up, recorded, recorded as failed.

Code always gets a result as it is recorded, the first time too: it cannot come to depend on what a
second run would not have.
"""

import asyncio
import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from dragoman.engine.running.replay import CodeChanged, RecalledStep
from dragoman.engine.running.worker import Worker
from dragoman.errors import A2AError, BudgetExceeded, StepFailed, is_interruption
from dragoman.model.content import json_value
from dragoman.model.events import StepKind, StepRecorded
from dragoman.telemetry import figures

MAX_RESULT_BYTES = 1024 * 1024
# Characters of what a step's exception says.
MAX_FAILURE = 4096
_RAISED = "raised"


def check_function(given: object) -> None:
    """Raise a `TypeError` that says how a step is written if this cannot be called."""
    if callable(given):
        return
    found = f"a {type(given).__name__}"
    if inspect.iscoroutine(given):
        given.close()
        found = "a coroutine: the function was called already"
    takes = "a name, a function and its arguments, as in turn.step('charge', charge, 5)"
    raise TypeError(f"a step takes {takes}; in the place of the function there is {found}")


async def recall_step(worker: Worker, name: str, place: int | None = None) -> RecalledStep:
    """Return the place of the next step, and the step if it was done already."""
    return worker.recall(StepKind.STEP, name, place)


def recorded_result(worker: Worker, done: StepRecorded, function: Callable[..., Any]) -> Any:
    """Return the result of a step that was done before, or raise what it raised."""
    if done.kind is StepKind.FAILURE:
        raise decode_failure(done.value)
    try:
        return decode_result(done.name, done.value, function)
    except TypeError as error:
        change = f"The agent's code changed while the task was under way: {error}."
        raise worker.refusal(CodeChanged(change)) from None


async def record_failure(
    worker: Worker,
    index: int,
    name: str,
    error: BaseException,
    seconds: float,
    spent: float = 0.0,
) -> None:
    """Record that a step raised, in case the code goes on with something else."""
    figures.steps.add("failed")
    figures.step_seconds.add(seconds)
    value, at, took = encode_failure(error), worker.log.now(), round(1000 * seconds)
    failure = StepRecorded(StepKind.FAILURE, index, name, value, spent, at=at, took=took)
    worker.replay.fail(failure)


async def record_result(
    worker: Worker,
    index: int,
    name: str,
    value: msgspec.Raw,
    seconds: float,
    spent: float = 0.0,
) -> None:
    """Record a step's result; once this returns the step is not done again."""
    figures.steps.add("ok")
    figures.step_seconds.add(seconds)
    await worker.remember(StepKind.STEP, index, name, value, spent, round(1000 * seconds))


# Results and failures as JSON


def encode_result(name: str, value: Any) -> msgspec.Raw:
    """Return a result as JSON; says which step it was if there is no such thing."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_encode_model)
        body = msgspec.json.encode(json_value(plain))
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise TypeError(f"step {name}: its result cannot be kept as JSON: {error}") from None
    if len(body) > MAX_RESULT_BYTES:
        raise ValueError(
            f"step {name}: its result has {len(body)} bytes; keep large things elsewhere and "
            "return where they are"
        )
    return msgspec.Raw(body)


def decode_result(name: str, body: msgspec.Raw, function: Callable[..., Any]) -> Any:
    """Return a result in the type its function is annotated with.

    Raises `TypeError` if it is not of that type: the annotation was never true, or is not any more.
    """
    try:
        return msgspec.json.decode(body, type=_kind(function), dec_hook=_decode_model)
    except msgspec.ValidationError as error:
        raise TypeError(
            f"the result of step {name} does not fit what its function is annotated with: {error}"
        ) from None
    except (TypeError, NotImplementedError):
        # A type that JSON cannot be turned into says nothing about the result.
        return msgspec.json.decode(body)


def _kind(function: Callable[..., Any]) -> Any:
    """Return the type a function says it returns; a class makes its own instances."""
    while isinstance(function, functools.partial):
        function = cast(Callable[..., Any], function.func)
    if isinstance(function, type):
        return function
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        # Built-ins have no annotations, and names that only a type checker knows no meaning.
        return Any


# NotImplementedError is how a hook tells msgspec that it does not know a type.


def _encode_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} is no type of JSON")


def _decode_model(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError


class _Failure(msgspec.Struct, omit_defaults=True):
    """What a step raised."""

    kind: str
    text: str
    # Of a budget that is spent; of a cancellation, that the step raised it by itself.
    reason: str = ""


def encode_failure(error: BaseException) -> msgspec.Raw:
    """Return what a step raised as it is recorded."""
    kind = type(error)
    reason = error.reason if isinstance(error, BudgetExceeded) else ""
    if isinstance(error, asyncio.CancelledError) and not is_interruption(error):
        reason = _RAISED
    text = str(error)[:MAX_FAILURE]
    failure = _Failure(f"{kind.__module__}:{kind.__qualname__}", text, reason)
    return msgspec.Raw(msgspec.json.encode(failure))


def decode_failure(body: msgspec.Raw) -> BaseException:
    """Return what a step raised, of the same class if it is one that is loaded: the code may catch
    it as it did before."""
    failure = msgspec.json.decode(body, type=_Failure)
    module, _, name = failure.kind.partition(":")
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if isinstance(kind, type) and issubclass(kind, A2AError):
        # Its handlers read what its constructor sets.
        return kind(failure.text)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        error = kind.__new__(kind)
        error.args = (failure.text,)
        if isinstance(error, BudgetExceeded):
            error.reason = failure.reason
        return error
    return StepFailed(failure.text)


def is_given_up(done: StepRecorded) -> bool:
    """Tell whether a step was cancelled while the code around it went on, as by a time limit."""
    if done.kind is not StepKind.FAILURE:
        return False
    is_raised = msgspec.json.decode(done.value, type=_Failure).reason == _RAISED
    return not is_raised and isinstance(decode_failure(done.value), asyncio.CancelledError)
