"""Wake-ups by LISTEN and NOTIFY, and which bus a store has. A lost one costs latency, never an
event.

NOTIFY takes a lock that all commits of the server share, so it is never part of a group's
transaction: one ring goes out after the commit, for all that was committed meanwhile.
"""

import contextlib
from collections.abc import Sequence
from secrets import token_bytes
from typing import Any

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.stores.interface import Append, Create, LeaveNote, Rung, Write
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.workers import Workers
from dragoman.stores.rings import WorkerBus, decoded, encoded

_CHANNEL = "dragoman"
_SQL = statements("dragoman.stores.postgres", "bus.sql")


def bus_of(url: str, connections: DatabaseConnections, workers: Workers) -> WorkerBus:
    """Return the bus at an address, not open yet; empty: the database's own."""
    if not url:
        bus: WorkerBus = NotifyBus(connections, workers)
    else:
        try:
            from dragoman.stores.nats_bus import NatsBus
        except ImportError:
            raise ConfigError(
                "bus: NATS needs a library that is not there: pip install 'dragoman[nats]'",
                remedy="pip install 'dragoman[nats]'",
            ) from None

        async def subject() -> str:
            return f"dragoman.{(await _name(connections)).hex()}"

        bus = NatsBus(url, subject, lambda: workers.number)

    def freed() -> None:
        bus.tell(Rung(freed=True))
        bus.ring(Rung(freed=True))

    async def look_again(session: Connection) -> None:
        # The server was away: what was committed meanwhile is unknown.
        bus.tell(None)

    workers.on_session.append(look_again)
    workers.on_deaths.append(freed)
    return bus


async def _name(connections: DatabaseConnections) -> bytes:
    """Return what tells this database from every other, made once."""
    await connections.rows(_SQL["make_name"], token_bytes(8))
    ((name,),) = await connections.rows(_SQL["name"])
    return name


class NotifyBus(WorkerBus):
    """Rings the other workers through the database, and hears them in our session."""

    def __init__(self, connections: DatabaseConnections, workers: Workers) -> None:
        super().__init__(lambda: workers.number)
        self._connections = connections
        workers.on_session.append(self._opened)

    async def _send(self, rung: Rung) -> None:
        message = encoded(self.worker(), 0, rung).decode()
        # Lost with its connection: listeners look again by themselves.
        with contextlib.suppress(StoreUnavailable):
            await self._connections.rows(_SQL["notify"], message)

    async def _opened(self, session: Connection) -> None:
        await session.add_listener(_CHANNEL, self._heard)

    def _heard(self, _: Any, __: int, ___: str, message: str) -> None:
        worker, _, rung = decoded(message)
        if worker != self.worker():
            self.tell(rung)


def rung_for(writes: Sequence[Write], numbers: Sequence[int]) -> Rung:
    """Return the ring for a group that was committed."""
    tasks: list[int] = []
    noted: list[int] = []
    for write, number in zip(writes, numbers, strict=True):
        if isinstance(write, LeaveNote):
            noted.append(number)
        elif isinstance(write, Create | Append):
            tasks.append(number)
    return Rung(tuple(tasks), tuple(noted))
