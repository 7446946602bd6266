"""Wake-ups that are lost: listeners whose session is ended, cut, or shared by a pooler, and a bus
that dies. That costs latency, never an event."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from dragoman.testing.servers import NatsServer
from proof.client import ConnectionGone, Frame, RpcConnection
from proof.cluster.site import Replica, Site
from proof.cluster.tally import Tally
from proof.results import Progress

# A task that speaks for a while: chunks, and milliseconds between them.
_WORK = "30 40"
_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT pid FROM pg_locks "
    "WHERE locktype = 'advisory' AND classid = 1685217639 AND objsubid = 2) AS sessions"
)
_READ_WITHIN = 30.0
# Seconds in which a task that speaks for one has been read, whatever happens.
_WHOLE_WITHIN = 20.0


async def lose(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """Take the listeners away in each way in turn, while tasks are read at other replicas."""
    ways = (_end_sessions, _cut_listeners, _silence_listeners, _deafen)
    for n in range(count):
        way = ways[n % len(ways)]
        runner, reader = site.chance.sample(site.servers, 2)
        task_id = await site.begin_at_last(runner, _WORK)
        reading = asyncio.ensure_future(_latest(site, reader, task_id))
        async with way(site):
            tally.lags[way.__name__.strip("_").replace("_", " ")].append(await reading)
        tally.done["listeners"] += 1
        progress(f"listener {n + 1}/{count}, {len(site.load.history.acked):,} acknowledged")


async def kill_nats(
    site: Site, nats: NatsServer, tally: Tally, count: int, progress: Progress
) -> None:
    """Kill NATS while tasks are read at other replicas, and start it again."""
    for n in range(count):
        runner, reader = site.chance.sample(site.servers, 2)
        task_id = await site.begin_at_last(runner, _WORK)
        reading = asyncio.ensure_future(_latest(site, reader, task_id))
        await asyncio.to_thread(nats.kill)
        tally.lags["NATS killed"].append(await reading)
        await asyncio.to_thread(nats.start)
        tally.done["nats"] += 1
        progress(f"NATS {n + 1}/{count}, {len(site.load.history.acked):,} acknowledged")


async def _latest(site: Site, reader: Replica, task_id: str) -> float:
    """Read a task to its end; return the longest silence in milliseconds."""
    connection = RpcConnection(reader.port)
    frames: list[Frame] = []
    longest, last = 0.0, time.monotonic()
    try:
        async with (
            asyncio.timeout(_WHOLE_WITHIN),
            contextlib.aclosing(
                connection.stream("SubscribeToTask", {"id": task_id}, within=_READ_WITHIN)
            ) as stream,
        ):
            async for frame in stream:
                frames.append(frame)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
    except (TimeoutError, ConnectionGone):
        longest = time.monotonic() - last
        if frames:
            site.load.cut.append((task_id, frames[-1].seq or 0))
    finally:
        connection.close()
        if frames:
            site.load.history.saw_frames(task_id, frames)
    return longest * 1000


@contextlib.asynccontextmanager
async def _end_sessions(site: Site) -> AsyncGenerator[None]:
    await site.database.rows(_SESSIONS)
    yield


@contextlib.asynccontextmanager
async def _cut_listeners(site: Site) -> AsyncGenerator[None]:
    for cable in site.cables:
        cable.cut(listeners_only=True)
    yield


@contextlib.asynccontextmanager
async def _silence_listeners(site: Site) -> AsyncGenerator[None]:
    for cable in site.cables:
        cable.silence(listeners_only=True)
    try:
        yield
    finally:
        for cable in site.cables:
            cable.restore()


@contextlib.asynccontextmanager
async def _deafen(site: Site) -> AsyncGenerator[None]:
    """As behind a pooler: LISTEN is accepted, and nothing arrives."""
    for cable in site.cables:
        cable.is_deaf = True
    try:
        yield
    finally:
        for cable in site.cables:
            cable.is_deaf = False
