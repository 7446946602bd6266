"""A store that is written from the Protocols alone: the memory one, with one fault at choice.

With no fault it keeps every promise; with one, the suite must say which promise that breaks.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.model.record import Recorded
from dragoman.stores.interface import (
    Append,
    Bodies,
    DeadLetter,
    Done,
    KeepReply,
    Push,
    Query,
    TaskRow,
    TaskRows,
    Write,
)
from dragoman.stores.memory import MemoryStore


class FaultyStore:
    """Passes every call on, and spoils those that its fault is about."""

    def __init__(self, fault: str = "") -> None:
        self._store = MemoryStore()
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(self, write: Write, done: Done) -> None:
        if self._fault == "loses appends" and isinstance(write, Append):
            write = msgspec.structs.replace(write, events=[])
        elif self._fault == "forgets keys" and not isinstance(write, KeepReply):
            write = msgspec.structs.replace(write, keys=[])
        elif self._fault == "ignores fences" and isinstance(write, Append):
            head = self._store._tasks[write.number].head
            write = msgspec.structs.replace(write, fence=head.fence)
        if self._fault == "acknowledges what it refused":
            self._store.submit(write, lambda _, number: done(None, number))
        else:
            self._store.submit(write, done)

    async def read(self, number: int, **more: Any) -> list[Recorded]:
        events = await self._store.read(number, **more)
        return events[:-1] if self._fault == "hides the last event" else events

    async def page(self, query: Query, *, bodies: Bodies | None = None) -> TaskRows:
        page = await self._store.page(query, bodies=bodies)
        total = len(page.heads) if self._fault == "counts one page" else page.total
        return msgspec.structs.replace(page, total=total)

    async def claim(self, agent: str, limit: int) -> Sequence[tuple[TaskRow, int]]:
        if self._fault == "claims nothing":
            return []
        return await self._store.claim(agent, limit)

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        await self._store.settle(push, None if self._fault == "drops letters" else letter)
