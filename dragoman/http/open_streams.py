"""The streams a server has open: how many there may be, and who may go on reading."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dragoman.errors import Overloaded
from dragoman.model.identity import Caller
from dragoman.security.authentication import Pass
from dragoman.shares import EVENT_COST, Shares
from dragoman.telemetry import figures


class EndableStream(Protocol):
    """An open answer, as far as it is ended and kept alive from outside."""

    def stop(self) -> None:
        """End it."""
        ...

    def keep_alive(self, quiet_since: float) -> None:
        """Write something to one that was quiet since a moment."""
        ...


class OpenStream:
    """What one reader is sent. One that reads without end waits for its turn beside others."""

    __slots__ = ("_account", "_agent", "_shares")

    def __init__(self, shares: Shares, caller: Caller, agent: str) -> None:
        self._shares = shares
        self._account = shares.account(caller.who)
        self._agent = agent

    def is_ahead(self, events: int, size: int) -> bool:
        """Count what was sent; tell whether to wait for a turn."""
        self._shares.use(self._account, events * EVENT_COST + size)
        return self._account.is_narrow

    async def turn(self) -> None:
        """Wait for a turn."""
        await self._shares.turn(self._account, self._agent)


class OpenStreams:
    """Open streams, each with the pass of its reader."""

    def __init__(self, most: int, shares: Shares | None = None) -> None:
        self._most = most
        self._shares = shares or Shares()
        self._open: dict[EndableStream, Pass | None] = {}
        # Set when requests are cut off because the server ends, and not by their callers.
        self.is_stopping = False
        figures.streams.watch(self.__len__)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: EndableStream, reader: Pass | None) -> None:
        """Count a stream; raises `Overloaded` if there are too many."""
        if len(self._open) >= self._most:
            raise Overloaded
        self._open[stream] = reader

    def reader(self, caller: Caller, agent: str) -> "OpenStream":
        """Return what counts what a reader of some agent's tasks is sent."""
        return OpenStream(self._shares, caller, agent)

    def discard(self, stream: EndableStream) -> None:
        """Count a stream no more."""
        self._open.pop(stream, None)

    def end(self) -> None:
        """End every open stream; readers come back with the position they have."""
        self.is_stopping = True
        for stream in list(self._open):
            stream.stop()

    def keep_alive(self, silence: float) -> None:
        """Write a comment to every stream that was quiet for so many seconds."""
        quiet_since = asyncio.get_running_loop().time() - silence
        for stream in list(self._open):
            stream.keep_alive(quiet_since)

    def end_expired(self, holds: Callable[[Pass], bool]) -> int:
        """End the streams of readers who would not be let in any more; return how many."""
        # One reader may have many: its pass is looked at once.
        readers = {id(reader): reader for reader in self._open.values() if reader is not None}
        ended = {number for number, reader in readers.items() if not holds(reader)}
        expired = [stream for stream, reader in self._open.items() if id(reader) in ended]
        for stream in expired:
            stream.stop()
        return len(expired)
