"""The further messages of a task that its code was not given yet, and the wait for the next one."""

import asyncio

import msgspec


# A struct, because one is made for each task.
class Inbox(msgspec.Struct, eq=False):
    """The places of those messages in the task's progress, in order."""

    places: list[int] = []
    # Set when a message comes; None: nothing has waited for one.
    _arrival: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the next message is waited for."""
        return self._arrival is not None and not self._arrival.done()

    def put(self, place: int) -> None:
        """Take in one more message."""
        self.places.append(place)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def arrival(self) -> None:
        """Wait until there is a message."""
        while not self.places:
            self._arrival = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrival)

    def interrupt(self) -> None:
        """Free what waits: no message will come."""
        if self._arrival is not None:
            self._arrival.cancel()
