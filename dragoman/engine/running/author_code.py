"""Runs the code of authors so that nothing it raises goes further than its task.

The event loop ends with `SystemExit` and `KeyboardInterrupt`, whichever of its tasks raises them. A
future refuses `StopIteration`, so that its reader waits for ever, and with `GeneratorExit` the
reader is closed and cannot clean up. Tasks and threads that author code starts are therefore
wrapped: their exceptions become ones that a future can hold. The run of a worker also records
whether author code cancelled it, which can cancel the task it runs in.
"""

import asyncio
import contextlib
import functools
import traceback
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from dragoman.errors import is_interruption

T = TypeVar("T")


@functools.cache
def libraries() -> tuple[str, ...]:
    """Return where code is that an author did not write: our package, and what is installed."""
    import sysconfig

    ours = str(Path(__file__).parent.parent.parent)
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({ours, *(sysconfig.get_path(name) for name in names)})


def author_place(error: BaseException) -> str:
    """Return the file and line of the author's own code that an error came from: the innermost
    line that is neither ours nor of an installed library; empty: there is none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_authors(frame):
            found = f"{frame.f_code.co_filename}, line {line}"
    return found


def author_trace(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first line of the author's own code on, without the
    calls of ours that led there; the whole one if no such line is in it."""
    found = error.__traceback__
    while found is not None and not _is_authors(found.tb_frame):
        found = found.tb_next
    return found if found is not None else error.__traceback__


def _is_authors(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(("<", *libraries()))


class CodeExited(BaseException):
    """Author code raised something in a task or thread of its own that a future cannot hold.

    Not an `Exception`, like what it stands for: code that retries after any error must not
    continue."""


class Author(Protocol):
    """The owner of running author code."""

    def give_up(self, error: BaseException) -> None:
        """End the task: some of its code tried to end the process."""
        ...


# The owner of the code that runs; None: it is ours.
author: ContextVar[Author | None] = ContextVar("dragoman_author", default=None)


class AuthorRun(asyncio.Task[None]):
    """The asyncio task of a worker's code. It tells whether author code or anything else cancelled
    it."""

    # Set here and not in a constructor: one is made for each task.
    owner: Author | None = None
    # Whether we stopped it, and whether something that is no task's code did: the end of the loop,
    # which leaves the task to the next process, or code of the author's outside of any task.
    is_interrupted = False
    is_cancelled_outside = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it. Code of another task counts as author code too."""
        if self.owner is None or author.get() is None:
            self.is_cancelled_outside = True
        return super().cancel(msg)

    def interrupt(self) -> None:
        """Cancel it, also on behalf of its own code."""
        self.is_interrupted = True
        super().cancel()


class _Child(Coroutine[Any, Any, Any]):
    """A coroutine of author code that became a task of its own."""

    __slots__ = ("__weakref__", "_coroutine", "owner")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], owner: Author) -> None:
        self._coroutine = coroutine
        self.owner = owner

    def send(self, value: Any, /) -> Any:
        """Run the next slice."""
        try:
            return self._coroutine.send(value)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise self._exited(error) from error

    def throw(self, *given: Any) -> Any:
        """Run the next slice with an exception."""
        try:
            return self._coroutine.throw(*given)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise self._exited(error) from error

    def close(self) -> None:
        """End it where it is."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        # Debuggers and monitors ask for its name, its frame and whether it runs.
        return getattr(self._coroutine, name)

    def _exited(self, error: BaseException) -> CodeExited:
        if not isinstance(error, GeneratorExit):
            self.owner.give_up(error)
        return CodeExited(f"{type(error).__name__} in a task of an agent's code")


_CHILD_FRAMES = frozenset({_Child.send.__code__, _Child.throw.__code__})


def owner_in(frame: FrameType) -> Author | None:
    """Return the owner of the author's task that runs below a frame, if the frame runs one."""
    return frame.f_locals["self"].owner if frame.f_code in _CHILD_FRAMES else None


class CodeFailed(Exception):
    """Author code that we called raised something that is no `Exception`."""


@contextlib.contextmanager
def author_code(what: str) -> Generator[None]:
    """Let author code that we call raise nothing but `Exception` and our own cancellation."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_interruption(error):
            raise
        raise CodeFailed(f"{what} raised {type(error).__name__}") from error


Factory = Callable[..., asyncio.Future[Any]]


class _Tasks:
    """Makes the tasks of a loop."""

    def __init__(self, inner: Factory | None) -> None:
        self._inner = inner

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any
    ) -> asyncio.Future[Any]:
        owner = author.get()
        if owner is not None:
            coroutine = _Child(coroutine, owner)
        if self._inner is not None:
            return self._inner(loop, coroutine, **more)
        return asyncio.Task(coroutine, loop=loop, **more)


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Keep tasks that author code makes on a loop from raising what would end the loop. Other tasks
    are made as before."""
    before: Any = loop.get_task_factory()
    if not isinstance(before, _Tasks):
        factory: Any = _Tasks(before)
        loop.set_task_factory(factory)


class AuthorThreads(ThreadPoolExecutor):
    """Threads for author code whose exceptions reach a coroutine that waits."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function in a thread."""
        return super().submit(functools.partial(_called, fn), *args, **kwargs)


def _called(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise for_future(error) from error


def for_future(error: BaseException) -> BaseException:
    """Return what a future can have in place of an exception."""
    match error:
        case StopIteration():
            return RuntimeError("agent code raised StopIteration")
        case GeneratorExit():
            return CodeExited("GeneratorExit in a thread of an agent's code")
        case _:
            return error
