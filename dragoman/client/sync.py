"""The client for code that is not async: the same methods, run by a loop in a thread of its own.

There is no second implementation: each name below is the client's method, waited for. It works
inside a running loop as well, which it blocks for as long as it takes.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from dragoman.client.answer import Answer
from dragoman.client.calls import AgentCalls
from dragoman.client.streams.stream import Stream
from dragoman.errors import ConfigError, Unreachable
from dragoman.model.card import AgentCard
from dragoman.model.task import Task

if TYPE_CHECKING:
    from dragoman.security.card_signatures import SignatureVerdict

P = ParamSpec("P")
T = TypeVar("T")

# Seconds that the end of a program waits for what is open.
AT_EXIT = 5.0


def _waited(
    method: Callable[Concatenate[AgentCalls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Sync", P], T]:
    """Return a method of the client as one that waits."""

    def run(self: "Sync", *args: P.args, **kwargs: P.kwargs) -> T:
        return self.loop.run(method(self.client, *args, **kwargs))

    run.__name__, run.__doc__ = method.__name__, method.__doc__
    return run


def _iterated(
    method: Callable[Concatenate[AgentCalls, P], AsyncIterator[T]],
) -> Callable[Concatenate["Sync", P], "Iteration[T]"]:
    """Return a method of the client as one that gives a plain iterator."""

    def run(self: "Sync", *args: P.args, **kwargs: P.kwargs) -> Iteration[T]:
        return Iteration(self, method(self.client, *args, **kwargs))

    run.__name__, run.__doc__ = method.__name__, method.__doc__
    return run


class Loop:
    """A loop in a thread that others wait for; both begin with the first call, and end with what
    is given to be done last."""

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last = last
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Nothing is given to a loop that was told to end.
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, however long it takes."""
        try:
            if self._process != os.getpid():
                raise ConfigError("this belongs to the process that this one was forked from")
            with self._lock:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise Unreachable("The client was closed") from None
        except BaseException:
            # The waiting caller was interrupted: its result is not wanted any more.
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if self.is_closed:
            raise ConfigError("the client is closed")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop, self._last), name="dragoman client", daemon=True
            )
            self._thread.start()
        return self._loop

    def close(self, timeout: float | None = None) -> None:
        """End the thread; pending calls raise."""
        if self._process != os.getpid():
            return
        with self._lock:
            self.is_closed = True
            loop, self._loop = self._loop, None
            thread = self._thread
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        # The garbage collector may run this in the loop's own thread.
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)


def _serve(loop: asyncio.AbstractEventLoop, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop until it is stopped, and then to its end."""
    try:
        loop.run_forever()
        loop.run_until_complete(_end(last))
    finally:
        loop.close()


async def _end(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await last()
    finally:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


class Iteration(Generic[T]):
    """An async iterator as a plain one. What a `Stream` knows meanwhile is here as well."""

    def __init__(self, owner: "Sync", iterator: AsyncIterator[T]) -> None:
        # Referenced here: a client without references is closed.
        self._owner = owner
        self._loop = owner.loop
        self._iterator = iterator
        self._is_begun = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            item = self._loop.run(self._next())
        except StopAsyncIteration:
            raise StopIteration from None
        except ConfigError:
            if self._is_begun and self._loop.is_closed:
                raise Unreachable("The client was closed") from None
            raise
        self._is_begun = True
        return item

    async def _next(self) -> T:
        return await anext(self._iterator)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop iterating."""
        # With a client that is closed it has stopped.
        with suppress(ConfigError, Unreachable):
            self._loop.run(self._close())

    async def _close(self) -> None:
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()

    def _stream(self) -> Stream:
        if not isinstance(self._iterator, Stream):
            raise AttributeError("only the events of a task have this")
        return self._iterator

    @property
    def answer(self) -> Answer:
        """What the agent said so far."""
        return self._stream().answer

    @property
    def task(self) -> Task | None:
        """The task as shown so far."""
        return self._stream().task

    @property
    def cursor(self) -> int | None:
        """The position of the last event shown."""
        return self._stream().cursor


class Sync:
    """A client whose methods wait."""

    def __init__(self, client: AgentCalls) -> None:
        self.client = client
        self.loop = Loop(client.close)
        # Runs when the last reference is gone, and at the end of the program.
        self._ending = weakref.finalize(self, Loop.close, self.loop, AT_EXIT)
        _all.add(self)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open, for good, and end the thread. Calls under way in other threads end
        with `Unreachable`."""
        self.loop.close()
        self._ending.detach()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self.loop.is_closed

    def _begin_anew(self) -> None:
        """Leave the loop and the connections to the process that this one was forked from."""
        if not self.is_closed:
            _left.append((self.client, self.loop))
            self._ending.detach()
            self.client = self.client.copy()
            self.loop = Loop(self.client.close)
            self._ending = weakref.finalize(self, Loop.close, self.loop, AT_EXIT)

    look = _waited(AgentCalls.look)
    connect = _waited(AgentCalls.connect)
    extended_card = _waited(AgentCalls.extended_card)
    examine = _waited(AgentCalls.examine)
    send = _waited(AgentCalls.send)
    answer_request = _waited(AgentCalls.answer_request)
    get = _waited(AgentCalls.get)
    transitions = _waited(AgentCalls.transitions)
    cancel = _waited(AgentCalls.cancel)
    wait = _waited(AgentCalls.wait)
    page = _waited(AgentCalls.page)
    create_push = _waited(AgentCalls.create_push)
    get_push = _waited(AgentCalls.get_push)
    list_push = _waited(AgentCalls.list_push)
    push_page = _waited(AgentCalls.push_page)
    delete_push = _waited(AgentCalls.delete_push)
    stream = _iterated(AgentCalls.stream)
    stream_text = _iterated(AgentCalls.stream_text)
    subscribe = _iterated(AgentCalls.subscribe)
    list = _iterated(AgentCalls.list)

    @property
    def card(self) -> AgentCard:
        """The agent's card, once it was read."""
        return self.client.card

    @property
    def version(self) -> str:
        """The version of the protocol that is spoken, once connected."""
        return self.client.version

    @property
    def signature(self) -> "SignatureVerdict":
        """Whether the card is signed by one of the keys, once it was read."""
        return self.client.signature


_all: weakref.WeakSet[Sync] = weakref.WeakSet()
# Kept for ever: to collect them would be to close what the other process still reads from.
_left: list[tuple[AgentCalls, Loop]] = []


def _after_fork() -> None:
    for sync in list(_all):
        sync._begin_anew()  # pyright: ignore[reportPrivateUsage] - a part of the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
