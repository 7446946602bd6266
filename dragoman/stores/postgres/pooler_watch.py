"""Whether the pooler answers, where there is one. Our session goes past it, so that its signs of
life say nothing of the way that reads and writes take: on one that is frozen or cut off they would
wait for ever."""

import asyncio

from dragoman.stores.postgres.chores import Chore
from dragoman.stores.postgres.connections import LOST, Connection, DatabaseConnections, ServerError

# Seconds between two looks, and for an answer.
LOOK_EVERY = 1.0
ANSWER_WITHIN = 3.0


class PoolerWatch:
    """Asks the pooler now and then, on a connection of its own."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections
        self._connection: Connection | None = None
        self._looking = Chore("watching the pooler", self._look, every=LOOK_EVERY)

    def start(self) -> None:
        """Begin, if there is a pooler."""
        if self._connections.is_pooled:
            self._looking.start()

    async def stop(self) -> None:
        """End."""
        await self._looking.stop()
        self._drop()

    async def _look(self) -> None:
        """Have all that waits told if nothing comes of waiting."""
        is_silent = False
        try:
            if not await self._answers():
                # It may have no session of the server to give at present, or not know of us any
                # more: one that answers who comes new does not know of the others either.
                self._drop()
                is_silent = not await self._answers()
                if not is_silent:
                    self._connections.drop()
        except TimeoutError:
            # No connection is let in.
            is_silent = True
            self._connections.drop()
        except OSError:
            is_silent = True
        except (*LOST, ServerError):
            # It spoke.
            pass
        self._connections.is_silent = is_silent

    async def _answers(self) -> bool:
        """Tell whether a question is answered in time; raises what keeps us from asking it."""
        connection = self._connection
        if connection is None or connection.is_closed():
            async with asyncio.timeout(ANSWER_WITHIN):
                connection = self._connection = await self._connections.pooled()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await connection.execute("SELECT 1")
        except TimeoutError:
            return False
        except (*LOST, ServerError):
            # Closed, which is an answer.
            self._drop()
        return True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
