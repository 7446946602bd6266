"""Reads of many followers in one query, where the store is far away.

A ring of another process wakes many followers at once, each of which reads a little. Asked one by
one they would wait for each other's connections; together they are one question.
"""

import asyncio

import msgspec

from dragoman.engine.log import STREAMED_AT_ONCE
from dragoman.model.record import Recorded
from dragoman.stores.interface import Store

# Reads in one query, and queries under way at once.
_AT_ONCE = 64
_LANES = 2


class _Wanted(msgspec.Struct, frozen=True):
    number: int
    after: int
    found: asyncio.Future[list[Recorded]]


class GatheredReads:
    """Reads logs, together with others that are read at the same moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: list[_Wanted] = []
        self._lanes: set[asyncio.Task[None]] = set()

    async def read(self, number: int, after: int) -> list[Recorded]:
        """Return the events of a task after a position."""
        if not self._store.is_far:
            return await self._store.read(number, after=after, limit=STREAMED_AT_ONCE)
        loop = asyncio.get_running_loop()
        wanted = _Wanted(number, after, loop.create_future())
        self._wanted.append(wanted)
        # One that ended in this turn of the loop reads no more, and is still in the set.
        if sum(not lane.done() for lane in self._lanes) < _LANES:
            lane = loop.create_task(self._read_all())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await wanted.found

    async def _read_all(self) -> None:
        # This runs after the present turn of the loop: readers that were woken in it come along.
        while self._wanted:
            some, self._wanted = self._wanted[:_AT_ONCE], self._wanted[_AT_ONCE:]
            places = [(one.number, one.after) for one in some]
            try:
                found = await self._store.read_many(places, limit=STREAMED_AT_ONCE)
            except Exception as error:
                # Each reader decides what that means to it.
                for one in some:
                    if not one.found.done():
                        one.found.set_exception(error)
                continue
            for one, events in zip(some, found, strict=True):
                if not one.found.done():
                    one.found.set_result(events)
