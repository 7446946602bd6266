"""All that code can raise."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

SENTENCE = "The agent failed. Incident "


class Custom(BaseException):
    """What frameworks raise to get past `except Exception`."""


class Unspeakable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise Custom("no text")

    __repr__ = __str__


def nested(depth: int) -> BaseException:
    """Return a group that is too deep to be shown."""
    error: BaseException = Custom("inside")
    for _ in range(depth):
        error = BaseExceptionGroup("a group", [error])
    return error


KINDS: dict[str, Callable[[], BaseException]] = {
    "BaseException": lambda: Custom("of its own"),
    "GeneratorExit": GeneratorExit,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": lambda: RecursionError("too deep"),
    "MemoryError": MemoryError,
    "group": lambda: BaseExceptionGroup("several", [Custom("a"), ValueError("b")]),
    "mixed group": lambda: BaseExceptionGroup(
        "several", [asyncio.CancelledError(), BaseExceptionGroup("more", [SystemExit(1)])]
    ),
    "group of cancellations": lambda: BaseExceptionGroup("several", [asyncio.CancelledError()]),
    "group without end": lambda: nested(2000),
    "unspeakable": Unspeakable,
}


@contextlib.contextmanager
def leaving(error: BaseException) -> Iterator[None]:
    try:
        yield
    finally:
        raise error
