"""Waiting with a bound, so that a test that hangs fails instead.

The bound is generous: a busy machine may take long for what takes no time on an idle one.
"""

import asyncio
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

WAIT = 60.0
# Seconds between two looks: a tenth of the time that has passed, so that a long wait costs little.
_SHORTEST, _LONGEST = 0.005, 0.05
_TURNS = 1000
T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float = WAIT) -> T:
    """Wait for something, but not for ever."""
    # In a task, as `wait_for` itself does up to Python 3.11: without one the loop has no turn
    # before the caller goes on, and nothing that was begun there is under way.
    return await asyncio.wait_for(asyncio.ensure_future(awaitable), seconds)


async def eventually(condition: Callable[[], Any], seconds: float = WAIT) -> Any:
    """Wait until a condition, which may be a coroutine function, is true; return its value.

    What is in this process takes a few turns of the loop; the rest is looked at now and then.
    """
    began = time.monotonic()
    for turn in itertools.count():
        value = condition()
        if is_asked := inspect.isawaitable(value):
            value = await value
        if value:
            return value
        pause = _pause(condition, time.monotonic() - began, seconds)
        await asyncio.sleep(pause if is_asked or turn > _TURNS else 0)


def wait_until(condition: Callable[[], Any], seconds: float = WAIT) -> Any:
    """Do the same where there is no loop."""
    began = time.monotonic()
    while not (value := condition()):
        time.sleep(_pause(condition, time.monotonic() - began, seconds))
    return value


def _pause(condition: Callable[[], Any], passed: float, seconds: float) -> float:
    """Return how long to wait for the next look, unless it is over."""
    assert passed < seconds, f"not true within {seconds:g} s: {_text(condition)}"
    return min(_LONGEST, max(_SHORTEST, passed / 10))


def _text(condition: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
