"""The turn of an author's code that runs in a thread."""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.authoring.steps import (
    decode_result,
    encode_result,
    recall_step,
    record_failure,
    record_result,
    recorded_result,
)
from dragoman.authoring.turn import Turn
from dragoman.engine.running.worker import Worker
from dragoman.telemetry.observation import StepObservation


class WaitingTurn:
    """A turn for code in a thread: every method waits for what it does."""

    def __init__(self, turn: Turn, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._worker = worker
        self._loop = loop
        # What the thread waits for. Only the loop reads and writes it, so nothing is missed.
        self._task: asyncio.Task[Any] | None = None
        self._is_let_go = False

    def let_go(self) -> None:
        """End the wait of code whose task is over: it gets no more answers and begins no steps."""
        self._is_let_go = True
        if self._task is not None:
            self._task.cancel()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._turn, name)
        if name == "step":
            return self._step
        if name == "artifact" or inspect.iscoroutinefunction(value):

            def wait(*args: Any, **kwargs: Any) -> Any:
                return self._wait(value, *args, **kwargs)

            return wait
        return value

    def _step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the function in the thread that asks for it: no second thread need be free."""
        index, done = self._wait(recall_step, self._worker, name)
        if done is not None:
            return recorded_result(self._worker, done, function)
        step = StepObservation(name)
        try:
            if inspect.iscoroutinefunction(function):
                result = self._wait(function, *args, **kwargs)
            else:
                result = function(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = self._wait(_awaited, result)
            value = encode_result(name, result)
            result = decode_result(name, value, function)
        except BaseException as error:
            self._wait(record_failure, self._worker, index, name, error, step.end(error))
            raise
        self._wait(record_result, self._worker, index, name, value, step.end())
        return result

    def _wait(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        work = self._on_loop(make, *args, **kwargs)
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop ended before its threads did.
            work.close()
            raise asyncio.CancelledError from None
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            # As async code sees it: not an Exception, so it is not caught by accident.
            raise asyncio.CancelledError from None

    async def _on_loop(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        turn = self._turn
        passing = (turn.say, turn.artifact, record_result, record_failure)
        if self._is_let_go and make not in passing:
            for given in args:
                if inspect.iscoroutine(given):
                    # On purpose never begun: closing it avoids the warning.
                    given.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await make(*args, **kwargs)
        finally:
            self._task = None


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
