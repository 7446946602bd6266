"""The client for code that is not async: the same methods, run by a loop in a thread of its own.

There is no second implementation: each name below is the client's method, waited for. It works
inside a running loop as well, which it blocks for as long as it takes.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.stream import Shown, Stream
from dragoman.model.card import AgentCard
from dragoman.model.task import Task

if TYPE_CHECKING:
    from dragoman.security.signatures import Verdict

P = ParamSpec("P")
T = TypeVar("T")


def _waited(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Sync", P], T]:
    """Return a method of the client as one that waits."""

    def run(self: "Sync", *args: P.args, **kwargs: P.kwargs) -> T:
        return self.loop.run(method(self.client, *args, **kwargs))

    run.__name__, run.__doc__ = method.__name__, method.__doc__
    return run


def _iterated(
    method: Callable[Concatenate[Client, P], AsyncIterator[T]],
) -> Callable[Concatenate["Sync", P], "Iteration[T]"]:
    """Return a method of the client as one that gives a plain iterator."""

    def run(self: "Sync", *args: P.args, **kwargs: P.kwargs) -> Iteration[T]:
        return Iteration(self.loop, method(self.client, *args, **kwargs))

    run.__name__, run.__doc__ = method.__name__, method.__doc__
    return run


class Loop:
    """A loop in a thread that others wait for; both begin with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, however long it takes."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except BaseException:
            # Whoever waits was interrupted: nobody is left to want the result.
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="dragoman client", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the thread."""
        with self._starting:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            # In its own thread: this one may have a loop that runs.
            asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Iteration(Generic[T]):
    """An async iterator as a plain one. What a `Stream` knows meanwhile is here as well."""

    def __init__(self, loop: Loop, iterator: AsyncIterator[T]) -> None:
        self._loop = loop
        self._iterator = iterator

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._loop.run(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> T:
        return await anext(self._iterator)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop iterating."""
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

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loop = Loop()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open, and end the thread."""
        self.loop.run(self.client.close())
        self.loop.close()

    look = _waited(Client.look)
    connect = _waited(Client.connect)
    extended_card = _waited(Client.extended_card)
    send = _waited(Client.send)
    get = _waited(Client.get)
    cancel = _waited(Client.cancel)
    wait = _waited(Client.wait)
    page = _waited(Client.page)
    create_push = _waited(Client.create_push)
    get_push = _waited(Client.get_push)
    list_push = _waited(Client.list_push)
    push_page = _waited(Client.push_page)
    delete_push = _waited(Client.delete_push)
    stream: Callable[..., Iteration[Shown]] = _iterated(Client.stream)
    stream_text = _iterated(Client.stream_text)
    subscribe: Callable[..., Iteration[Shown]] = _iterated(Client.subscribe)
    list = _iterated(Client.list)

    @property
    def card(self) -> AgentCard:
        """The agent's card, once it was read."""
        return self.client.card

    @property
    def version(self) -> str:
        """The version of the protocol that is spoken, once connected."""
        return self.client.version

    @property
    def signature(self) -> "Verdict":
        """Whether the card is signed by one of the keys, once it was read."""
        return self.client.signature
