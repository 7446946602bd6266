"""Waits that end when a client is closed, on whatever loop they are."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Waits:
    """What is being waited for, on any loop, so that closing ends all of it."""

    def __init__(self) -> None:
        self.limits: dict[_UntilClosed, asyncio.AbstractEventLoop] = {}
        self.is_closed = False

    def until_closed(self, error: Callable[[], Exception]) -> "_UntilClosed":
        """Return a context that lasts until `close`, and then raises an error."""
        return _UntilClosed(self, error)

    def close(self) -> None:
        """End every wait, and those to come."""
        self.is_closed = True
        for limit, loop in list(self.limits.items()):
            # On a loop that has ended nothing waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(limit.end)


class _UntilClosed:
    """A wait that may be ended from outside, as `asyncio.timeout` ends one, but without a timer:
    every request has several."""

    __slots__ = ("_before", "_error", "_is_ended", "_task", "_waits")

    def __init__(self, waits: Waits, error: Callable[[], Exception]) -> None:
        self._waits = waits
        self._error = error
        self._is_ended = False
        self._task: asyncio.Task[Any] | None = None
        self._before = 0

    def __enter__(self) -> None:
        if self._waits.is_closed:
            raise self._error()
        task = asyncio.current_task()
        assert task is not None, "only tasks wait"
        self._task, self._before = task, task.cancelling()
        self._waits.limits[self] = task.get_loop()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        del self._waits.limits[self]
        if self._is_ended and self._task is not None:
            # The cancellation was ours, unless another was asked for as well.
            is_ours = self._task.uncancel() <= self._before
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._error() from None

    def end(self) -> None:
        """End the wait, if it is still on."""
        if self in self._waits.limits and not self._is_ended and self._task is not None:
            self._is_ended = True
            self._task.cancel()
