"""Functions of an author or an operator that observe, change or drop the events of tasks.

A transform gets an event before it is recorded, and what it returns is what is recorded: readers,
receivers of posts and the disk never have anything else. An observer gets an event once it is
durable. Both are called in the order in which they were registered, those of an agent before those
of its server, and each call has a time limit.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, overload

import msgspec

from dragoman.engine.running.author_code import (
    Author,
    AuthorThreads,
    author,
    author_code,
    author_trace,
)
from dragoman.engine.signatures import signature_of
from dragoman.errors import ConfigError
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import ContextId, Principal, TaskId
from dragoman.model.message import Message
from dragoman.model.task import Task
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman")

F = TypeVar("F", bound=Callable[..., Any])
# What is recorded if a transform raises, takes too long or returns what it may not: nothing, and
# the task fails; nothing; the event as it was.
OnError = Literal["fail", "drop", "keep"]
# What a transform may change. A message is the answer of code that made no task.
Changeable = StatusUpdate | ArtifactUpdate | Message
# What an observer sees: a task opens its log.
Seen = Changeable | Task

# Seconds that one call may take by default.
TIMEOUT = 5.0
MAX_TIMEOUT = 60.0
# Threads for hooks that are plain functions, and how many of those that did not return in time are
# replaced.
THREADS, MOST_LOST = 8, 56


class EventContext(msgspec.Struct, frozen=True):
    """The task that an event belongs to."""

    # The agent by its name in addresses; of a gateway's tasks, `gateway`.
    agent: str
    task_id: TaskId
    context_id: ContextId
    # The owner of the task.
    principal: Principal
    # Which registered agent a gateway gave the task to, by its id; empty: none, or not known yet.
    forwarded_to: str = ""


class HookFailed(Exception):
    """A hook raised, took too long or returned what it may not."""


class HookTimeout(HookFailed):
    """A hook took too long."""


class EventHook:
    """One function, and what holds for its calls."""

    def __init__(
        self, function: Callable[..., Any], timeout: float, on_error: OnError = "fail"
    ) -> None:
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ConfigError(f"the timeout of a hook is between 0 and {MAX_TIMEOUT:g} seconds")
        if on_error not in ("fail", "drop", "keep"):
            raise ConfigError("on_error is one of: fail, drop, keep")
        self.function = function
        self.timeout = timeout
        self.on_error: OnError = on_error
        self.name = getattr(function, "__qualname__", type(function).__name__)
        call = getattr(function, "__call__", None)  # noqa: B004  # a callable object may be async
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        self.takes_context = _takes_context(function, self.name)

    def arguments(self, event: Seen, context: EventContext) -> tuple[Any, ...]:
        """Return what the function is called with."""
        return (event, context) if self.takes_context else (event,)


def _takes_context(function: Callable[..., Any], name: str) -> bool:
    if not callable(function):
        raise ConfigError(f"a hook is a function, not {function!r}")
    given = signature_of(function)
    for count in (2, 1):
        try:
            given.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise ConfigError(f"{name}: a hook takes the event, or the event and its context")


class EventHooks:
    """Functions for the events of an agent, or of everything that a server or gateway does."""

    def __init__(self) -> None:
        self.observers: list[EventHook] = []
        self.transforms: list[EventHook] = []

    @overload
    def on_event(self, function: F, /) -> F: ...

    @overload
    def on_event(
        self, function: None = None, /, *, timeout: float = TIMEOUT
    ) -> Callable[[F], F]: ...

    def on_event(self, function: Any = None, /, *, timeout: float = TIMEOUT) -> Any:
        """Have a function see each event once it is durable. What it returns is ignored, what it
        raises is logged; one that takes too long sees no more of that task."""

        def register(function: F) -> F:
            self.observers.append(EventHook(function, timeout))
            return function

        return register if function is None else register(function)

    @overload
    def transform(self, function: F, /) -> F: ...

    @overload
    def transform(
        self, function: None = None, /, *, timeout: float = TIMEOUT, on_error: OnError = "fail"
    ) -> Callable[[F], F]: ...

    def transform(
        self, function: Any = None, /, *, timeout: float = TIMEOUT, on_error: OnError = "fail"
    ) -> Any:
        """Have a function change events before they are recorded: it returns the event to record,
        or None to drop it. Ids, states and the marks of chunks stay as they are."""

        def register(function: F) -> F:
            self.transforms.append(EventHook(function, timeout, on_error))
            return function

        return register if function is None else register(function)


class _HookAuthor(Author):
    """The owner of hook code, which belongs to no task."""

    def give_up(self, error: BaseException) -> None:
        """Log that hook code tried to end the process, which goes on."""
        logger.error("a task of an event hook raised %s", type(error).__name__)


class _HookThreads(AuthorThreads):
    """Threads for hooks: one that is given up is replaced by another until it returns."""

    def __init__(self) -> None:
        super().__init__(THREADS, "event-hook")
        self._lost: set[Future[Any]] = set()

    def give_up(self, call: Future[Any]) -> None:
        """Stop waiting for a call."""
        if call.cancel() or call.done():
            return
        self._lost.add(call)
        call.add_done_callback(self._lost.discard)
        self._max_workers = THREADS + min(len(self._lost), MOST_LOST)
        # The executor adds a thread only when something is submitted.
        self.submit(_nothing)


def _nothing() -> None:
    pass


class HookCalls:
    """Calls the hooks of one agent, within their time."""

    def __init__(self, hooks: Sequence[EventHooks] = ()) -> None:
        self._hooks = hooks
        self._threads: _HookThreads | None = None
        self._author = _HookAuthor()
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def is_on(self) -> bool:
        """Whether there is any hook."""
        # Asked for every task, so without a generator.
        for hooks in self._hooks:  # noqa: SIM110
            if hooks.observers or hooks.transforms:
                return True
        return False

    @property
    def observers(self) -> list[EventHook]:
        """Those that see, in their order."""
        return [hook for hooks in self._hooks for hook in hooks.observers]

    @property
    def transforms(self) -> list[EventHook]:
        """Those that change, in their order."""
        return [hook for hooks in self._hooks for hook in hooks.transforms]

    def start(self, work: Any) -> None:
        """Run a coroutine of ours beside the code of tasks, in a context of its own."""
        # Not in the context of the code that is the reason: a task made there is part of that code.
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("event hooks stop for a task", exc_info=error)

    async def call(self, hook: EventHook, event: Seen, context: EventContext) -> Any:
        """Return what a hook returns; raises `HookFailed`."""
        loop = asyncio.get_running_loop()
        given = hook.arguments(event, context)
        running: asyncio.Future[Any]
        in_thread: Future[Any] | None = None
        if hook.is_async:
            running = loop.create_task(self._awaited(hook, given))
        else:
            if self._threads is None:
                self._threads = _HookThreads()
            in_thread = self._threads.submit(_called, hook, given)
            running = asyncio.wrap_future(in_thread)
        try:
            done, _ = await asyncio.wait([running], timeout=hook.timeout)
        except BaseException:
            self._give_up(running, in_thread)
            raise
        if not done:
            # It may not stop; its result is ignored.
            self._give_up(running, in_thread)
            running.add_done_callback(_forget)
            raise HookTimeout(f"{hook.name} took longer than {hook.timeout:g} s")
        try:
            return running.result()
        except asyncio.CancelledError:
            raise HookFailed(f"{hook.name} was cancelled") from None
        except Exception as error:
            raise HookFailed(f"{hook.name} raised {type(error).__name__}") from error

    def _give_up(self, running: asyncio.Future[Any], in_thread: Future[Any] | None) -> None:
        if in_thread is not None and self._threads is not None:
            self._threads.give_up(in_thread)
        running.cancel()

    async def _awaited(self, hook: EventHook, given: tuple[Any, ...]) -> Any:
        author.set(self._author)
        with author_code(hook.name):
            return await hook.function(*given)

    async def close(self, within: float = TIMEOUT) -> None:
        """Let observers see what is durable, for a bounded time."""
        if self._background:
            await asyncio.wait(self._background, timeout=within)
        for task in self._background:
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _called(hook: EventHook, given: tuple[Any, ...]) -> Any:
    with author_code(hook.name):
        return hook.function(*given)


def _forget(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a hook that was given up, or asyncio would log it."""
    if not future.cancelled():
        future.exception()


def tell_failure(error: HookFailed, task_id: str, incident: str) -> None:
    """Log that a hook failed, and why."""
    cause = error.__cause__ or error
    message = "incident %s: event hook, task %s: %s"
    trace = author_trace(cause)
    logs.log_error(
        logger, message, incident, task_id, error, error=cause, trace=trace, incident=incident
    )
