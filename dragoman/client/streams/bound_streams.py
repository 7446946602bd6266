"""Streams that are bound to their client: they end when it is closed, wherever they wait."""

import asyncio

from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.egress.waits import Waits
from dragoman.errors import A2AError, ConfigError, DeliveryUnknown, Unreachable
from dragoman.model import operations as ops


class ClientStream(Stream):
    """A stream that ends with its client, also where it waits before another try."""

    waits: Waits
    # Where it is read.
    _loop: asyncio.AbstractEventLoop | None = None
    _has_reader = False

    async def __anext__(self) -> Shown:
        if self.waits.is_closed and self._loop is None:
            raise ConfigError("the client is closed")
        self._loop = asyncio.get_running_loop()
        with self.waits.until_closed(self._closed_error):
            self._has_reader = True
            try:
                return await super().__anext__()
            finally:
                self._has_reader = False

    async def leave(self) -> None:
        """Stop following, unless a reader waits: it gets an error and stops by itself."""
        if not self._has_reader and self._loop is asyncio.get_running_loop():
            await self.aclose()

    def _closed_error(self) -> A2AError:
        is_answered = self.task_id or self.message is not None
        is_send = isinstance(self._operation, ops.SendMessage)
        error = closed_sending() if is_send and not is_answered else closed()
        if self.task_id:
            error.facts["taskId"] = self.task_id
        return error


def closed() -> Unreachable:
    """Return what a call under way ends with when its client is closed."""
    return Unreachable("The client was closed")


def closed_sending() -> Unreachable:
    """Return the same for a message that may have arrived."""
    return DeliveryUnknown("The client was closed before the agent answered")
