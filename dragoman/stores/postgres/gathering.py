"""Reads of one moment in one query: what many callers ask at once is asked together.

A question joins the next query, never one that is under way: a caller sees all that was committed
before it asked. Where no other asks, a question goes alone and at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from dragoman.stores.postgres.connections import CannotStore

K = TypeVar("K")
V = TypeVar("V")

# Questions in one query, and queries under way at once.
_MOST = 256
_AT_ONCE = 2


class Gathered(Generic[K, V]):
    """Asks together what is asked at the same time."""

    def __init__(self, ask: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        """`ask` answers several questions, in their order."""
        self._ask = ask
        self._waiting: list[tuple[K, asyncio.Future[V]]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def one(self, question: K) -> V:
        """Return the answer to a question."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[V] = loop.create_future()
        self._waiting.append((question, answer))
        # One that ended in this turn of the loop asks no more, and is still in the set.
        if sum(not task.done() for task in self._asking) < _AT_ONCE:
            task = loop.create_task(self._work())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return await answer

    async def _work(self) -> None:
        while some := self._waiting[:_MOST]:
            del self._waiting[:_MOST]
            await self._answer(some)

    async def _answer(self, some: list[tuple[K, asyncio.Future[V]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in some])
        except CannotStore as error:
            if len(some) > 1:
                # One of them cannot be asked. The others are not to pay for it.
                for one in some:
                    await self._answer([one])
                return
            _fail(some, error)
        except Exception as error:
            _fail(some, error)
        except BaseException:
            for _, future in some:
                future.cancel()
            raise
        else:
            for (_, future), answer in zip(some, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(some: list[tuple[K, asyncio.Future[V]]], error: Exception) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)
