"""Which part of the store does not answer: the database, our session, a standby, or the bus."""

import asyncio
from collections.abc import Sequence

from dragoman.errors import StoreUnavailable
from dragoman.stores.interface import StoreTrouble
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import LOST, DatabaseConnections, ServerError
from dragoman.stores.postgres.workers import Workers
from dragoman.stores.postgres.writer import Writer
from dragoman.stores.rings import WorkerBus

# Seconds that a commit may take before it is worth a word, and for the server to say why.
_LONG = 2.0
_ANSWER_WITHIN = 0.8
_SQL = statements("dragoman.stores.postgres.operating", "health.sql")


async def troubles(
    connections: DatabaseConnections, workers: Workers, writer: Writer, bus: WorkerBus
) -> Sequence[StoreTrouble]:
    """Return what does not work; the server is asked only where something looks wrong."""
    found: list[StoreTrouble] = []
    is_away = writer.is_away or connections.is_silent
    if is_away or workers.session is None or writer.waits > _LONG:
        found.append(await _of_the_database(connections, workers))
    if bus.trouble:
        found.append(
            StoreTrouble("bus", "the bus does not answer: events are seen later", is_serious=False)
        )
    return found


async def read_only_troubles(connections: DatabaseConnections) -> Sequence[StoreTrouble]:
    """Return what does not work for a process that only reads."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            await connections.rows("SELECT 1")
    except (*LOST, ServerError, StoreUnavailable):
        return [StoreTrouble("database", "the database does not answer", is_serious=True)]
    return []


async def _of_the_database(connections: DatabaseConnections, workers: Workers) -> StoreTrouble:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            ((waiting,),) = await connections.rows(_SQL["waiting_for_standby"])
    except (*LOST, ServerError, StoreUnavailable):
        return StoreTrouble("database", "the database does not answer", is_serious=True)
    if workers.session is None:
        return StoreTrouble("session", "the session with the database is lost", is_serious=True)
    if waiting:
        return StoreTrouble(
            "standby", "commits wait for a standby that does not answer", is_serious=True
        )
    return StoreTrouble("database", "the database is slow to answer", is_serious=True)
